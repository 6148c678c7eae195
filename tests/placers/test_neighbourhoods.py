"""Destroy and repair: around a vertex, along an order, group by group."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import graph_of, uniform
from policies.arrays.making import array_policy

from doppler.base.arrays import IntArray
from doppler.mdp.guide import Guide
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.rollout import UNASSIGNED, PartialAssignments
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.neighbourhoods import Population
from doppler.placers.learned.neighbourhoods_kernel import destroy_around_vertex, merge_ends
from doppler.placers.learned.policy_repair import PolicyRepair
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.sim import Simulator
from doppler.topology import Device, Link, Topology, read_topology

CONFIG = NeighbourhoodConfig()
ALWAYS, NEVER = NeighbourhoodConfig(grouped_share=1.0), NeighbourhoodConfig(grouped_share=0.0)
BEST = (2, 4, 5, 6)  # of `filled`


def larger(vertices: int = 200) -> Instance:
    return make_instance(
        Problem(random_dag(vertices=vertices, depth=9, seed=1), read_topology("p100x4"))
    )


def filled(config: NeighbourhoodConfig = CONFIG) -> tuple[Population, IntArray, IntArray]:
    """After 20 random assignments, the best of which are 2, 4, 5 and 6; and their orders.

    Those are at random: an elite has the order of its simulation instead.
    """
    rng = np.random.default_rng(0)
    devices = rng.integers(4, size=(20, 200))
    order = rng.permuted(np.tile(np.arange(200), (20, 1)), axis=1)
    makespans = np.array([9.0, 1.0, 1.0, inf, 2.0, 3.0, *range(4, 18)])
    population = Population(larger(), config)
    population.add(devices[:7], order[:7], makespans[:7])
    population.add(devices[7:], order[7:], makespans[7:])
    return population, devices, order


def test_the_best_are_kept_of_those_as_good_the_last() -> None:
    population, devices, _ = filled()
    assert [elite.cost for elite in population.elites] == [(1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0)]
    for elite, row in zip(population.elites, BEST, strict=True):
        np.testing.assert_array_equal(elite.devices, devices[row])


def test_elites_have_the_order_and_the_times_of_their_simulation() -> None:
    population, _, order = filled()
    instance = population.instance
    simulator = Simulator(instance.problem)
    producers, readers = instance.edges
    for elite in population.elites:
        assignment = instance.assignment(elite.devices, order[0], "")
        trace = simulator.run(instance.graph, assignment)
        execs = ~trace.is_transfer
        begin_s, end_s = np.zeros((2, instance.graph.num_vertices))
        begin_s[trace.vertex[execs]] = trace.begin_s[execs]
        end_s[trace.vertex[execs]] = trace.end_s[execs]
        assert sorted(elite.order) == list(range(200))
        assert (np.diff(begin_s[instance.vertices][elite.order]) >= 0).all()
        place = np.argsort(elite.order)
        assert (place[producers] < place[readers]).all()
        np.testing.assert_array_equal(elite.times[0], end_s[instance.vertices])
        assert elite.times[1].min() == 0 < elite.times[1].max()


def test_assignments_of_others_are_judged_by_their_simulation() -> None:
    population, devices, _ = filled()
    instance = population.instance
    same, order, makespans = population.judged(devices[:3])
    np.testing.assert_array_equal(same, devices[:3])
    table = instance.expand(devices[:3])
    expected = Simulator(instance.problem).makespans(instance.graph, table)
    assert makespans.tolist() == expected.tolist()
    assert order.shape == (3, 200)
    for row in order:
        place = np.argsort(row)
        assert (place[instance.edges[0]] < place[instance.edges[1]]).all()
    assert [len(each) for each in population.judged(devices[:0])] == [0, 0, 0]


def test_adding_tells_whether_the_best_is_new() -> None:
    population, devices, order = filled()
    for makespan_s, is_new in ((5.0, False), (1.0, False), (0.5, True), (inf, False)):
        assert population.add(devices[:1], order[:1], np.array([makespan_s])) == is_new


def test_random_repair_takes_devices_that_are_used() -> None:
    """Of 16 devices, with vertices on two, and none of them a neighbour's."""
    instance = make_instance(Problem(graph_of([1.0] * 60), uniform(16)))
    for probability, few in ((1.0, True), (0.0, False)):
        config = replace(NEVER, near_probability=0.0, used_probability=probability)
        population, order = Population(instance, config), np.arange(60)[None]
        population.add(np.arange(60)[None] % 2 + 3, order, np.ones(1))
        rows = population.neighbours(40, np.random.default_rng(0), 1.0).devices
        assert (set(np.unique(rows)) <= {3, 4}) == few


