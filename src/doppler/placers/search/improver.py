"""Improver: short searches from given assignments, on the compiled simulator."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from doppler.assignment import check_devices
from doppler.base.arrays import FloatArray, IntArray, csr
from doppler.placers.search.judging import MOVE_FEATURES, SLICES
from doppler.placers.search.move_model import MoveModel, blank_model
from doppler.problem import Problem
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator

if TYPE_CHECKING:
    from doppler.placers.search.judge_kernel import Judge
    from doppler.placers.search.moves_kernel import Chain, Neighbourhood
    from doppler.sim.state_kernel import Arrays, Scratch

# The least price of lent memory, as a share of the makespan for all memory once more, and the
# factor by which a move changes it. Of twelve settings the best on 18 problems of split
# `validation` that are short of memory; on 12 of split `train` most of them were as good.
PRICING = (10.0, 1.003)


class Improver:
    """Improves assignments of one graph by annealed local moves.

    Costs are makespans, or their means over several draws of the noise.
    """

    def __init__(self, problem: Problem, sim: SimConfig, *, draws: int = 1, seed: int = 0) -> None:
        self.graph = graph = problem.graph
        simulator = Simulator(problem, sim)
        self.arrays = simulator.arrays(graph, range(seed, seed + draws))
        self.priority = simulator.priority(graph, seed)
        self.neighbourhood = make_neighbourhood(problem)
        self.judge = make_judge(self.arrays, blank_model(), candidates=0)  # its moves are random

    def costs_s(self, devices: IntArray) -> FloatArray:
        """(K,) costs of (K, V) assignments; infinity where memory never suffices."""
        return self.improve(devices, 0, hot=0.0, cold=1.0, seed=0)[1]

    def improve(
        self,
        devices: IntArray,
        moves: int,
        *,
        hot: float,
        cold: float,
        seed: int,
        threads: int = 1,
        closely: bool = False,
    ) -> tuple[IntArray, FloatArray]:
        """(K, V) the best seen in `moves` moves from each of (K, V), and their (K,) costs.

        Most moves of an annealing neither help nor harm. `closely` undoes those: what differs from
        where it began then matters.
        """
        from doppler.placers.search.kernel import INFEASIBLE, improve, undo
        from doppler.sim.state_kernel import make_scratch

        for row in devices:
            check_devices(self.graph, len(self.arrays.memory_bytes), row)
        best, costs_s = devices.copy(), np.zeros(len(devices))

        def work(i: int) -> None:
            scratch = make_scratch(self.arrays)
            chain = make_chain(self.arrays, self.priority, scratch, devices[i])
            improve(
                *(self.arrays, self.neighbourhood, chain, self.judge, self.priority, scratch),
                *((seed + 7919 * i) % 2**32, moves, hot, cold, -1.0),
            )
            if closely:
                undo(*(self.arrays, self.neighbourhood, chain, self.priority, scratch), devices[i])
            best[i], costs_s[i] = chain.best[0], chain.cost[1]

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(len(devices))))
        return best, np.where(costs_s < INFEASIBLE, costs_s, np.inf)


def make_chain(
    arrays: "Arrays",
    priority: FloatArray,
    scratch: "Scratch",
    devices: IntArray,
    quantile: float = -1.0,
    pricing: tuple[float, float] = PRICING,
) -> "Chain":
    """A chain of moves that begins at (V,) devices.

    `pricing` is the least price of lent memory, and the factor by which a move changes the price.
    """
    from doppler.placers.search.kernel import settle
    from doppler.placers.search.moves_kernel import LEAST, Chain

    size = len(devices)
    chain = Chain(
        devices=np.array(devices, np.int64).reshape(1, -1),
        best=np.array(devices, np.int64).reshape(1, -1),
        cost=np.zeros(2),
        lent=np.array([0.0, 0.0, pricing[LEAST]]),
        pricing=np.array(pricing),
        log_vertex=np.zeros(size, np.int64),
        log_device=np.zeros(size, np.int64),
        makespan=np.zeros(1),
        costs=np.zeros(len(arrays.exec_s)),
    )
    settle(arrays, chain, priority, scratch, quantile)
    return chain


def make_judge(
    arrays: "Arrays", model: MoveModel, *, candidates: int, random_share: float = 0.0
) -> "Judge":
    """How one chain chooses moves: of that many candidates; without any, moves are random."""
    from doppler.placers.search.judge_kernel import AT_FIRST, NUM_CLASSES, Judge

    vertices, devices, links = (
        len(each) for each in (arrays.is_input, arrays.memory_bytes, arrays.latency_s)
    )

    def floats(*shape: int) -> FloatArray:
        return np.zeros(shape, np.float64)

    def ints(*shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    return Judge(
        inner=model.inner.astype(np.float64),
        inner_bias=model.inner_bias.astype(np.float64),
        outer=model.outer.astype(np.float64),
        outer_bias=float(model.outer_bias[0]),
        random_share=random_share,
        features=floats(candidates, len(MOVE_FEATURES)),
        vertices=ints(candidates, vertices),
        devices=ints(candidates, vertices),
        counts=ints(candidates),
        classes=ints(candidates),
        cuts=floats(2),
        rates=np.full(NUM_CLASSES, AT_FIRST),
        now=ints(vertices),
        begin_s=floats(vertices),
        end_s=floats(vertices),
        slack_s=floats(vertices),
        wait_s=floats(vertices),
        busy=floats(devices, SLICES),
        load=floats(devices),
        link_load=floats(links),
        held=floats(devices),
        makespan_s=floats(1),
        whole=floats(3),
    )


def make_neighbourhood(problem: Problem) -> "Neighbourhood":
    """What moves are made of: the dataflow between assigned vertices, and meta-ops."""
    from doppler.placers.search.moves_kernel import Neighbourhood

    graph, a, b = problem.graph, problem.edges.producer, problem.edges.reader
    size = graph.num_vertices
    next_ptr, following = csr(np.concatenate([a, b]), np.concatenate([b, a]), size)
    numbers: dict[tuple[str, str], int] = {}
    group_of = np.full(size, -1, np.int64)
    for v in graph.assigned.tolist():
        if graph.meta_ops[v]:
            key = (graph.meta_ops[v], graph.roles[v])
            group_of[v] = numbers.setdefault(key, len(numbers))
    members = np.flatnonzero(group_of >= 0)
    group_ptr, group = csr(group_of[members], members, len(numbers))
    movable = graph.topological_order[~graph.is_input[graph.topological_order]]
    return Neighbourhood(movable, group_ptr, group, group_of, next_ptr, following)
