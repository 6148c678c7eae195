"""Lower bounds: seconds that no assignment of a graph on a topology can go below."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, rows
from doppler.base.notebook import html_table, number
from doppler.cost import CostModel
from doppler.graph.fast_levels import bottom_levels, top_levels
from doppler.graph.graph import Graph
from doppler.placers.bounds.memory import allowed, split_s, streaming_s
from doppler.problem import Problem
from doppler.resolve import as_problem
from doppler.scheduler.choose import DYNAMIC, FIXED, check_mode
from doppler.scheduler.list_scheduling import without_host
from doppler.topology.topology import Topology

MAX_LP_ROWS = 2000  # distinct vertices up to which the linear program is solved
CUTS = 24  # points in time that windows of work may begin and end at
# Gap up to which an assignment counts as optimal: exact solvers round durations by 2^-29 of the
# makespan, and a path of hundreds of them adds up to less than this.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Seconds every deterministic run of the graph takes at least, for different reasons.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> bounds = dp.lower_bounds(graph, "p100x4")
    >>> bounds.best_s >= bounds.work_s
    True
    """

    path_s: float  # the longest path, every vertex on its fastest device, nothing moved
    work_s: float  # all work spread perfectly over all slots
    window_s: float  # what can neither begin early nor end late, spread over all slots
    host_s: float  # the host starts one exec after the other
    memory_s: float = 0.0  # the best of these where devices are too small for a vertex or for all
    arrival_s: float = 0.0  # all inputs that come from the host, spread over its links

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {number(getattr(self, name))}" for name in self.__slots__)
        return f"<LowerBounds: best_s {number(self.best_s)} ({parts})>"

    def _repr_html_(self) -> str:
        names = ("best_s", *self.__slots__)
        rows = ((name, number(getattr(self, name))) for name in names)
        return html_table("LowerBounds", ("bound", "seconds"), rows, count=len(names))

    @property
    def best_s(self) -> float:
        """The largest of them."""
        every = self.path_s, self.work_s, self.window_s, self.host_s, self.memory_s, self.arrival_s
        return max(every)


def lower_bounds(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    *,
    cost_model: CostModel | None = None,
    contention: bool = True,
) -> LowerBounds:
    """Lower bounds on the makespan of `graph` on `topology` under any assignment.

    Each may be given as the path of its file, and the topology as the name of a preset.
    `cost_model` prices the graph, instead of the default one. They are bounds for the machine
    under load, as the simulator has it; those of `contention=False` also hold where kernels take
    no longer than alone.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.lower_bounds(graph, "p100x4").best_s <= trace.makespan_s
    True
    """
    problem = as_problem(graph, topology, cost_model)
    if not contention:
        problem = replace(problem, topology=problem.topology.without_contention())
    return bounds_of(problem)


def bounds_of(problem: Problem, mode: str = DYNAMIC, *, quick: bool = False) -> LowerBounds:
    """Lower bounds on the makespan of any assignment of a problem.

    Those that are `quick` leave out windows, memory and linear programming. In mode `fixed` the
    host sees no end, and starts tasks before they are ready: of its costs, only those of starting
    one exec after the other count.
    """
    assigned, dispatch_s = problem.graph.assigned, problem.topology.host.dispatch_s
    if not len(assigned):
        _ = problem.costs  # an error where there are none
        return LowerBounds(0.0, 0.0, 0.0, 0.0)
    if check_mode(mode) == FIXED:
        problem = without_host(problem)
    plain = _Bounds(problem, problem.costs.exec_s, quick=quick)
    return LowerBounds(
        path_s=plain.path_s(),
        work_s=plain.work_s(),
        window_s=0.0 if quick else plain.window_s(),
        # The last exec to be started has waited for all the others to be dispatched.
        host_s=float(len(assigned) * dispatch_s + plain.fastest[assigned].min()),
        memory_s=0.0 if quick else _memory_s(problem, plain),
        arrival_s=_arrival_s(problem),
    )


def proven_bound_s(
    problem: Problem, assignment: Assignment | None = None, mode: str = DYNAMIC
) -> float:
    """The best lower bound known: `bounds_of`, or a stronger one that the assignment carries.

    One that was proven for another graph, machine or costs does not count. What holds without a
    host holds in mode `fixed`.
    """
    bound_s = bounds_of(problem, mode).best_s
    if assignment is None or assignment.bound_s <= bound_s:
        return bound_s
    if mode == FIXED:
        problem = without_host(problem)
    return assignment.bound_s if assignment.problem == problem.digest() else bound_s