def test_neighbours_on_a_part_have_its_devices() -> None:
    instance = larger(10)
    part = PolicyRepair(array_policy(PolicyConfig(width=2, rounds=1)), instance, np.array([1, 3]))
    rows = np.array([[0, 1, 2, 3, UNASSIGNED] * 2])
    groups = np.zeros(10, np.int64)
    guide = Guide(np.array([[3, 3, 2, 1, UNASSIGNED] * 2]), np.ones((1, 2, 10)))
    within = part.within(PartialAssignments(rows, groups, guide=guide))
    assert within.devices.tolist() == [[UNASSIGNED, 0, UNASSIGNED, 1, UNASSIGNED] * 2]
    assert within.groups is groups
    assert within.guide.devices.tolist() == [[1, 1, UNASSIGNED, 0, UNASSIGNED] * 2]
    assert within.guide.times is guide.times
    whole = PolicyRepair(part.policy, instance, np.arange(4))
    assert whole.within(PartialAssignments(rows)).devices.tolist() == rows.tolist()


@pytest.mark.parametrize("config", [ALWAYS, NEVER])
def test_most_vertices_stay_where_they_are(config: NeighbourhoodConfig) -> None:
    population, devices, _ = filled(config)
    order = {i: elite.order for i, elite in zip(BEST, population.elites, strict=True)}
    partial = population.neighbours(60, np.random.default_rng(0), 0.0)
    rows, groups = partial.devices, partial.groups
    assert rows.shape == (60, 200)
    assert len(groups) == (200 if config is ALWAYS else 0)
    kept_of = set()
    for number, (row, turns) in enumerate(zip(rows, partial.orders, strict=True)):
        kept = row >= 0
        assert not kept.all()
        of = [i for i in BEST if (row[kept] == devices[i][kept]).all()]
        assert of
        assert any((turns == order[i]).all() for i in of)
        kept_of.update(of)
        assert (row[~kept] == UNASSIGNED).all()
        if config is ALWAYS:
            assert not np.isin(groups[kept], groups[~kept]).any()
        else:
            assert (~kept).sum() <= CONFIG.max_destroyed * 200 + 1
            steps = np.flatnonzero(~kept[turns])
            if number % 2 == 0:  # a stretch of the order
                assert len(steps) == steps[-1] - steps[0] + 1
    assert len(kept_of) == CONFIG.elites
    assert 0.7 < (rows >= 0).mean() < 1.0


@pytest.mark.parametrize("keep_order", [False, True])
def test_neighbours_are_guided_by_what_is_left_of_their_parents(keep_order: bool) -> None:
    population, _, _ = filled()
    partial = population.neighbours(30, np.random.default_rng(0), 0.5, keep_order=keep_order)
    np.testing.assert_array_equal(partial.guide.devices, partial.devices)
    parents = set()
    for row, times in zip(partial.devices, partial.guide.times, strict=True):
        (parent,) = (i for i, e in enumerate(population.elites) if (e.times == times).all())
        differing = [(row != elite.devices).sum() for elite in population.elites]
        assert np.argmin(differing) == parent
        parents.add(parent)
    assert parents == set(range(CONFIG.elites))


