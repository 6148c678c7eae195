"""Problems: what is drawn is valid, repeats, stays in its split, and can be placed."""

from collections import Counter
from functools import cache
from math import inf, isfinite
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from doppler.base.arrays import FloatArray
from doppler.cost import DefaultCostModel
from doppler.datasets import (
    FAMILIES,
    MACHINES,
    MAX_VERTICES,
    RATIOS,
    SPLITS,
    DrawnProblem,
    communication_ratio,
    draw_problem,
    make_problem,
    problems,
)
from doppler.datasets.memory import live_bytes
from doppler.datasets.shapes import in_tree, pipeline
from doppler.errors import ConfigError, UnknownNameError
from doppler.graph import Graph
from doppler.graph.builder import GraphBuilder
from doppler.placers.bounds.lower import lower_bounds
from doppler.placers.lists.schedulers import HeftPlacer, MemoryEtfPlacer
from doppler.placers.lists.trivial import RoundRobinPlacer, SinglePlacer
from doppler.problem import Problem
from doppler.programs.registry import WORKLOADS
from doppler.sim.simulator import Simulator
from doppler.topology import Device, Link, Topology, read_topology

SHAPES = [name for name, family in FAMILIES.items() if not family.is_workload]
splits = st.sampled_from(SPLITS)
seeds = st.integers(0, 2**63)


@cache
def some(split: str) -> list[DrawnProblem]:
    return list(problems(split, 60, seed=1))


def all_of_them() -> list[DrawnProblem]:
    return [problem for split in SPLITS for problem in some(split)]


def limited() -> list[DrawnProblem]:
    return [p for p in all_of_them() if isfinite(p.topology.devices[0].memory_bytes)]


@cache
def makespans_s(problem: DrawnProblem) -> FloatArray:
    """Of HEFT, round-robin, m-ETF and one device for everything."""
    placers = (HeftPlacer(), RoundRobinPlacer(), MemoryEtfPlacer(), SinglePlacer())
    devices = [p.place(problem.problem).devices for p in placers]
    return Simulator(problem.topology).makespans(problem.graph, np.array(devices))


# What is drawn.


@given(splits, seeds, st.integers(60, 300))
@settings(max_examples=30, deadline=None)
def test_a_problem_has_vertices_to_place_and_devices_to_place_them_on(
    split: str, seed: int, max_vertices: int
) -> None:
    problem = draw_problem(split, seed, max_vertices=max_vertices)
    graph, topology = problem.graph, problem.topology
    assert 30 <= graph.num_vertices <= max_vertices
    assert len(graph.assigned) >= graph.num_vertices / 2
    assert 2 <= topology.num_devices <= 16
    assert all(1 <= device.slots <= 4 for device in topology.devices)
    rates = [device.flops_per_s["float16"] for device in topology.devices]
    assert max(rates) / min(rates) <= 8.1
    costs = DefaultCostModel().costs(graph, topology)
    assert (costs.exec_s[graph.assigned].sum(axis=0) > 0).all()
    assert 0 < lower_bounds(graph, topology).best_s < 10
    assert FAMILIES[problem.family].split == MACHINES[problem.machine].split == split
    assert draw_problem(split, seed, max_vertices=max_vertices) == problem


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_in_its_own_range(name: str) -> None:
    family = FAMILIES[name]
    small = make_problem(name, "islands", 0, max_vertices=family.smallest).graph
    assert small.num_vertices <= family.smallest
    if family.largest < 2000:
        low, high = round(0.8 * family.largest), family.largest
        graph = make_problem(name, "three-speeds", 1, min_vertices=low, max_vertices=high).graph
        assert low <= graph.num_vertices <= high


def test_by_default_every_family_stays_below_the_limit() -> None:
    assert {problem.family for problem in all_of_them()} == set(FAMILIES)
    for problem in all_of_them():
        smallest = FAMILIES[problem.family].smallest
        assert smallest <= problem.graph.num_vertices <= MAX_VERTICES


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_come_as_large_as_asked_for(name: str) -> None:
    graph = make_problem(name, "islands", 3, min_vertices=1800, max_vertices=2000).graph
    assert 1800 <= graph.num_vertices <= 2000


def test_a_problem_of_twenty_thousand_vertices() -> None:
    problem = draw_problem("test", 1, min_vertices=18_000, max_vertices=20_000)
    assert 18_000 <= problem.graph.num_vertices <= 20_000


