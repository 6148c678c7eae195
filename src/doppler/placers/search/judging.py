"""The features of a move, readable: what the compiled ones must equal (`judge_kernel.describe`).

A move changes the devices of some vertices. Its features say what that changes, and where: times
and loads are those of the assignment that is moved from, as it was simulated. Seconds are shares of
the makespan, on a scale that is logarithmic from a thousandth on.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf, log, log1p, log2

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.problem import Problem
from doppler.trace.trace import Trace

# The kinds of moves are those of `moves_kernel`, in their order.
KINDS = ("one", "pair", "along", "in-meta-op", "region", "stretch")
MOVE_FEATURES = (
    "size",  # logarithm of the number of vertices
    *(f"is-{kind}" for kind in KINDS),
    "exec",  # change of the seconds that the vertices take
    "transfers",  # change of the seconds that what they read and write is moved
    "urgent-transfers",  # the same, by how urgent the vertices are that read it
    "work",  # seconds that the vertices take before
    "urgent-work",
    "wait",  # mean seconds that they wait for their device
    "least-slack",
    "slack",  # mean
    "load",  # mean, of the devices that they leave
    "target-load",
    "busy",  # how busy these devices are in the middle of the vertex
    "target-busy",
    "links",  # change of the seconds on links, by how loaded the links are
    "late",  # mean seconds by which a vertex would end later than its slack allows
    "arrival",  # mean change of when their inputs are there
    "held",  # share of the memory that all results take, on the devices that they leave
    "target-held",
    "rate",  # share of such moves that made the makespan shorter of late
    "mean-load",
    "communication",  # seconds of all transfers over those of all vertices
    "devices",
    "vertices",
    "temperature",
    "cuts",  # change of the number of transfers, relative
)


SLICES = 32  # of the makespan, in which it is noted how busy a device is
FEW = 32  # vertices of a move that are looked at; of more, every second one or so
URGENT = 0.05  # of the makespan: the slack at which a vertex counts half as urgent as one without
LEAST_EXEC = 1e-6  # of the makespan: execution takes that long where transfers are compared with it
FINEST, SPREAD = 1e3, 0.15  # a share x of the makespan is read as SPREAD * log(1 + FINEST * x)


@dataclass(frozen=True, slots=True)
class Move:
    """Vertices that change devices."""

    kind: int  # in KINDS
    vertices: tuple[int, ...]
    devices: IntArray  # (V,) of the assignment after it
    rate: float  # share of such moves that made the makespan shorter of late
    temperature: float


@dataclass(frozen=True, eq=False)
class MoveDescriber:
    """Describes moves from (V,) devices, as a trace shows that they run."""

    problem: Problem
    devices: IntArray
    trace: Trace

    def features(self, move: Move) -> FloatArray:
        """(F,) the features of a move, as in `MOVE_FEATURES`."""
        looked = move.vertices[:: 1 + (len(move.vertices) - 1) // FEW]
        every = [self._of_vertex(v, move) for v in looked]
        total = {name: sum(one[name] for one in every) for name in every[0]}
        share = 1.0 / (len(looked) * self.trace.makespan_s)
        found = {"size": 0.2 * log2(len(move.vertices)), f"is-{KINDS[move.kind]}": 1.0}
        for name in ("exec", "transfers", "urgent-transfers", "work", "urgent-work", "links"):
            found[name] = squash(total[name] * len(move.vertices) * share)
        for name in ("wait", "slack", "late", "arrival"):
            found[name] = squash(total[name] * share)
        for name in ("load", "target-load", "busy", "target-busy"):
            found[name] = total[name] / len(looked)
        for name in ("held", "target-held"):
            found[name] = squash(total[name] / len(looked))
        least_s = min(one["slack"] for one in every)
        found["least-slack"] = squash(least_s / self.trace.makespan_s)
        found["rate"] = 0.2 * log(move.rate + 1e-4)
        found["temperature"] = squash(move.temperature)
        found["cuts"] = (total["cut"] - total["joined"]) / (total["cut"] + total["joined"] + 1.0)
        found |= self._of_all
        return np.array([found.get(name, 0.0) for name in MOVE_FEATURES])

    def _of_vertex(self, v: int, move: Move) -> dict[str, float]:
        """What a move does to one of its vertices; seconds as they are."""
        graph, a, b = self.problem.graph, int(self.devices[v]), int(move.devices[v])
        exec_s, begin_s, end_s, slack_s = self.problem.costs.exec_s, *self._times, self._slack_s
        middle = (self._slice(begin_s[v]) + self._slice(end_s[v])) // 2
        found = {
            "exec": exec_s[v, b] - exec_s[v, a],
            "work": exec_s[v, a],
            "urgent-work": self._urgency(v) * exec_s[v, a],
            "wait": self._wait_s[v],
            "slack": slack_s[v],
            "load": self._busy[a].sum() / SLICES,
            "target-load": self._busy[b].sum() / SLICES,
            "busy": self._busy[a, middle],
            "target-busy": self._busy[b, middle],
            "held": self._held[a],
            "target-held": self._held[b],
        }
        edges = self.problem.edges
        moved = {"transfers": 0.0, "urgent-transfers": 0.0, "links": 0.0, "cut": 0.0, "joined": 0.0}
        before_s = after_s = 0.0
        for e in np.flatnonzero(edges.reader == v).tolist():
            t, u = int(edges.tensor[e]), int(edges.producer[e])
            old = self._moving(t, int(self.devices[u]), a)
            new = self._moving(t, int(move.devices[u]), b)
            _add(moved, old, new, self._urgency(v))
            before_s = max(before_s, end_s[u] + old[0])
            after_s = max(after_s, end_s[u] + new[0])
        for o in range(graph.output_ptr[v], graph.output_ptr[v + 1]):
            t = int(graph.output_tensor[o])
            for r in graph.edge_reader[graph.edge_tensor == t].tolist():
                to = int(self.devices[r])
                if to == move.devices[r]:  # else it counts among the inputs of r
                    old, new = self._moving(t, a, to), self._moving(t, b, to)
                    _add(moved, old, new, self._urgency(r))
        late_s = max(after_s + exec_s[v, b] - end_s[v] - slack_s[v], 0.0)
        return found | moved | {"late": late_s, "arrival": after_s - before_s}

    def _moving(self, tensor: int, source: int, target: int) -> tuple[float, float]:
        """Seconds that a tensor takes between two devices, and the load of the link, -1 if none."""
        if source == target:
            return 0.0, -1.0
        link = self.problem.topology.route[source, target]
        took_s = float(self.problem.transfer_s(np.array(tensor), np.array(link)))
        return took_s, float(self._link_load[link])

    def _urgency(self, v: int) -> float:
        near_s = URGENT * self.trace.makespan_s
        return float(near_s / (near_s + self._slack_s[v]))

    def _slice(self, at_s: float) -> int:
        return min(int(at_s / self.trace.makespan_s * SLICES), SLICES - 1)

    @cached_property
    def _rows(self) -> IntArray:
        """Rows of the trace that are execs."""
        return np.flatnonzero(self.trace.tensor < 0)

    @cached_property
    def _times(self) -> tuple[FloatArray, FloatArray]:
        """(V,) when each vertex begins and ends."""
        begin_s, end_s = np.zeros(len(self.devices)), np.zeros(len(self.devices))
        begin_s[self.trace.vertex[self._rows]] = self.trace.begin_s[self._rows]
        end_s[self.trace.vertex[self._rows]] = self.trace.end_s[self._rows]
        return begin_s, end_s

    @cached_property
    def _wait_s(self) -> FloatArray:
        """(V,) how long each vertex waits once its inputs are there."""
        wait_s = np.zeros(len(self.devices))
        took_s = self.trace.begin_s - self.trace.ready_s
        wait_s[self.trace.vertex[self._rows]] = np.maximum(took_s[self._rows], 0.0)
        return wait_s

    @cached_property
    def _slack_s(self) -> FloatArray:
        """(V,) how much later each vertex could end, by all paths that follow it."""
        problem, host = self.problem, self.problem.topology.host
        hop_s, edges = host.dispatch_s + host.completion_s, problem.edges
        tail_s = np.zeros(len(self.devices))
        for v in reversed(problem.graph.topological_order.tolist()):
            for e in range(edges.ptr[v], edges.ptr[v + 1]):
                r, t = int(edges.reader[e]), int(edges.tensor[e])
                took_s, load = self._moving(t, int(self.devices[v]), int(self.devices[r]))
                extra_s = took_s + hop_s if load >= 0 else 0.0
                exec_s = problem.costs.exec_s[r, self.devices[r]]
                tail_s[v] = max(tail_s[v], hop_s + exec_s + tail_s[r] + extra_s)
        slack: FloatArray = np.maximum(self.trace.makespan_s - self._times[1] - tail_s, 0.0)
        return slack

    @cached_property
    def _busy(self) -> FloatArray:
        """(D, SLICES) what share of each slice of the makespan each device is busy."""
        busy = np.zeros((self.problem.topology.num_devices, SLICES))
        ends = np.arange(SLICES + 1.0)
        ends[-1] = inf  # what is rounded beyond the last is in it
        for row in self._rows.tolist():
            first = self.trace.begin_s[row] / self.trace.makespan_s * SLICES
            last = self.trace.end_s[row] / self.trace.makespan_s * SLICES
            inside = np.minimum(last, ends[1:]) - np.maximum(first, ends[:-1])
            busy[self.trace.device[row]] += np.maximum(inside, 0.0)
        return busy

    @cached_property
    def _link_load(self) -> FloatArray:
        """(L,) what share of the makespan the transfers of each link take."""
        moves = np.flatnonzero(self.trace.tensor >= 0)
        took_s = self.trace.end_s[moves] - self.trace.begin_s[moves]
        links = len(self.problem.topology.links)
        load: FloatArray = (
            np.bincount(self.trace.link[moves], took_s, links) / self.trace.makespan_s
        )
        return load

    @cached_property
    def _held(self) -> FloatArray:
        """(D,) what share of each device's memory all results made there take."""
        problem, held = self.problem, np.zeros(self.problem.topology.num_devices)
        for v in problem.graph.assigned.tolist():
            held[self.devices[v]] += problem.made_bytes[v]
        return held / problem.memory_bytes

    @cached_property
    def _of_all(self) -> dict[str, float]:
        """What is the same for all moves."""
        trace, moves = self.trace, self.trace.tensor >= 0
        took_s = trace.end_s - trace.begin_s
        exec_s = took_s[~moves].sum()
        devices = self.problem.topology.num_devices
        return {
            "mean-load": exec_s / trace.makespan_s / devices,
            "communication": squash(
                took_s[moves].sum() / max(exec_s, LEAST_EXEC * trace.makespan_s)
            ),
            "devices": 0.3 * log(devices),
            "vertices": 0.2 * log(len(self._rows)) - 1.0,
        }


def _add(
    total: dict[str, float], old: tuple[float, float], new: tuple[float, float], urgency: float
) -> None:
    """Count that a vertex reads a tensor by another transfer, or by none."""
    total["transfers"] += new[0] - old[0]
    total["urgent-transfers"] += urgency * (new[0] - old[0])
    for sign, which, (took_s, load) in ((-1.0, "joined", old), (1.0, "cut", new)):
        if load >= 0:
            total["links"] += sign * took_s * load
            total[which] += 1.0


def squash(x: float) -> float:
    """A share of the makespan, of any size, as a number that is seldom above 2."""
    return SPREAD * log1p(FINEST * x) if x >= 0 else -SPREAD * log1p(-FINEST * x)
