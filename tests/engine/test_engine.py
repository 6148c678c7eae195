"""The engine on CPU cores: what it computes, what it measures, and what it keeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.running import (  # noqa: E402
    Spy,
    assert_close,
    assign,
    chain,
    machine,
    vertex,
    workload,
)
from sharding.test_evaluate import SIZES  # noqa: E402

from doppler.assignment import Assignment  # noqa: E402
from doppler.engine.config import EngineConfig  # noqa: E402
from doppler.engine.engine import Engine, execute  # noqa: E402
from doppler.errors import (  # noqa: E402
    AssignmentError,
    ConfigError,
    EngineError,
    GraphError,
    OutOfMemoryError,
    UnknownNameError,
)
from doppler.graph import Graph, build_graph  # noqa: E402
from doppler.graph.levels import depths  # noqa: E402
from doppler.programs import ProgramBuilder, random_dag, reduce  # noqa: E402
from doppler.scheduler.choose import MODES, STRATEGIES  # noqa: E402
from doppler.sharding import METHODS, shard  # noqa: E402
from doppler.sharding.evaluate import evaluate_graph  # noqa: E402
from doppler.testing import check_trace  # noqa: E402
from doppler.topology import Topology  # noqa: E402

SLACK_S = 2.0  # a busy machine may look away for so long
WORKLOADS = [*SIZES, "cholesky"]
CONFIGS = [EngineConfig(strategy=strategy) for strategy in STRATEGIES]
CONFIGS.append(EngineConfig(synchronous=True))
CONFIGS += [EngineConfig(mode="fixed", strategy=strategy) for strategy in STRATEGIES]
CONFIGS.append(EngineConfig(mode="fixed", depth=1))


# What it computes.


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_computes_what_numpy_computes_wherever_the_vertices_are(name: str, parts: int) -> None:
    for seed, method in enumerate(METHODS):
        graph, inputs, expected = workload(name, parts, method)
        size = 2 + (seed + parts) % 3
        topology = machine(size, lanes=seed % 3, slots=1 + seed % 2, ahead=parts % 3)
        assignment = assign(graph, size, seed)
        with Engine(topology, "cpu") as engine:
            result = engine.execute(graph, assignment, inputs)
        assert_close(result.outputs, expected)
        check_trace(result.trace, graph, topology, assignment, slack_s=SLACK_S)


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.strategy}{'-sync' * c.synchronous}-{c.mode}-{c.depth}"
)
@pytest.mark.parametrize("name", ["llama-layer", "chainmm"])
def test_it_computes_the_same_in_any_order(name: str, config: EngineConfig) -> None:
    graph, inputs, expected = workload(name, 4)
    topology = machine(3, lanes=2)
    with Engine(topology, "cpu", config) as engine:
        for seed in range(3):
            assignment = assign(graph, 3, seed)
            result = engine.execute(graph, assignment, inputs, seed=seed)
            assert_close(result.outputs, expected)
            if not config.synchronous:
                check_trace(result.trace, graph, topology, assignment, slack_s=SLACK_S)


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama-block", "float16"), ("ffnn", "float16"), ("ffnn", "float64")]
)
def test_it_computes_in_other_dtypes(name: str, dtype: str) -> None:
    graph, inputs, expected = workload(name, 4, dtype=dtype)
    result = execute(graph, machine(), assign(graph, 2), inputs=inputs)
    assert_close(result.outputs, expected)


def test_a_result_that_others_read_is_kept() -> None:
    graph, inputs, expected = workload("cholesky", 4)
    assert_close(execute(graph, machine(), assign(graph, 2), inputs=inputs).outputs, expected)


def test_barriers_keep_levels_apart() -> None:
    graph, _, _ = workload("ffnn", 4)
    trace = execute(graph, machine(), assign(graph, 2), config=EngineConfig(synchronous=True)).trace
    level = depths(graph)[trace.vertex]
    execs = ~trace.is_transfer
    for n in range(1, int(level.max()) + 1):
        before = trace.end_s[level < n].max()
        assert trace.begin_s[execs & (level == n)].min() >= before


# Inputs.


def test_random_inputs_are_the_same_every_time() -> None:
    graph, _, _ = workload("ffnn", 2)
    first, second = (execute(graph, machine(), assign(graph, 2, seed)).outputs for seed in (0, 1))
    assert_close(first, second)
    assert all(np.isfinite(value).all() and value.std() > 0 for value in first.values())


def everywhere(graph: Graph) -> Graph:
    """The graph with inputs that take no memory."""
    kinds = ["everywhere" if is_input else "" for is_input in graph.is_input]
    return build_graph(**graph.columns() | {"input_kinds": kinds})


def test_inputs_stay_where_they_are_until_there_are_others() -> None:
    graph, inputs, expected = workload("chainmm", 4)
    graph = everywhere(graph)
    spy, assignment = Spy(machine()), assign(graph, 2)
    with Engine(machine(), spy) as engine:
        engine.load(graph, inputs)
        engine.run(graph, assignment)
        assert spy.puts == graph.is_input.sum()
        for seed in range(5):
            engine.run(graph, assign(graph, 2, seed))
        assert spy.puts == graph.is_input.sum()
        assert_close(engine.execute(graph, assignment, inputs).outputs, expected)
        others = {name: 2 * value for name, value in inputs.items()}
        found = engine.execute(graph, assignment, others).outputs
        assert_close(found, evaluate_graph(graph, others))
        assert spy.puts == graph.is_input.sum()


def test_inputs_of_the_caller_may_change_afterwards() -> None:
    graph, inputs, expected = chain()
    given = {"x": inputs["x"].copy()}
    with Engine(machine(), "cpu") as engine:
        engine.load(graph, given)
        given["x"][:] = 7
        engine.run(graph, assign(graph, 2))
        outputs = engine.execute(graph, assign(graph, 2), inputs).outputs
        copies = {name: value.copy() for name, value in outputs.items()}
        engine.execute(graph, assign(graph, 2))  # with others
    assert_close(outputs, copies)
    assert_close(outputs, expected)


def test_torch_tensors_are_inputs_too() -> None:
    graph, inputs, expected = chain()
    given = {name: torch.from_numpy(value) for name, value in inputs.items()}
    assert_close(execute(graph, machine(), assign(graph, 2), inputs=given).outputs, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "input `x` is missing\nhint: given: none"),
        ({"x": np.zeros(9, np.float32)}, r"input `x` is float32 \(9,\), expected float32 \(8,\)"),
        ({"x": np.zeros(8)}, r"input `x` is float64 \(8,\), expected float32 \(8,\)"),
        ({"x": "text"}, r"input `x` is <U4 \(\), expected"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    graph, inputs, expected = chain()
    with Engine(machine(), "cpu") as engine:
        with pytest.raises(GraphError, match=message):
            engine.execute(graph, assign(graph, 2), change)
        assert_close(engine.execute(graph, assign(graph, 2), inputs).outputs, expected)


# Several runs, several graphs.


def test_warm_up_is_not_measured_and_the_trace_is_that_of_the_median() -> None:
    graph, _, _ = chain()
    spy = Spy(machine())
    with Engine(machine(), spy) as engine:
        result = engine.execute(graph, assign(graph, 1), repeats=5, warm_up=3)
    assert (spy.starts, spy.prepared) == (8 * 6, 1)
    assert len(result.makespans_s) == 5
    assert result.trace.makespan_s == np.median(result.makespans_s)


def test_one_engine_runs_several_graphs() -> None:
    with Engine(machine(3), "cpu") as engine:
        for name in ("ffnn", "chainmm", "ffnn", "cholesky"):
            graph, inputs, expected = workload(name, 4)
            assert_close(engine.execute(graph, assign(graph, 3), inputs).outputs, expected)


def test_the_trace_says_what_ran_where() -> None:
    graph, _, _ = chain()
    topology = Topology.preset("cpu2")
    assignment = Assignment(np.array([-1, 0, 0, 1, 1, 0, 0]), placer="by hand")
    trace = execute(graph, topology, assignment).trace
    assert (trace.graph, trace.topology, trace.placer) == ("chain", "cpu2", "by hand")
    assert trace.vertex.tolist() == [1, 2, 2, 3, 4, 4, 5, 6]
    assert trace.tensor.tolist() == [-1, -1, 2, -1, -1, 4, -1, -1]
    assert trace.device.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert trace.bytes_moved == 2 * 8 * 4
    assert (np.diff(trace.begin_s) >= 0).all()
    assert (trace.ready_s <= trace.begin_s).all()
    assert (trace.begin_s <= trace.end_s).all()
    assert trace.after.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_a_graph_of_inputs_only_takes_no_time() -> None:
    graph, inputs, _ = chain()
    columns = graph.columns()
    columns |= {key: columns[key][:1] for key in ("kinds", "vertex_names", "meta_ops", "kernels")}
    columns |= {key: columns[key][:1] for key in ("flops", "touched_bytes", "roles", "dtypes")}
    columns |= {key: columns[key][:1] for key in ("input_kinds", "temporary_bytes")}
    columns |= {key: columns[key][:1] for key in ("tensor_producer", "tensor_bytes")}
    alone = build_graph(**columns | {"edge_tensor": [], "edge_reader": []})
    result = execute(alone, machine(), Assignment(np.array([-1])), inputs=inputs)
    assert result.trace.makespan_s == 0


# Memory.


def test_tensors_share_memory_where_there_is_too_little() -> None:
    """Four large tensors of which each is summed at once; there is room for one, or for all.

    The input has its place.
    """
    b = ProgramBuilder("sums")
    x = b.input("x", (1024,))
    graph = shard(b.build(*(reduce("sum", x * float(i), [0]) for i in range(4))), 1)
    inputs = {"x": np.linspace(0, 1, 1024, dtype=np.float32)}
    for memory_bytes, places in ((2 * 4096.0 + 4 * 256, 5), (float("inf"), 12)):
        topology = machine(1, slots=2, memory_bytes=memory_bytes)
        for mode in MODES:
            spy = Spy(topology)
            with Engine(topology, spy, EngineConfig(mode=mode)) as engine:
                result = engine.execute(graph, assign(graph, 1), inputs, repeats=5)
            assert_close(result.outputs, evaluate_graph(graph, inputs))
            assert len({out.data_ptr() for out in spy.outputs.values()}) == places


def test_too_little_memory_names_the_device_and_leaves_nothing_behind() -> None:
    graph, inputs, expected = chain(size=1024)
    topology = machine(memory_bytes=3 * 4096.0)
    big, big_inputs, _ = chain(size=4096)
    with Engine(topology, "cpu") as engine:
        with pytest.raises(
            OutOfMemoryError,
            match=r"device `d1` is out of memory: vertex `f0\[0\]` needs 16384 bytes, 0 are free, "
            r"and nothing that runs will free more; inputs take 16384 of its 12288 bytes",
        ):
            engine.execute(big, assign(big, [1] * 7), big_inputs)
        assert_close(engine.execute(graph, assign(graph, 2), inputs).outputs, expected)
    config = EngineConfig(limit_memory=False)
    execute(big, topology, assign(big, [1] * 7), inputs=big_inputs, config=config)


# Mistakes.


def test_graphs_without_kernels_are_refused() -> None:
    graph = random_dag(vertices=5, depth=2)
    message = "graph `random-dag-5` has no kernels to run\nhint: what `dop shard` makes"
    with pytest.raises(GraphError, match=message):
        execute(graph, machine(), assign(graph, 2))


def with_kernel(graph: Graph, v: int, kernel: Any) -> Graph:
    kernels = list(graph.kernels)
    kernels[v] = kernel
    return build_graph(**graph.columns() | {"kernels": kernels})


def test_a_kernel_that_is_missing_or_unknown_is_named() -> None:
    graph, inputs, _ = chain()
    v = vertex(graph, "f3")
    with pytest.raises(GraphError, match=r"vertex `f3\[0\]` has no kernel"):
        execute(with_kernel(graph, v, None), machine(), assign(graph, 2), inputs=inputs)
    kernel = replace(graph.kernels[v], op="frobnicate")
    with pytest.raises(EngineError, match=r"vertex `f3\[0\]`: no code for a kernel `frobnicate`"):
        execute(with_kernel(graph, v, kernel), machine(), assign(graph, 2), inputs=inputs)


def test_options_that_cannot_be() -> None:
    graph, _, _ = chain()
    with pytest.raises(UnknownNameError, match="no strategy named `lifo`"):
        EngineConfig(strategy="lifo")
    for timeout_s in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="timeout_s is"):
            EngineConfig(timeout_s=timeout_s)
    for repeats, warm_up in ((0, 0), (1, -1)):
        with pytest.raises(ConfigError, match="repeats must be at least 1"):
            execute(graph, machine(), assign(graph, 2), repeats=repeats, warm_up=warm_up)
    with pytest.raises(AssignmentError, match="device"):
        execute(graph, machine(), assign(graph, [5] * 7))