def gap(makespan_s: float, bound_s: float) -> float:
    """`makespan / bound - 1`: 0 is proven optimal."""
    return makespan_s / bound_s - 1.0 if bound_s > 0 else 0.0


def is_optimal(makespan_s: float, bound_s: float) -> bool:
    """Whether the bound proves that no assignment is faster, up to the rounding of solvers."""
    return makespan_s <= bound_s * (1 + ROUNDING)


class _Bounds:
    """Bounds that follow from a table of exec seconds; infinity is where a vertex cannot run."""

    def __init__(self, problem: Problem, exec_s: FloatArray, *, quick: bool = False) -> None:
        """`exec_s` is (V, D)."""
        graph, topology = problem.graph, problem.topology
        self.assigned, self.topology = graph.assigned, topology
        self.table = exec_s[graph.assigned]
        self.fastest: FloatArray = exec_s.min(axis=1)
        self.begin = _earliest_begins(problem, self.fastest)
        hops_s = np.full(graph.num_tensors, _hop_s(topology))
        # (V,) seconds from the begin of a vertex to the end of everything after it, at least.
        self.tail = bottom_levels(graph, self.fastest, hops_s).length_s
        self.weights = _device_weights(self.table, topology, solved=not quick)

    def path_s(self) -> float:
        """The longest path, every vertex on its fastest device, nothing moved."""
        return float((self.begin + self.tail)[self.assigned].max() + 0.0)

    def work_s(self) -> float:
        """All work spread perfectly over all slots."""
        return _dual_s(self.table, self.topology, self.weights)

    def window_s(self) -> float:
        """The best bound of the form: nothing of a set can begin before a, all is followed by b.

        Then its work, spread over all slots, fits between: makespan ≥ a + work + b.
        """
        begin = self.begin[self.assigned]
        # From the end of a vertex to the end of all.
        after = (self.tail - self.fastest)[self.assigned]
        best = 0.0
        for a in _cuts(begin):
            late = begin >= a
            for b in _cuts(after[late]):
                members = self.table[late & (after >= b)]
                best = max(best, float(a + b) + _dual_s(members, self.topology, self.weights))
        return best


def _memory_s(problem: Problem, plain: _Bounds) -> float:
    """The best bound that memory gives: see `bounds.memory`; 0 where it gives none."""
    if not problem.may_run_out:
        return 0.0
    found, best = plain, 0.0
    fits = allowed(problem)
    if not fits.all():
        found = _Bounds(problem, np.where(fits, problem.costs.exec_s, np.inf))
        best = max(found.path_s(), found.work_s(), found.window_s())
    if problem.topology.has_host_links:  # what does not fit may leave for the host
        return max(best, streaming_s(problem))
    return max(best, split_s(problem, found.begin, found.tail, found.fastest))


def _earliest_begins(problem: Problem, fastest_s: FloatArray) -> FloatArray:
    """(V,) seconds before which a vertex cannot begin: all before it on the fastest devices.

    Every hop costs an exec, a completion to be seen and a dispatch. Nothing is moved, but what
    arrives from the host, which needs a dispatch and a completion too.
    """
    if not problem.is_arriving.any():
        hops_s = np.full(problem.graph.num_tensors, _hop_s(problem.topology))
        begin_s = top_levels(problem.graph, fastest_s, hops_s).length_s
        return np.where(problem.graph.is_input, 0.0, begin_s + problem.topology.host.dispatch_s)
    return _begins_after_arrivals(problem, fastest_s)


def _hop_s(topology: Topology) -> float:
    """What the host takes from the end of a task to the begin of one that waits for it."""
    return topology.host.completion_s + topology.host.dispatch_s


def _begins_after_arrivals(problem: Problem, fastest_s: FloatArray) -> FloatArray:
    """The same where inputs arrive from the host."""
    graph, host, fastest = problem.graph, problem.topology.host, fastest_s.tolist()
    reads = rows(graph.read_ptr, graph.read_tensor)
    inputs, begin = graph.is_input.tolist(), [0.0] * graph.num_vertices
    arrives = np.where(problem.is_arriving, host.dispatch_s + _least_arrival_s(problem), -inf)
    end = arrives.tolist()  # of what makes or brings a tensor
    outputs = rows(graph.output_ptr, graph.output_tensor)
    for v in graph.topological_order.tolist():
        if not inputs[v]:
            seen = [end[t] + host.completion_s for t in reads[v]]
            begin[v] = max([0.0, *seen]) + host.dispatch_s
            for tensor in outputs[v]:
                end[tensor] = begin[v] + fastest[v]
    return np.array(begin)


