"""Numbers at and beyond the limits: a clear error or a finite answer, and never a warning."""

import json
import re
from itertools import product

import numpy as np
import pytest
from command_line import runner

import doppler as dp
from doppler.errors import ConfigError, FormatError, GraphError, TopologyError
from doppler.graph import build_graph

FINITE = [1e308, 1.7e308, 1.1e30, 1e-31, 5e-324]


def columns(**changes):
    """A chain of four vertices with the same number in each place of a column."""
    numbers = {"flops": 1.0, "touched_bytes": 1.0, "tensor_bytes": 1.0} | changes
    return {
        "name": "chain",
        "kinds": ["input", "matmul", "matmul", "matmul"],
        "tensor_producer": [0, 1, 2, 3],
        "edge_tensor": [0, 1, 1],
        "edge_reader": [1, 2, 3],
    } | {column: [value] * 4 for column, value in numbers.items()}


@pytest.mark.parametrize("value", FINITE)
@pytest.mark.parametrize(
    "column", ["flops", "touched_bytes", "tensor_bytes", "exec_s", "transfer_s"]
)
def test_a_graph_refuses_numbers_out_of_range(column, value):
    with pytest.raises(GraphError, match=r"\[0\].* is .*") as error:
        build_graph(**columns(**{column: value}))
    assert "between 1e-30 and 1e30" in error.value.hint


@pytest.mark.parametrize("value", FINITE)
@pytest.mark.parametrize(
    "field",
    ["flops_per_s", "memory_bytes_per_s", "memory_bytes", "bandwidth_bytes_per_s", "latency_s"],
)
def test_a_topology_refuses_numbers_out_of_range(field, value):
    message = re.escape(f" is {value}, must be between 1e-30 and 1e30")
    with pytest.raises(TopologyError, match=f"{field}.*{message}"):
        dp.Topology.uniform(2, **{field: value})


@pytest.mark.parametrize("value", FINITE)
@pytest.mark.parametrize("field", ["dispatch_s", "completion_s"])
def test_a_host_refuses_numbers_out_of_range(field, value):
    devices, route = (dp.Device("a"),), np.array([[-1]])
    with pytest.raises(TopologyError, match="must be between 1e-30 and 1e30"):
        dp.Topology("one", devices, (), route, dp.Host(**{field: value}))
    with pytest.raises(TopologyError, match="must be between 1e-30 and 1e30"):
        dp.Topology("one", devices, (), route, exec_s={"relu": (value,)})


def test_whole_numbers_beyond_any_float_are_refused_as_infinite():
    with pytest.raises(TopologyError, match="latency_s is inf, must be finite"):
        dp.Topology.uniform(2, latency_s=10**5000)


@pytest.mark.parametrize("value", FINITE)
def test_noise_refuses_factors_out_of_range(value):
    with pytest.raises(ConfigError, match=r"slowdown has .*, must be between 1e-30 and 1e30"):
        dp.Noise(slowdown=(1.0, value))


EXTREMES = [0.0, 1e-30, 1e30]
SPEEDS = [1e-30, 1e30]


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("placer", ["single", "round-robin", "heft", "critical-path", "peft"])
def test_numbers_at_the_limits_are_placed_and_simulated(placer, speed):
    topology = dp.Topology.uniform(
        3,
        flops_per_s=speed,
        bandwidth_bytes_per_s=speed,
        memory_bytes_per_s=speed,
        latency_s=1e30,
    )
    for work, size in product(EXTREMES, EXTREMES):
        for explicit in ({}, {"exec_s": work, "transfer_s": size}):
            graph = build_graph(
                **columns(flops=work, touched_bytes=work, tensor_bytes=size, **explicit)
            )
            bounds = dp.lower_bounds(graph, topology)
            trace = dp.simulate(graph, topology, dp.place(graph, topology, placer))
            assert bounds.best_s <= trace.makespan_s * (1 + 1e-9) < np.inf
            assert np.isfinite(trace.utilization()).all()
            assert np.isfinite(trace.link_utilization()).all()


def document(**vertices):
    base = {"kind": ["input", "matmul", "matmul"], "flops": [0, 1e30, 1e30], "bytes": [0, 1, 1e30]}
    return {
        "format": "doppler-graph",
        "version": 1,
        "vertices": base | vertices,
        "tensors": {"producer": [0, 1], "bytes": [1e30, 1e30]},
        "edges": {"tensor": [0, 1], "reader": [1, 2]},
    }


SLOW = """
format = "doppler-topology"
version = 1
name = "slow"
[[devices]]
name = "d"
count = 2
flops_per_s = 1e-30
memory_bytes_per_s = 1e-30
launch_s = 1e30
[[links]]
name = "bus"
bandwidth_bytes_per_s = 1e-30
latency_s = 1e30
pairs = "others"
"""


@pytest.fixture
def dop(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch)


def test_the_commands_take_the_largest_numbers(dop, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(document()))
    (tmp_path / "slow.toml").write_text(SLOW)
    on = ("--topology", "slow.toml")
    for command in (
        ("show", "slow.toml"),
        ("show", "g.json", *on),
        ("show", "g.json", *on, "--json"),
        ("place", "g.json", *on, "--placer", "round-robin", "-o", "a.json"),
        ("place", "g.json", *on, "--placer", "critical-path", "--json"),
        ("simulate", "g.json", "a.json", *on, "-o", "trace.json"),
        ("simulate", "g.json", "a.json", *on, "--json"),
        ("show", "trace.json"),
    ):
        result = dop(*command)
        assert (result.code, "Warning" in result.err) == (0, False), (command, result)


def test_the_commands_refuse_numbers_beyond_with_one_error(dop, tmp_path):
    (tmp_path / "slow.toml").write_text(SLOW)
    (tmp_path / "big.json").write_text(json.dumps(document(flops=[0, 1e308, 1e308])))
    (tmp_path / "fast.toml").write_text(SLOW.replace("flops_per_s = 1e-30", "flops_per_s = 1e308"))
    (tmp_path / "g.json").write_text(json.dumps(document()))
    (tmp_path / "a.json").write_text(
        '{"format": "doppler-assignment", "version": 1, "devices": [null, 0, 1]}'
    )
    for command in (
        ("show", "big.json"),
        ("place", "big.json", "--topology", "slow.toml"),
        ("simulate", "big.json", "a.json", "--topology", "slow.toml"),
        ("show", "fast.toml"),
        ("place", "g.json", "--topology", "fast.toml"),
        ("simulate", "g.json", "a.json", "--topology", "fast.toml"),
    ):
        result = dop(*command)
        assert result.code == 2, command
        assert "1e+308" in result.err
        assert "between 1e-30 and 1e30" in result.err
        assert "Warning" not in result.err


@pytest.mark.parametrize("column", ["end_s", "moved_bytes"])
def test_a_trace_with_times_beyond_any_is_refused(dop, tmp_path, column):
    graph, topology = build_graph(**columns()), dp.Topology.preset("cpu2")
    trace = dp.simulate(graph, topology, dp.place(graph, topology, "round-robin"))
    dp.write_trace(trace, tmp_path / "trace.json")
    text = json.loads((tmp_path / "trace.json").read_text())
    text["tasks"][column][-1] = 1e308
    (tmp_path / "trace.json").write_text(json.dumps(text))
    with pytest.raises(FormatError, match=f"{column}.* is 1e\\+308"):
        dp.read_trace(tmp_path / "trace.json")
    assert dop("show", "trace.json").code == 2
