"""How the search of placer `doppler` begins: on parts of the machine, from list schedules."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from mdp.playing import twenty_devices
from policies.arrays.making import array_policy

from doppler.base.arrays import FloatArray
from doppler.datasets import draw_problem
from doppler.mdp.instance import make_instance
from doppler.placers.learned.batches import Batch, BatchKind
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.learned.policy_repair import Samples
from doppler.placers.learned.policy_search import PolicySearch
from doppler.placers.lists.guides import instance_for, listed_best
from doppler.placers.search.annealing import Annealer, SearchConfig
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import Topology, read_topology

SHAPE = PolicyConfig(width=8, rounds=2)
# Four populations from 16 samples on, and small batches.
SMALL = NeighbourhoodConfig(
    samples_per_population=4,
    initial_share=0.5,
    min_initial=0,
    initial_batch=1,
    min_batch=1,
    max_batch=4,
)
PLAIN = NeighbourhoodConfig(polishing_work=0)
ALONE = replace(PLAIN, list_starts=False)


def problem(topology: Topology | str = "p100x4") -> Problem:
    graph = random_dag(vertices=30, depth=6, bytes_per_flop=2e-6, seed=0)
    return Problem(graph, read_topology(topology) if isinstance(topology, str) else topology)


def count_edges(problem: Problem) -> int:
    return len(problem.edges.reader)


def slow_links(num_devices: int) -> Topology:
    """A machine of which one device is the best part."""
    return Topology.uniform(num_devices, flops_per_s=1e13, bandwidth_bytes_per_s=1e5)


def searching(
    topology: Topology, *, samples: int = 16, config: NeighbourhoodConfig = SMALL
) -> PolicySearch:
    placer = DopplerPlacer(array_policy(SHAPE), samples=samples, search=config)
    return placer.begin(instance_for(SHAPE, problem(topology)), 0)


def steps(search: PolicySearch, kind: BatchKind) -> Iterator[tuple[Batch, np.ndarray, FloatArray]]:
    """The batches of a kind that come next, with their devices and makespans."""
    while (batch := search.next) is not None and batch.kind is kind:
        devices, _, makespans = search.step()
        yield batch, devices, makespans


@pytest.mark.parametrize(
    ("topology", "num_parts", "list_starts"),
    [
        (twenty_devices(), 10, True),
        (slow_links(8), 4, False),
        (slow_links(2), 2, False),
    ],
)
def test_populations_begin_on_the_best_parts_and_again_if_there_are_few(
    topology: Topology, num_parts: int, list_starts: bool
) -> None:
    config = replace(SMALL, list_starts=list_starts)
    with closing(searching(topology, config=config)) as search:
        best_s = [makespans.min() for _, _, makespans in steps(search, BatchKind.GREEDY)]
        assert len(best_s) == len(search.parts) == num_parts
        ranked = sorted(range(num_parts), key=lambda part: best_s[part])
        assert ranked != sorted(ranked)
        search.step()
        populations = list(search._populations)
    assert [one.part for one in populations] == (ranked * 2)[:4]
    for one in populations[:num_parts]:
        assert one.elites[0].cost[0] <= best_s[one.part]
    for one in populations[num_parts:]:
        assert one.elites == []  # until it has its first samples


def test_samples_stay_on_the_part_of_their_population() -> None:
    """But for those neighbours that are repaired on the whole machine."""
    with closing(searching(twenty_devices(), samples=200)) as search:
        for batch, devices, _ in steps(search, BatchKind.GREEDY):
            assert np.isin(devices, search.parts[batch.part].devices).all()
        seen = set()
        for batch, devices, _ in steps(search, BatchKind.INITIAL):
            part = search._populations[batch.population % 4].part
            assert np.isin(devices, search.parts[part].devices).all()
            seen.add(part)
        assert len(seen) == 4
        everywhere = set()
        for batch, devices, _ in steps(search, BatchKind.NEIGHBOUR):
            part = search._populations[batch.population % len(search._populations)].part
            is_inside = bool(np.isin(devices, search.parts[part].devices).all())
            assert is_inside or not batch.stays
            everywhere.add(is_inside)
    assert everywhere == {True, False}


def test_batches_can_begin_with_neighbours() -> None:
    config = NeighbourhoodConfig(samples_per_population=4, initial_share=0.0, min_initial=0)
    placer = DopplerPlacer(array_policy(SHAPE), samples=32, search=config)
    kinds = [batch.kind for batch in placer._batches(make_instance(problem("cpu2")), 2)]
    assert BatchKind.INITIAL not in kinds
    assert placer.place(problem("cpu2")).placer == "doppler"


@pytest.mark.parametrize("seed", range(3))
def test_no_list_schedule_is_better_whatever_the_policy(seed: int) -> None:
    drawn = draw_problem("train", seed, max_vertices=60, ratios=(0.5, 1)).problem
    simulator, listed = Simulator(drawn), listed_best(drawn)
    (listed_s,) = simulator.makespans(drawn.graph, listed[None])
    for samples in (0, 8):
        placer = DopplerPlacer(array_policy(SHAPE, seed), samples=samples)
        placed = placer.place(drawn)
        assert simulator.makespans(drawn.graph, [placed])[0] <= listed_s
    alone = DopplerPlacer(array_policy(SHAPE, seed), samples=8, search=ALONE)
    devices, _, makespans = alone.propose(make_instance(drawn))
    assert listed[drawn.graph.assigned].tolist() not in devices.tolist()
    assert makespans.min() > listed_s  # random weights are no match for it


def test_a_policy_without_a_guide_begins_from_its_greedy_assignments() -> None:
    policy = array_policy(PolicyConfig(width=8, rounds=2, features="paper"))
    found = [
        DopplerPlacer(policy, samples=8, search=search).propose(make_instance(problem()))
        for search in (PLAIN, ALONE)
    ]
    assert len(found[0][0]) == 3 + 8
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_instance_need_not_have_the_guide() -> None:
    placer = DopplerPlacer(array_policy(SHAPE), samples=24)
    bare, guided = make_instance(problem()), instance_for(placer.config, problem())
    assert len(bare.guide.devices) == 0 < len(guided.guide.devices)
    for one, other in zip(placer.propose(bare), placer.propose(guided), strict=True):
        np.testing.assert_array_equal(one, other)


def test_polishing_goes_on_from_the_best_of_all() -> None:
    with closing(searching(read_topology("p100x4"), samples=40)) as search:
        best_s = inf
        while search.next is not None:
            best_s = min(best_s, search.step()[2].min())
        (devices, order, makespans), interrupted = search.polish(SMALL.polishing(60, None))
    table = search.instance.expand(devices)
    found = Simulator(search.instance.problem).makespans(search.instance.graph, table)
    np.testing.assert_array_equal(makespans, found)
    assert (np.sort(order, axis=1) == np.arange(30)).all()
    assert makespans[0] < best_s
    assert not interrupted


def test_it_polishes_after_the_samples() -> None:
    placer = DopplerPlacer(array_policy(SHAPE), samples=24)
    plain = DopplerPlacer(array_policy(SHAPE), samples=24, search=PLAIN)
    instance = make_instance(problem())
    (devices, _, makespans), (fewer, _, _) = (each.propose(instance) for each in (placer, plain))
    assert devices[: len(fewer)].tolist() == fewer.tolist()
    assert len(devices) == len(fewer) + 1
    assert makespans[-1] < makespans[:-1].min()


def test_with_a_budget_polishing_takes_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples of a small graph are made long before a second is over."""
    budgets: list[SearchConfig] = []
    polish = PolicySearch.polish

    def noted(search: PolicySearch, config: SearchConfig) -> tuple[Samples, bool]:
        budgets.append(config)
        return polish(search, replace(config, seconds=0.01))

    monkeypatch.setattr(PolicySearch, "polish", noted)
    placer = DopplerPlacer(array_policy(SHAPE), samples=24)
    for budget_s in (1e3, None):
        placer.place(problem(), budget_s=budget_s)
    assert budgets[0].evaluations is None
    assert 900 < budgets[0].seconds < 1e3
    assert budgets[1].evaluations == placer.search.polishing_work // (30 + count_edges(problem()))


