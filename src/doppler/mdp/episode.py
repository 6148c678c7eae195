"""Episode: the readable decision process of Sec. 4.1; `mdp.kernel` is its compiled twin."""

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.mdp.features import (
    DEVICE_FEATURES,
    EXTRA_END,
    MOST_OF,
    MOST_SHARE,
    NOT_SECONDS,
    OVERFULL,
    SAME,
    SCORED_BY,
    WEIGHT_OF_END,
    WEIGHT_OF_OVERFULL,
    squeeze,
)
from doppler.mdp.guide import UNASSIGNED, Guide
from doppler.mdp.instance import Instance


class Episode:
    """One pass of Alg. 3: vertices are selected from the candidates and placed, one by one.

    A vertex is a candidate once all its producers are placed. Placing plans it: it begins when a
    slot of its device is free and its inputs have arrived. Those that are elsewhere are moved when
    it is placed, one after the other over links as wide as they have lanes; a tensor is moved to a
    device once. What comes from the host does so first, over the link from there. The host takes a
    constant time between tasks, and starts them one after the other: nothing begins before it has
    started what was planned before. Unlike in the runtime, everything happens in the order of
    placing. The device features are made from that plan.

    So is what the devices hold: a vertex's outputs where it is, and copies where they were moved,
    all of them until the last reader anywhere is placed; what nobody reads stays, and inputs do,
    which count, as temporaries do, only where a device may run out of memory. Of assignments that
    always fit by this estimate, nine in ten run in simulation, of the others one in four: copies
    are kept longer than at run time, but what runs side by side is not placed side by side.
    """

    def __init__(self, instance: Instance, guide: Guide | None = None) -> None:
        """`guide` has one row, which is compared with instead of the instance's."""
        self.instance = instance
        tables = instance.tables
        size, devices = tables.exec_s.shape
        self.devices = np.full(size, -1, np.int64)  # of each vertex, -1 until it is placed
        self.order: list[int] = []
        self.missing = tables.num_reads.copy()
        self.begin_s, self.end_s = np.zeros(size), np.zeros(size)
        self.slot_free_s = [
            [0.0] * int(n) for n in np.diff(tables.slot_ptr)
        ]  # of each device, when its slots are free
        self.link_free_s = [0.0] * len(tables.lanes)
        self.host_free_s = 0.0  # when the host has started all that is planned
        self.there_s: dict[tuple[int, int], float] = {}  # when a tensor is on a device it moved to
        self.arrived_s: dict[tuple[int, int], float] = {}  # the same for what comes from the host
        self.producers: list[list[int]] = [[] for _ in range(size)]  # edges that enter a vertex
        for e, reader in enumerate(tables.edge_reader.tolist()):
            self.producers[reader].append(e)
        self.unread = tables.tensor_reads.copy()  # edges of a tensor whose reader is not placed
        self.held_bytes = np.zeros(devices)
        self.inputs_on: list[set[int]] = [set() for _ in range(devices)]  # that take memory
        self.num_devices = devices
        known = instance.guide if guide is None else guide
        self.guide = known.devices[0] if len(known.devices) else np.full(size, UNASSIGNED)
        self.guide_times = known.times[0] if len(known.times) else None

    @property
    def candidates(self) -> list[int]:
        """Vertices that can be selected now, ascending."""
        return np.flatnonzero((self.missing == 0) & (self.devices < 0)).tolist()

    @property
    def done(self) -> bool:
        """Whether every vertex has a device."""
        return len(self.order) == len(self.devices)

    def place(self, vertex: int, device: int) -> None:
        """Give a candidate a device, and plan it there."""
        tables = self.instance.tables
        slots, arrival_s = self.slot_free_s[device], self.arrival_s(vertex, device)
        slot = int(np.argmin(np.maximum(slots, arrival_s)))  # the first on which it begins soonest
        self.begin_s[vertex] = max(slots[slot], arrival_s)
        self.end_s[vertex] = self.begin_s[vertex] + tables.exec_s[vertex, device]
        slots[slot] = self.end_s[vertex]
        free_s = self._started_s(len(self._moves(vertex, device)) + 1)
        self.held_bytes[device] += self.added_bytes(vertex, device)
        inputs = tables.input[tables.input_ptr[vertex] : tables.input_ptr[vertex + 1]]
        self.inputs_on[device].update(inputs.tolist())
        arrived_s, _ = self._arrived(vertex, device)
        self.there_s, self.link_free_s = self._moved(vertex, device)
        self.arrived_s, self.host_free_s = arrived_s, free_s
        self.devices[vertex] = device
        self.order.append(vertex)
        for e in range(tables.edge_ptr[vertex], tables.edge_ptr[vertex + 1]):
            self.missing[tables.edge_reader[e]] -= 1
        for e, producer in self.reads(vertex):
            self._read(int(tables.edge_tensor[e]), producer)

    def _read(self, tensor: int, producer: int) -> None:
        """Count one reader less of a tensor; free it wherever it is if that was the last."""
        self.unread[tensor] -= 1
        if not self.unread[tensor]:
            moved_to = [d for d in range(self.num_devices) if (tensor, d) in self.there_s]
            for device in (int(self.devices[producer]), *moved_to):
                self.held_bytes[device] -= self.instance.tables.tensor_bytes[tensor]

    def added_bytes(self, vertex: int, device: int) -> float:
        """Bytes that a vertex would add to a device: its outputs, and what it reads there."""
        tables = self.instance.tables
        away = [
            int(tables.edge_tensor[e]) for e, p in self.reads(vertex) if self.devices[p] != device
        ]
        copied = [tensor for tensor in away if (tensor, device) not in self.there_s]
        own = tables.input[tables.input_ptr[vertex] : tables.input_ptr[vertex + 1]]
        new = [x for x in own.tolist() if x not in self.inputs_on[device]]
        read_bytes = tables.tensor_bytes[copied].sum() + tables.input_bytes[new].sum()
        return float(tables.made_bytes[vertex] + read_bytes)

    def running_bytes(self, vertex: int, device: int) -> float:
        """Bytes on a device while a vertex would run there."""
        own = self.added_bytes(vertex, device) + self.instance.tables.temporary_bytes[vertex]
        return float(self.held_bytes[device] + own)

    def arrival_s(self, vertex: int, device: int) -> float:
        """When a vertex could begin on a device but for its slots: inputs there, moves started."""
        tables, (there_s, _) = self.instance.tables, self._moved(vertex, device)
        started_s = self._started_s(len(self._moves(vertex, device)))
        arrived_s, _ = self._arrived(vertex, device)
        from_host = [arrived_s[x, device] for x in self._from_host(vertex)]
        made = (
            self.end_s[p] + tables.hop_s
            if self.devices[p] == device
            else there_s[int(tables.edge_tensor[e]), device]
            for e, p in self.reads(vertex)
        )
        return max((*from_host, *made, started_s), default=0.0)

    def _started_s(self, moves: int) -> float:
        """When the host has started all that is planned, and some transfers after that."""
        return self.host_free_s + moves * self.instance.tables.dispatch_s

    def _moves(self, vertex: int, device: int) -> list[tuple[str, int]]:
        """The transfers to a device that a vertex needs: from the host, and of tensors."""
        tables = self.instance.tables
        host = [("host", x) for x in self._from_host(vertex) if (x, device) not in self.arrived_s]
        away = [
            ("tensor", int(tables.edge_tensor[e]))
            for e, producer in self.reads(vertex)
            if self.devices[producer] != device
        ]
        missing = [each for each in away if (each[1], device) not in self.there_s]
        return list(dict.fromkeys([*host, *missing]))

    def _from_host(self, vertex: int) -> list[int]:
        """The inputs that a vertex reads and that come from the host, by their numbers."""
        tables = self.instance.tables
        first, end = tables.arriving_ptr[vertex : vertex + 2]
        return list(tables.arriving[first:end].tolist())

    def _arrived(
        self, vertex: int, device: int
    ) -> tuple[dict[tuple[int, int], float], list[float]]:
        """When inputs are there and links are free after those of a vertex came from the host."""
        tables, link = self.instance.tables, int(self.instance.tables.host_links[device])
        arrived_s, free_s = dict(self.arrived_s), list(self.link_free_s)
        for x in self._from_host(vertex):
            if (x, device) in arrived_s:
                continue
            begin_s = max(free_s[link], self._started_s(len(arrived_s) - len(self.arrived_s)))
            took_s = float(tables.arriving_s[x, device])
            if tables.lanes[link]:
                free_s[link] = begin_s + took_s / tables.lanes[link]
            arrived_s[x, device] = begin_s + took_s + tables.hop_s
        return arrived_s, free_s

    def _moved(self, vertex: int, device: int) -> tuple[dict[tuple[int, int], float], list[float]]:
        """When tensors are there and links are free after moving a vertex's inputs to a device."""
        tables = self.instance.tables
        there_s, (arrived_s, free_s) = dict(self.there_s), self._arrived(vertex, device)
        from_host = len(arrived_s) - len(self.arrived_s)
        for e, producer in sorted(self.reads(vertex), key=self._turn):
            source, tensor = int(self.devices[producer]), int(tables.edge_tensor[e])
            if source == device or (tensor, device) in there_s:
                continue
            link = tables.route[source, device]
            started_s = self._started_s(from_host + len(there_s) - len(self.there_s))
            begin_s = max(self.end_s[producer] + tables.hop_s, free_s[link], started_s)
            took_s = self.move_s(e, source, device)
            if tables.lanes[link]:
                free_s[link] = begin_s + took_s / tables.lanes[link]
            there_s[tensor, device] = begin_s + took_s + tables.hop_s
        return there_s, free_s

    def _turn(self, read: tuple[int, int]) -> tuple[float, float, int]:
        """What inputs are moved in the order of: the first to be made, the larger, the lower id."""
        edge, producer = read
        bytes_ = float(self.instance.tables.edge_bytes[edge])
        return float(self.end_s[producer]), -bytes_, edge

    def move_s(self, edge: int, source: int, target: int) -> float:
        """Seconds to move the tensor of an edge between two devices."""
        if source == target:
            return 0.0
        tables = self.instance.tables
        latency_s, slope = tables.latency_s[source, target], tables.s_per_byte[source, target]
        return float(tables.edge_fixed_s[edge] + latency_s + tables.edge_bytes[edge] * slope)

    def reads(self, vertex: int) -> list[tuple[int, int]]:
        """(edge, producer) of every input of a vertex."""
        return [(e, int(self.instance.edges[0, e])) for e in self.producers[vertex]]

    def siblings(self, vertex: int) -> list[tuple[int, int]]:
        """(edge, producer) of the placed heads of chains that meet where a vertex's tensors do."""
        tables = self.instance.tables
        own = range(tables.edge_ptr[vertex], tables.edge_ptr[vertex + 1])
        pairs = [
            (e, int(self.instance.edges[0, e]))
            for edge in own
            for e in np.flatnonzero(tables.edge_meets == tables.edge_meets[edge]).tolist()
        ]
        return [(e, p) for e, p in pairs if self.devices[p] >= 0 and tables.is_head[p]]

    def vertex_state(self) -> FloatArray:
        """(n, 3) the columns of VERTEX_STATE."""
        placed = self.devices >= 0
        candidate = (self.missing == 0) & ~placed
        end = squeeze(self.end_s / self.instance.tables.scale_s)
        return np.stack([placed, candidate, end], axis=1)

    def device_features(self, vertex: int) -> FloatArray:
        """(D, 30) the columns of DEVICE_FEATURES for a candidate, scaled and squeezed."""
        raw = np.array([self._of_device(vertex, d) for d in range(self.num_devices)])
        names = list(DEVICE_FEATURES)
        work, start = raw[:, names.index("device_work")], raw[:, names.index("earliest_start")]
        end = start + raw[:, names.index("exec")]
        relative = np.stack([work - work.min(), start - start.min(), end - end.min()], axis=1)
        same = [self._memory(vertex), self._spread(), self._host(vertex)]
        values = np.concatenate([raw, relative, *same, self._guide(vertex)], axis=1)
        shares = values[:, NOT_SECONDS]
        values = squeeze(values / self.instance.tables.scale_s)
        values[:, NOT_SECONDS] = shares
        return values

    def scored(self, vertex: int, most: int) -> list[int]:
        """The devices that a policy scores for a candidate, ascending: `most` at most.

        If there are more, the best by one feature after the other, see `SCORED_BY`.
        """
        if most <= 0 or self.num_devices <= most:
            return list(range(self.num_devices))
        table, chosen = self.device_features(vertex), list[int]()
        for turn in range(most):
            key = SCORED_BY[turn % len(SCORED_BY)]
            value = -table[:, key] if key in MOST_OF else table[:, key].copy()
            value += WEIGHT_OF_END * table[:, EXTRA_END]
            value += WEIGHT_OF_OVERFULL * table[:, OVERFULL]
            left = [d for d in range(self.num_devices) if d not in chosen]
            best = left[0]
            for d in left:
                best = d if value[d] < value[best] - SAME else best
            chosen.append(best)
        return sorted(chosen)

    def _spread(self) -> FloatArray:
        """(D, 3) which devices are used, how many, and how much is placed."""
        tables, used = self.instance.tables, np.zeros(self.num_devices, bool)
        used[self.devices[self.devices >= 0]] = True
        total_s = tables.work_s.sum()
        placed = tables.work_s[self.order].sum() / total_s if total_s > 0 else 0.0
        same = np.tile([used.mean(), placed], (self.num_devices, 1))
        return np.concatenate([~used[:, None], same], axis=1)

    def _host(self, vertex: int) -> FloatArray:
        """(D, 6) host seconds of moving a vertex's inputs, the host's load, what never changes."""
        tables, end_s = self.instance.tables, self.end_s.max(initial=0.0)
        moves = [len(self._moves(vertex, d)) for d in range(self.num_devices)]
        load = self.host_free_s / end_s if end_s > 0 else 0.0
        same = np.tile([load, *tables.outlook], (self.num_devices, 1))
        return np.concatenate([tables.dispatch_s * np.array(moves)[:, None], same], axis=1)

    def _guide(self, vertex: int) -> FloatArray:
        """(D, 6) where the guide has a vertex, its readers, and the work of what is not placed; and
        how that compares with when the vertex ends there.
        """
        tables, own = self.instance.tables, int(self.guide[vertex])
        found = np.zeros((self.num_devices, 6))
        if own >= 0:
            found[own, 0] = 1.0
        there: dict[tuple[int, int], int] = {}  # the first edge of a tensor to a device
        for e in range(tables.edge_ptr[vertex], tables.edge_ptr[vertex + 1]):
            to = int(self.guide[tables.edge_reader[e]])
            if to >= 0:
                there.setdefault((int(tables.edge_tensor[e]), to), e)
        for d in range(self.num_devices):
            found[d, 1] = sum(self.move_s(e, d, to) for (_, to), e in there.items())
        if (self.guide >= 0).any():
            left = np.flatnonzero((self.devices < 0) & (np.arange(len(self.guide)) != vertex))
            for d in range(self.num_devices):
                later = left[self.guide[left] == d]
                here = np.flatnonzero(self.devices == d)
                found[d, 2] = tables.exec_s[np.concatenate([here, later]), d].sum()
            found[:, 3] = found[:, 2] - found[:, 2].min()
        if self.guide_times is not None and self.guide_times[0, vertex] >= 0:
            end_s, slack_s = self.guide_times[:, vertex]
            for d in range(self.num_devices):
                start_s = max(min(self.slot_free_s[d]), self.arrival_s(vertex, d))
                found[d, 4] = start_s + tables.exec_s[vertex, d] - end_s
            found[:, 5] = slack_s
        return found

    def _memory(self, vertex: int) -> FloatArray:
        """(D, 2) how full each device is while a vertex runs there, all and where too full."""
        running = [self.running_bytes(vertex, d) for d in range(self.num_devices)]
        share = np.array(running) / self.instance.tables.memory_bytes
        share = np.minimum(share, MOST_SHARE)
        return np.stack([share, np.where(share > 1.0, share, 0.0)], axis=1)

    def _of_device(self, vertex: int, device: int) -> list[float]:
        """The features of one device that do not compare it with others, in seconds."""
        tables = self.instance.tables
        here = [p for _, p in self.reads(vertex) if self.devices[p] == device]
        siblings = self.siblings(vertex)
        own = range(tables.edge_ptr[vertex], tables.edge_ptr[vertex + 1])
        output = max(own, key=lambda e: (tables.edge_bytes[e], -e), default=-1)
        near = [e for e, p in siblings if self.devices[p] == device]
        distances = [self.move_s(output, device, int(self.devices[p])) for _, p in siblings]
        return [
            float(tables.exec_s[self.devices == device, device].sum()),
            float(sum(tables.exec_s[p, device] for p in here)),
            min((float(self.begin_s[p]) for p in here), default=0.0),
            max((float(self.end_s[p]) for p in here), default=0.0),
            max(min(self.slot_free_s[device]), self.arrival_s(vertex, device)),
            float(sum(tables.edge_move_s[e] for e in near)),
            len(near) / max(tables.num_siblings[vertex], 1.0),
            sum(distances) / max(len(distances), 1),
            float(tables.exec_s[vertex, device]),
            sum(self.move_s(e, int(self.devices[p]), device) for e, p in self.reads(vertex)),
        ]