def _least_arrival_s(problem: Problem) -> FloatArray:
    """(T,) seconds from the host to the device it is nearest to; 0 where no links are known."""
    if not problem.topology.has_host_links:
        return np.zeros(problem.graph.num_tensors)
    least: FloatArray = problem.transfer_table(problem.topology.host_links).min(axis=1)
    return least


def _arrival_s(problem: Problem) -> float:
    """All that arrives, each once and over its best link, spread over the lanes to the host."""
    comes = problem.is_arriving & (np.diff(problem.graph.reader_ptr) > 0)
    lanes = problem.lanes[np.unique(problem.topology.host_links)] if comes.any() else np.zeros(1)
    if not lanes.all():
        return 0.0
    return float(_least_arrival_s(problem)[comes].sum() / lanes.sum())


def _cuts(values: FloatArray) -> FloatArray:
    """Some of the values, spread over all of them."""
    cuts: FloatArray = np.unique(np.quantile(values, np.linspace(0, 1, CUTS), method="lower"))
    return cuts


def _dual_s(table: FloatArray, topology: Topology, weights: list[FloatArray]) -> float:
    """Σ_v min_d(y_d · exec_s[v, d]) / Σ_d(y_d · slots_d), a bound for any weights y ≥ 0.

    The dual of spreading work over unequal devices, and the weights need not be the best: what
    a solver makes of them, rounded as it may be, is a bound.
    """
    slots = np.array([d.slots for d in topology.devices], np.float64)
    with np.errstate(invalid="ignore"):  # 0 · ∞: a vertex that cannot run there
        sums = [np.fmin.reduce(table * y, axis=1).sum() for y in weights]
    return max(float(s / (y * slots).sum()) for s, y in zip(sums, weights, strict=True))


def _device_weights(table: FloatArray, topology: Topology, *, solved: bool) -> list[FloatArray]:
    """Weights of the devices that give good bounds: equal ones, by speed, and the best for all.

    The last are those of a linear program, which is `solved` or not.
    """
    weights = [np.ones(topology.num_devices)]
    total = np.where(np.isfinite(table), table, table.min(axis=1, keepdims=True)).sum(axis=0)
    if total.min() > 0:
        weights.append(total.min() / total)
    if solved and (table != table[:, :1]).any():
        weights += _best_weights(table, topology)
    return weights


def _best_weights(table: FloatArray, topology: Topology) -> list[FloatArray]:
    """The weights with the best `_dual_s`, by linear programming; none where that is large.

    They are the prices of the devices in: spread all work so that the longest load is least.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds, count = np.unique(table, axis=0, return_counts=True)
    if len(kinds) > MAX_LP_ROWS:
        return []
    size, devices = kinds.shape
    can = np.isfinite(kinds)
    seconds = np.where(can, kinds, 0.0)  # never used: that share is held at 0
    amount = seconds * count[:, None] / (seconds.max() or 1.0)  # if all of a kind ran on a device
    slots = [d.slots for d in topology.devices]
    # Variables: the share of each kind on each device, then the longest load.
    shares = np.arange(size * devices)
    load = coo_array(
        (
            np.concatenate([amount.ravel(), -np.array(slots, np.float64)]),
            (
                np.concatenate([shares % devices, np.arange(devices)]),
                np.concatenate([shares, np.full(devices, size * devices)]),
            ),
        )
    )
    whole = coo_array(
        (np.ones(size * devices), (shares // devices, shares)), shape=(size, size * devices + 1)
    )
    goal = np.zeros(size * devices + 1)
    goal[-1] = 1.0
    limits = np.stack([np.zeros(len(goal)), np.append(np.where(can.ravel(), 1.0, 0.0), np.inf)], 1)
    solved = linprog(
        goal, A_ub=load, b_ub=np.zeros(devices), A_eq=whole, b_eq=np.ones(size), bounds=limits
    )
    if not solved.success:
        return []
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    return [prices] if prices.sum() > 0 else []