def test_the_smallest_graphs_are_not_polished_for_longer() -> None:
    config = NeighbourhoodConfig(polishing_least=64)
    few, more = (config.polishing(size, None).evaluations for size in (64, 65))
    assert [config.polishing(size, None).evaluations for size in (0, 1, 63)] == [few] * 3
    assert few == config.polishing_work // 64
    assert more == config.polishing_work // 65


def test_without_polishing_it_ends_after_its_samples() -> None:
    placer = DopplerPlacer(array_policy(SHAPE), samples=24)
    plain = DopplerPlacer(array_policy(SHAPE), samples=24, search=PLAIN).place(problem())
    assert placer.without_polishing().place(problem(), budget_s=1e6) == plain
    assert placer.search.polishing_work


def test_ctrl_c_while_polishing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Annealer, *__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Annealer, "_advance", interrupted)
    solution = DopplerPlacer(array_policy(SHAPE), samples=24).solve(problem())
    assert solution.interrupted
    plain = DopplerPlacer(array_policy(SHAPE), samples=24, search=PLAIN).solve(problem())
    assert solution.assignment.devices.tolist() == plain.assignment.devices.tolist()


def test_where_nothing_fits_it_ends_with_something() -> None:
    devices = tuple(replace(one, memory_bytes=1.0) for one in problem().topology.devices)
    full = Problem(problem().graph, replace(problem().topology, devices=devices))
    found, _, makespans = DopplerPlacer(array_policy(SHAPE), samples=24).propose(
        make_instance(full)
    )
    assert np.isinf(makespans).all()
    assert found.min() >= 0