def test_groups_are_whole() -> None:
    """All vertices of a group are destroyed, or none."""
    population, _, _ = filled()
    seen = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        if np.random.default_rng(seed).random() >= CONFIG.grouped_share:
            continue
        seen += 1
        same = np.random.default_rng(seed)
        same.random()
        groups = population.draw_groups(same)
        partial = population.neighbours(8, rng, 0.0)
        np.testing.assert_array_equal(partial.groups, groups)
        for row in partial.devices:
            destroyed = row == UNASSIGNED
            assert set(groups[destroyed]).isdisjoint(groups[~destroyed])
    assert seen > 2


@pytest.mark.parametrize("config", [ALWAYS, NEVER])
@pytest.mark.parametrize("random_share", [0.5, 1.0])
def test_some_are_repaired_at_random(config: NeighbourhoodConfig, random_share: float) -> None:
    """Then something is elsewhere; together if it is a group."""
    population, _, _ = filled(config)
    of = {elite.order.tobytes(): elite.devices for elite in population.elites}
    assert len(of) == CONFIG.elites
    partial = population.neighbours(200, np.random.default_rng(0), random_share)
    groups = partial.groups if config is ALWAYS else np.arange(200)
    for row, turns in zip(partial.devices, partial.orders, strict=True):
        assert (row < 4).all()
        moved = np.flatnonzero(row != of[turns.tobytes()])
        assert len(moved)
        for number in np.unique(groups[moved]):
            assert len(np.unique(row[groups == number])) == 1
    left = (partial.devices == UNASSIGNED).any(axis=1).mean()
    assert left == 0.0 if random_share == 1.0 else 0.2 < left < 0.9


def test_random_repair_is_mostly_to_the_device_of_a_neighbour() -> None:
    config = replace(NEVER, max_destroyed=0.0)  # one vertex at a time
    graph = random_dag(vertices=200, depth=9, seed=1)
    instance = make_instance(Problem(graph, read_topology("v100x8")))
    population, rng = Population(instance, config), np.random.default_rng(0)
    devices = rng.integers(8, size=(1, 200))
    population.add(devices, np.arange(200)[None], np.ones(1))
    near = []
    for row in population.neighbours(400, rng, 1.0).devices:
        (vertex,) = np.flatnonzero(row != devices[0])
        producer, reader = instance.edges
        nearby = [*producer[reader == vertex], *reader[producer == vertex]]
        near.append(row[vertex] in devices[0][nearby])
    assert 0.7 < np.mean(near) < 0.95


def test_no_makespan_above_the_worst_elite_need_be_known() -> None:
    population, devices, order = filled()
    assert population.limit_s == 4.0
    few = Population(larger(), CONFIG)
    few.add(devices[:2], order[:2], np.array([2.0, 1.0]))
    assert few.limit_s == inf


def test_the_policy_may_select_a_new_order() -> None:
    partial = filled()[0].neighbours(8, np.random.default_rng(0), 0.0, keep_order=False)
    assert partial.orders.size == 0
    assert (partial.devices == UNASSIGNED).any(axis=1).all()


def test_empty_assignments_sometimes_have_groups() -> None:
    population = Population(larger(), CONFIG)
    made = [population.empty(np.random.default_rng(seed)) for seed in range(30)]
    assert all(partial.devices.size == partial.orders.size == 0 for partial in made)
    grouped = [len(partial.groups) == 200 for partial in made]
    assert 0 < sum(grouped) < 30


def test_what_moves_most_is_put_together_first() -> None:
    """Two chains of three, with much to move along them and little between."""
    edges = {(0, 1): 90.0, (1, 2): 80.0, (3, 4): 70.0, (4, 5): 60.0, (1, 4): 1.0, (2, 5): 1.0}
    instance = make_instance(Problem(graph_of([1.0] * 6, edges), uniform(2)))
    order = np.argsort(-instance.tables.edge_move_s)
    groups = merge_ends(instance.tables, order, np.ones(6), 3.0)
    assert len(set(groups[:3].tolist())) == len(set(groups[3:].tolist())) == 1
    assert groups[0] != groups[3]
    assert len(set(merge_ends(instance.tables, order, np.ones(6), 6.0).tolist())) == 1
    assert len(set(merge_ends(instance.tables, order, np.ones(6), 1.9).tolist())) == 6