@pytest.mark.parametrize("name", MACHINES)
def test_machines_are_what_their_names_say(name: str) -> None:
    speeds = {"equal": {1}, "islands": {1}, "ring": {1}, "two-speeds": {2}, "three-speeds": {3}}
    speeds["unequal-islands"] = {2}
    for seed in range(8):
        topology = make_problem("wavefront", name, seed, max_vertices=60).topology
        devices, links = topology.devices, topology.links
        own = len({device.flops_per_s["float32"] for device in devices})
        assert own in speeds.get(name, {1, 2})
        bandwidth = np.array([link.bandwidth_bytes_per_s for link in links])
        if name in ("shared-bus", "host-bounce"):
            assert len(links) == 1
            assert links[0].lanes in ({1} if name == "shared-bus" else {2, 3, 4})
        if name in ("equal", "two-speeds", "three-speeds"):
            assert len(set(bandwidth)) == 1
            assert len(links) == len(devices) * (len(devices) - 1)
        if name in ("islands", "unequal-islands"):
            groups = [device.group for device in devices]
            same, pairs = np.equal.outer(groups, groups), topology.route >= 0
            inside, across = topology.route[same & pairs], topology.route[~same]
            assert len(set(bandwidth[inside])) == len(set(bandwidth[across])) == 1
            assert bandwidth[inside].min() >= 2 * bandwidth[across].max()


def test_meta_ops_hold_alike_vertices() -> None:
    """Shards of one stage share a meta-op, and most meta-ops of a regular shape have several."""
    for name in ("pipeline", "fft", "stencil", "map-reduce", "fork-join"):
        graph = make_problem(name, "equal", 2).graph
        count = Counter(m for m, i in zip(graph.meta_ops, graph.is_input, strict=True) if not i)
        assert "" not in count
        assert len(count) < len(graph.assigned)
        assert max(count.values()) > 1


def test_tensors_have_several_readers_and_vertices_several_tensors() -> None:
    graphs = [problem.graph for problem in all_of_them()]
    readers = [np.diff(g.reader_ptr)[~g.is_input[g.tensor_producer]] for g in graphs]
    assert sum((r > 1).any() for r in readers) > len(graphs) / 2
    assert sum((np.diff(g.output_ptr) > 1).any() for g in graphs) > len(graphs) / 20


# Connected.


def largest_component(graph: Graph) -> float:
    """Share of the assigned vertices in the largest set that edges between them connect."""
    root = list(range(graph.num_vertices))

    def find(vertex: int) -> int:
        while root[vertex] != vertex:
            root[vertex] = vertex = root[root[vertex]]
        return vertex

    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        producer = int(graph.tensor_producer[tensor])
        if not graph.is_input[producer]:
            root[find(producer)] = find(reader)
    count = Counter(find(v) for v in graph.assigned.tolist())
    return max(count.values()) / len(graph.assigned)


def test_graphs_are_connected_enough() -> None:
    shares = []
    for problem in all_of_them():
        graph = problem.graph
        produced = ~graph.is_input[graph.tensor_producer[graph.edge_tensor]]
        linked = np.zeros(graph.num_vertices, np.bool_)
        linked[graph.edge_reader[produced]] = True
        linked[graph.tensor_producer[graph.edge_tensor[produced]]] = True
        assert linked[graph.assigned].mean() > 0.9
        shares.append(largest_component(graph))
    assert np.mean(np.array(shares) >= 0.5) > 0.8  # an `even` cut makes parts that never meet


# Costs.


def test_the_ratio_is_mean_transfer_over_mean_exec_seconds() -> None:
    b = GraphBuilder()
    h = b.op("h", "matmul", reads=[b.input("x", output_bytes=9e9)], output_bytes=100, flops=30)
    b.op("y", "matmul", reads=[h], output_bytes=7e9, flops=50)  # which nobody reads
    devices = tuple(
        Device(f"d{i}", {"float32": r}, launch_s=1.0) for i, r in enumerate((10.0, 5.0))
    )
    links = (Link("there", 20.0, latency_s=1.0), Link("back", 10.0, latency_s=2.0))
    topology = Topology("two", devices, links, np.array([[-1, 0], [1, -1]]))
    # Transfers of 100 bytes: 6 and 12 s. Execs: 4 and 7 s; 6 and 11 s.
    assert communication_ratio(b.build(), topology) == pytest.approx(9 / 7)


