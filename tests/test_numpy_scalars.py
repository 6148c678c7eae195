"""Numpy scalars wherever a number is accepted, and files of what was made of them."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import doppler as dp
from doppler.base.arrays import integers, reals, unboxed
from doppler.errors import GraphError
from doppler.graph import build_graph
from doppler.placers import placer_names
from doppler.placers.comparison import CompareConfig
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig
from doppler.placers.search.genetic import GeneticConfig, GeneticPlacer
from doppler.problem import Problem

REALS = (np.float16, np.float32, np.float64, np.longdouble)
WHOLES = (np.int8, np.uint8, np.int32, np.int64, np.uint64)
SEARCHES = ("annealing", "auto", "doppler", "genetic", "local-search")
BUDGETED = [name for name in placer_names() if name in SEARCHES]


def boxed(value: Any) -> Any:
    """The value with numpy scalars for its numbers, also within tuples, dicts and dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: boxed(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, (tuple, list)):
        return type(value)(map(boxed, value))
    if isinstance(value, dict):
        return {key: boxed(item) for key, item in value.items()}
    kinds: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}
    return kinds[type(value)](value) if type(value) in kinds else value


def all_plain(value: Any) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return all(all_plain(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, (tuple, list)):
        return all(map(all_plain, value))
    if isinstance(value, dict):
        return all(map(all_plain, value.values()))
    return not isinstance(value, np.generic)


def diamond(real: Any = float, whole: Any = int) -> dp.Graph:
    b = dp.GraphBuilder("diamond")
    x = b.input("x", output_bytes=whole(4))
    a = b.op("a", "matmul", reads=[whole(x)], output_bytes=real(8), flops=whole(100))
    left = b.op("b", "relu", reads=[whole(a)], output_bytes=real(2.5), touched_bytes=real(0.5))
    right = b.op("c", "relu", reads=[a], output_bytes=real(2), flops=real(64))
    d = b.vertex("d", "add", flops=real(1))
    b.edge(whole(left), whole(d))
    b.edge(right, d)
    b.tensor(whole(d), whole(3))
    return b.build()


@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("real", REALS)
def test_a_graph_of_numpy_scalars_is_the_same_graph(tmp_path, real, whole):
    graph = diamond(real, whole)
    assert graph == diamond()
    dp.write_graph(graph, tmp_path / "g.json")
    assert dp.read_graph(tmp_path / "g.json") == graph


def test_explicit_seconds_may_be_numpy_scalars_and_rows_arrays():
    for rows in (
        [np.float32(1), (np.int64(2), np.float64(3))],
        [np.array(1.0), np.array([2, 3])],
        [1, np.array([2.0, 3.0])],
        np.array([[1, 1], [2, 3]]),
    ):
        graph = build_graph(
            name="two",
            kinds=["a", "b"],
            exec_s=rows,
            tensor_producer=[np.int8(0)],
            tensor_bytes=[np.float16(2)],
            transfer_s=(np.float32(0.5),),
            edge_tensor=np.array([0], np.uint8),
            edge_reader=[np.uint64(1)],
        )
        assert graph.exec_s.tolist() == [[1, 1], [2, 3]]
        assert graph.transfer_s.tolist() == [0.5]


def test_kernels_hold_plain_numbers(tmp_path):
    b = dp.GraphBuilder("kernel")
    kernel = dp.Kernel(
        op="relu",
        inputs=(np.int64(0),),
        shapes=((np.int32(2), np.uint8(3)),),
        dtypes=("float32",),
        attributes={"scale": np.float32(0.5), "axes": [np.int64(1)], "flag": np.bool_(True)},
    )
    x = b.input("x", output_bytes=24)
    b.op("y", "relu", reads=[x], output_bytes=24, kernel=kernel)
    graph = b.build()
    dp.write_graph(graph, tmp_path / "g.json")
    again = dp.read_graph(tmp_path / "g.json")
    assert again == graph
    assert again.kernels[1] == kernel
    assert all_plain(kernel)


@pytest.mark.parametrize("bad", [True, np.bool_(True), "1", None, np.str_("1"), 1 + 0j, np.inf])
def test_what_is_no_number_stays_refused(bad):
    b = dp.GraphBuilder("bad")
    b.op("a", "matmul", reads=[], output_bytes=1, flops=bad)
    with pytest.raises(GraphError, match="flops"):
        b.build()
    assert reals([1.0, bad]) is None or bad == np.inf
    assert integers([1, bad]) is None


def test_integers_that_do_not_fit_are_refused():
    assert integers(np.array([2**63], np.uint64)) is None
    assert integers([np.uint64(2**63)]) is None
    assert integers([np.float64(1)]) is None
    assert integers([np.int8(-1), 2]).tolist() == [-1, 2]


def test_unboxed_leaves_everything_else_alone():
    array, text = np.arange(3), np.str_("a")
    assert unboxed(array) is array
    assert unboxed(text) is text
    assert unboxed({"a": [(np.int8(1), np.bool_(False))]}) == {"a": [(1, False)]}
    assert type(unboxed(np.longdouble(0.5))) is float


def test_a_topology_of_numpy_scalars_is_the_same_topology(tmp_path):
    plain = dp.Topology(
        "pair",
        (
            dp.Device("a", {"float32": 1e9}, 2e9, 3e9, 2, 1e-6),
            dp.Device("b", {"float16": 1e9}, slots=1),
        ),
        (dp.Link("up", 1e9, 1e-6, 2), dp.Link("down", 2e9, lanes=0)),
        np.array([[-1, 0], [1, -1]]),
        dp.Host(1e-6, 2e-6, 1),
        exec_s={"relu": (1.0, 2.0)},
    )
    made = replace(
        plain,
        devices=boxed(plain.devices),
        links=boxed(plain.links),
        host=boxed(plain.host),
        exec_s=boxed(plain.exec_s),
        route=[[np.int8(-1), np.int64(0)], [np.uint8(1), -1]],
    )
    assert made == plain
    assert all_plain([made.devices, made.links, made.host, dict(made.exec_s)])
    dp.write_topology(made, tmp_path / "t.json")
    assert dp.read_topology(str(tmp_path / "t.json")) == plain


@pytest.mark.parametrize(
    "config",
    [
        dp.Noise(0.1, 0.2, 0.3, (1.0, 2.0)),
        dp.SimConfig(synchronous=True, noise=dp.Noise(0.5)),
        dp.EngineConfig(timeout_s=5.0),
        SearchConfig(seconds=1.0, evaluations=5),
        GeneticConfig(seconds=1.0),
        CompareConfig(seeds=3),
    ],
    ids=lambda config: type(config).__name__,
)
def test_configs_hold_plain_numbers(config):
    assert boxed(config) == config
    assert all_plain(boxed(config))


def test_training_configs_hold_plain_numbers_and_can_be_written():
    pytest.importorskip("torch")
    from doppler.datasets.recipe import Recipe
    from doppler.training.config_io import config_from, config_to
    from doppler.training.presets import POLICIES

    for presets in POLICIES.values():
        for config in presets.values():
            made = replace(
                boxed(config), seed=np.int64(3), seconds=np.float32(5), threads=np.int8(2)
            )
            assert all_plain(made)
            document = json.loads(json.dumps(config_to(made)))
            assert config_from(document, dp.TrainConfig()) == made
    assert all_plain(boxed(dp.OnlineConfig()))
    assert all_plain(boxed(Recipe()))


@pytest.mark.parametrize("name", [n for n in placer_names() if n not in BUDGETED])
def test_seeds_may_be_numpy_scalars(name):
    if name in ("cp-sat", "hypergraph", "metis"):
        pytest.importorskip(
            {"cp-sat": "ortools", "hypergraph": "mtkahypar", "metis": "pymetis"}[name]
        )
    graph, topology = diamond(), dp.Topology.preset("p100x4")
    expected = dp.place(graph, topology, name, seed=100)
    for kind in (np.int8, np.int64):
        assert dp.place(graph, topology, name, seed=kind(100)) == expected


@pytest.mark.parametrize("name", [*BUDGETED, "cp-sat"])
def test_budgets_may_be_numpy_scalars(name):
    if name == "cp-sat":
        pytest.importorskip("ortools")
    graph, topology = diamond(), dp.Topology.preset("p100x4")
    placer, budget_s = dp.make_placer(name), np.float32(0.05)
    placed = placer.place(Problem(graph, topology), seed=np.int8(100), budget_s=budget_s)
    placed.check(graph, topology)


def test_searches_with_numpy_seeds_are_those_with_plain_ones():
    graph, topology = diamond(), dp.Topology.preset("p100x4")
    for placer in (
        AnnealingPlacer(SearchConfig(evaluations=np.int64(200), chains=np.int8(1))),
        GeneticPlacer(GeneticConfig(generations=np.int64(2))),
    ):
        assert placer.place(Problem(graph, topology), seed=np.int8(100)) == placer.place(
            Problem(graph, topology), seed=100
        )


def test_simulation_takes_numpy_seeds_limits_and_assignments(tmp_path):
    graph, topology = diamond(), dp.Topology.preset("p100x4")
    assignment = dp.Assignment([np.int64(-1), np.int8(0), np.int64(1), 0, 1])
    config = dp.SimConfig(noise=dp.Noise(np.float32(0.25), np.float64(0.25)), strategy="random")
    trace = dp.simulate(graph, topology, assignment, seed=np.uint8(7), config=config)
    assert (
        trace.makespan_s
        == dp.simulate(graph, topology, assignment, seed=7, config=config).makespan_s
    )
    simulator = dp.Simulator(topology)
    compiled = simulator.makespans(
        graph, [assignment], seed=np.int64(1), threads=np.int8(1), limit_s=np.float32(1)
    )
    assert compiled.tolist() == simulator.makespans(graph, [assignment]).tolist()
    dp.write_assignment(assignment, tmp_path / "a.json")
    assert dp.read_assignment(tmp_path / "a.json") == assignment
    dp.write_trace(trace, tmp_path / "trace.json")
    assert dp.read_trace(tmp_path / "trace.json").makespan_s == trace.makespan_s


def test_programs_take_numpy_sizes_and_parts(tmp_path):
    graph = dp.shard(dp.programs.chainmm(size=np.int64(64)), parts=np.int8(4))
    assert graph == dp.shard(dp.programs.chainmm(size=64), parts=4)
    dp.write_graph(graph, tmp_path / "g.json")
    assert dp.read_graph(tmp_path / "g.json") == graph
    for build in (dp.programs.cholesky, dp.programs.random_dag):
        size = {"size": np.int64(64), "parts": np.int64(2)}
        size = size if build is dp.programs.cholesky else {"vertices": np.int64(20)}
        dp.write_graph(build(**size), tmp_path / "g.json")
        assert dp.read_graph(tmp_path / "g.json") == build(**unboxed(size))