@settings(max_examples=50)
@given(seed=st.integers(0, 1000))
def test_groups_by_the_readable_twin(seed: int) -> None:
    instance, rng = larger(40), np.random.default_rng(seed)
    work, most = rng.random(40), float(rng.random() * 10)
    order = rng.permutation(instance.edges.shape[1])
    sets = [{v} for v in range(40)]
    for producer, reader in instance.edges.T[order]:
        a = next(group for group in sets if producer in group)
        b = next(group for group in sets if reader in group)
        if a is not b and work[list(a)].sum() + work[list(b)].sum() <= most:
            sets.remove(b)
            a |= b
    groups = merge_ends(instance.tables, order, work, most)
    assert sorted(sorted(group) for group in sets) == sorted(
        np.flatnonzero(groups == number).tolist() for number in np.unique(groups)
    )


def test_no_group_has_more_than_its_share_of_work() -> None:
    population = Population(larger(), CONFIG)
    work_s = population.instance.tables.exec_s.mean(axis=1)
    sizes = set()
    for seed in range(10):
        groups = population.draw_groups(np.random.default_rng(seed))
        sums = np.bincount(groups, work_s)
        assert sums.max() <= max(CONFIG.max_group_work * work_s.sum() / 4, work_s.max()) * (
            1 + 1e-12
        )
        sizes.add(len(np.unique(groups)))
    assert len(sizes) > 5


@settings(max_examples=50)
@given(first=st.integers(0, 199), size=st.integers(1, 200))
def test_those_around_a_vertex_hang_together(first: int, size: int) -> None:
    instance = larger()
    inside = destroy_around_vertex(instance.tables, first, size, CONFIG.frontier)
    assert inside[first]
    reached, ends = {first}, instance.edges.T.tolist()
    while True:
        new = {b for a, b in ends if a in reached} | {a for a, b in ends if b in reached}
        grown = reached | {v for v in new if inside[v]}
        if grown == reached:
            break
        reached = grown
    assert reached == set(np.flatnonzero(inside).tolist())
    assert inside.sum() == size or not {v for v in new if not inside[v]}


def test_where_nothing_runs_the_less_memory_it_lacks_the_better() -> None:
    """One device has room for an input and an output of ten, the other for neither."""
    graph = graph_of([1.0] * 4, {(0, 2): 10.0, (1, 2): 1.0, (2, 3): 10.0})
    full = Topology(
        "full",
        (Device("a", memory_bytes=21.0), Device("b", memory_bytes=5.0)),
        (Link("any", 1.0),),
        np.array([[-1, 0], [0, -1]]),
    )
    instance = make_instance(Problem(graph, full))
    every = np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T
    makespans = Simulator(full).makespans(graph, instance.expand(every))
    lent = Simulator(full).lent_shares(graph, instance.expand(every))
    np.testing.assert_array_equal(np.isinf(makespans), lent > 0)
    failed = np.flatnonzero(lent > 0)
    assert len(set(lent[failed].tolist())) > 1
    population, order = Population(instance, CONFIG), np.tile([1, 0, 2, 3], (16, 1))
    population.add(every[failed], order[failed], makespans[failed])
    costs = [elite.cost for elite in population.elites]
    assert costs == sorted({(inf, share) for share in lent[failed].tolist()})[: CONFIG.elites]
    for elite in population.elites:  # which has no simulated order, nor times
        assert elite.order.tolist() == [1, 0, 2, 3]
        assert elite.times.tolist() == [[-1.0] * 4, [0.0] * 4]
    runs = np.flatnonzero(lent == 0)
    assert len(runs)
    population.add(every[runs], order[runs], makespans[runs])
    assert all(elite.cost[0] < inf for elite in population.elites)