def test_ratios_are_within_bounds_and_fill_them() -> None:
    """Those of shapes; workloads have their own, most of them within a factor of ten of that."""
    ratios = {True: [], False: []}
    for p in all_of_them():
        ratios[FAMILIES[p.family].is_workload].append(communication_ratio(p.graph, p.topology))
    low, high = RATIOS
    drawn, own = np.log10(ratios[False]), np.array(ratios[True])
    assert (drawn > np.log10(low) - 0.01).all()
    assert (drawn < np.log10(high) + 0.01).all()
    assert np.histogram(drawn, 4, (-1, 1))[0].min() > len(drawn) / 8
    assert ((own > low / 10) & (own < high * 10)).mean() > 0.95


def test_costs_of_shapes_are_uneven() -> None:
    spread = [
        float(np.std(np.log(p.graph.flops[p.graph.assigned])))
        for p in all_of_them()
        if p.family in SHAPES
    ]
    assert np.median(spread) > 0.3


def test_makespans_take_between_a_millisecond_and_a_second() -> None:
    best = np.array([makespans_s(problem).min() for problem in all_of_them()])
    assert ((best > 1e-3) & (best < 1.0)).mean() > 0.97
    assert best.min() > 2e-4
    assert best.max() < 10


def test_no_placer_wins_everywhere() -> None:
    table = np.array([makespans_s(problem) for problem in all_of_them()])
    wins = np.bincount(table.argmin(axis=1), minlength=table.shape[1])
    assert wins.max() < 0.7 * len(table)


# Memory.


def test_live_bytes_by_hand() -> None:
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[b.input("x", output_bytes=1000)], output_bytes=10, flops=1)
    c = b.op("c", "matmul", reads=[a], output_bytes=20, flops=1)
    b.op("d", "matmul", reads=[c], output_bytes=5, flops=1)
    assert (
        live_bytes(Problem(b.build(), read_topology("p100x4"))) == 30
    )  # a and c; then c and d are 25


def test_some_simple_placer_runs_in_every_problem_with_limited_memory() -> None:
    found = limited()
    assert 0.2 < len(found) / len(all_of_them()) < 0.4
    for problem in found:
        assert makespans_s(problem)[:3].min() < inf
        largest = max(device.memory_bytes for device in problem.topology.devices)
        assert problem.problem.working_bytes.max() <= largest


def test_limited_memory_matters() -> None:
    """One device for everything is mostly too small, and other placers run out at times."""
    fails = np.isinf([makespans_s(problem) for problem in limited()])
    assert fails[:, 3].mean() > 0.5
    assert fails[:, :3].any(axis=1).mean() > 0.2


# Splits.


def test_a_group_is_in_one_split_and_every_split_has_several_families_and_machines() -> None:
    split_of: dict[str, str] = {}
    for family in FAMILIES.values():
        assert split_of.setdefault(family.group, family.split) == family.split
        assert family.split in SPLITS
    for split in SPLITS:
        assert sum(own == split for own in split_of.values()) >= 2
        assert sum(machine.split == split for machine in MACHINES.values()) >= 2
    assert set(WORKLOADS) - {"random-dag"} <= set(FAMILIES)


def test_draws_stay_in_their_split_and_reach_all_of_it() -> None:
    for split in SPLITS:
        drawn = some(split)
        own = {name for name, family in FAMILIES.items() if family.split == split}
        assert {problem.family for problem in drawn} == own
        machines = {name for name, machine in MACHINES.items() if machine.split == split}
        assert {problem.machine for problem in drawn} == machines


def test_the_machine_may_come_from_another_split() -> None:
    for problem in problems("test", 10, 0, machines="train", max_vertices=80):
        assert FAMILIES[problem.family].split == "test"
        assert MACHINES[problem.machine].split == "train"
    drawn = list(problems("all", 40, 0, max_vertices=150))
    assert {FAMILIES[problem.family].split for problem in drawn} == set(SPLITS)
    assert {MACHINES[problem.machine].split for problem in drawn} == set(SPLITS)


def test_left_out_families_and_their_relatives_are_never_drawn() -> None:
    relatives = {"llama-block", "llama-layer", "attention", "transformer"}
    usual = some("train")
    assert relatives & {p.family for p in usual}
    without = list(problems("train", 60, 1, without=("attention", "chainmm")))
    assert not (relatives | {"chainmm"}) & {p.family for p in without}
    for before, now in zip(usual, without, strict=True):
        if before.family not in (*relatives, "chainmm"):
            assert before == now


# Seeds.


def test_problems_have_seeds_that_give_them_again() -> None:
    for problem in problems("train", 5, 3, max_vertices=60):
        assert draw_problem("train", problem.seed, max_vertices=60) == problem
    first, longer = problems("test", 2, 7), problems("test", 4, 7)
    assert [p.seed for p in first] == [p.seed for p in longer][:2]


def test_seeds_give_different_problems() -> None:
    digests = [p.digest() for p in all_of_them()]
    assert len(set(digests)) == len(digests)
    assert len({p.graph.name for p in all_of_them()}) == len(digests)


DIGESTS = {
    ("train", 0): "62c75bb8a53398f0",  # pipeline on uneven-links
    ("train", 1): "ffc793e515475f0a",  # in-tree on uneven-links
    ("validation", 0): "1e6cc945439a202c",  # map-reduce on ring
    ("validation", 1): "c1aa7a7edb709b42",  # map-reduce on ring
    ("test", 0): "01548b00682cd775",  # fft on three-speeds
    ("test", 1): "21ce47735b924c22",  # fft on shared-bus
    ("train", 9): "9eae5969aef4d79a",  # llama-layer on uneven-links
    ("train", 38): "7c87aaa85e317028",  # mlp on host-bounce
    ("validation", 15): "cbe6f8708af10675",  # cholesky on ring
    ("test", 6): "22c9d3caefd221ff",  # moe-layer on shared-bus
}


@pytest.mark.parametrize(("split", "seed"), DIGESTS)
def test_a_seed_means_the_same_problem_everywhere(split: str, seed: int) -> None:
    """Whatever the machine, and the order in which its Python hashes."""
    assert draw_problem(split, seed).digest().removeprefix("sha256:")[:16] == DIGESTS[split, seed]


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "trian"}, "no split named `trian`"),
        ({"machines": "x"}, "no split named `x`"),
        ({"without": ("chain-mm",)}, "no family named `chain-mm`"),
        ({"seed": -1}, "seed is -1"),
        ({"max_vertices": 20}, "30 to 20 vertices is not a range"),
        ({"min_vertices": 5, "max_vertices": 20}, "no family of split `train` is left"),
        ({"without": tuple(FAMILIES)}, "no family of split `train` is left"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    given = {"split": "train", "seed": 0} | options
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        draw_problem(**given)


def test_a_family_that_is_never_so_large() -> None:
    with pytest.raises(ConfigError, match="`chainmm` has 36 to 162 vertices"):
        make_problem("chainmm", "equal", 0, min_vertices=1000, max_vertices=2000)
    with pytest.raises(UnknownNameError, match="no machine named `p100x4`"):
        make_problem("chainmm", "p100x4", 0)


def test_the_documentation_lists_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "problems.md").read_text("utf-8")
    for family in FAMILIES.values():
        own = " (workload)" if family.is_workload else ""
        row = f"| `{family.name}`{own} | {family.split} | {family.group} | "
        row += f"{family.smallest:,} to {family.largest:,} | {family.description} |"
        assert row in page
    for machine in MACHINES.values():
        assert f"| `{machine.name}` | {machine.split} | {machine.description} |" in page


# Shapes, by hand.


def test_a_pipeline_goes_forward_and_back() -> None:
    sketch = pipeline(np.random.default_rng(0), 60)
    stages = {stage for stage in sketch.stages if stage.startswith("forward")}
    last = f"forward{len(stages) - 1}"
    for task, (stage, reads) in enumerate(zip(sketch.stages, sketch.reads, strict=True)):
        number = int(stage.lstrip("abcdefghijklmnopqrstuvwxyz"))
        read = {sketch.stages[r] for r in reads} - {f"weights{number}"}
        if stage.startswith("forward"):
            assert read == ({f"forward{number - 1}"} if number else set())
        if stage.startswith("backward"):
            after = set() if f"forward{number}" == last else {f"backward{number + 1}"}
            assert read == {f"forward{number}"} | after
        if stage.startswith("update"):
            assert read == {f"backward{number}"}
        assert all(r < task for r in reads)


def test_an_in_tree_has_one_root_and_one_reader_each() -> None:
    sketch = in_tree(np.random.default_rng(4), 100)
    read = [r for reads in sketch.reads for r in reads]
    assert sorted(read) == list(range(len(sketch) - 1))


def test_problems_can_be_priced_on_real_topologies_too() -> None:
    for problem in some("train")[:5]:
        assert lower_bounds(problem.graph, read_topology("v100x8")).best_s > 0
