import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from doppler.assignment import Assignment
from doppler.cost import FAMILIES, DefaultCostModel, dtype_class
from doppler.errors import TopologyError
from doppler.graph import GraphBuilder, Kernel, OpKind, build_graph
from doppler.graph.signatures import signatures
from doppler.placers import lower_bounds
from doppler.problem import Problem
from doppler.programs import chainmm
from doppler.sharding import shard
from doppler.sim import simulate
from doppler.topology import KERNEL_FAMILIES, Device, Link, Topology, preset


def machine(**fields):
    """Two devices, the second twice as fast, and a link each way."""
    devices = (
        Device("slow", {"float16": 20.0, "float32": 10.0}, memory_bytes_per_s=4.0, launch_s=0.5),
        Device("fast", {"float16": 40.0, "float32": 20.0}, memory_bytes_per_s=8.0, launch_s=0.25),
    )
    links = (Link("up", 2.0, latency_s=1.0), Link("down", 4.0, latency_s=3.0))
    defaults = {"devices": devices, "links": links, "route": [[-1, 0], [1, -1]]}
    return Topology("machine", **defaults | fields)


def vertex(**columns):
    b = GraphBuilder("one")
    b.op("v", columns.pop("kind", "matmul"), reads=[], output_bytes=8, **columns)
    return b.build()


def costs(graph, topology=None):
    return DefaultCostModel().costs(graph, topology or machine())


@pytest.mark.parametrize(
    ("columns", "seconds"),
    [
        ({"flops": 100, "touched_bytes": 8}, [10.5, 5.25]),
        ({"flops": 100, "touched_bytes": 80}, [20.5, 10.25]),
        ({"flops": 100, "dtype": "bfloat16"}, [5.5, 2.75]),
        ({"touched_bytes": 8, "dtype": "float64"}, [2.5, 1.25]),
        ({}, [0, 0]),
        ({"kind": "input", "flops": 100, "dtype": "float64"}, [0, 0]),
    ],
    ids=["compute-bound", "memory-bound", "half", "only memory", "no work", "input"],
)
def test_exec_takes_the_launch_and_the_longer_of_computing_and_moving_bytes(columns, seconds):
    assert costs(vertex(**columns)).exec_s.tolist() == [seconds]


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("float16", "float16"),
        ("bfloat16", "float16"),
        ("float8_e4m3fn", "float16"),
        ("int8", "float16"),
        ("complex32", "float16"),
        ("float32", "float32"),
        ("int32", "float32"),
        ("complex64", "float32"),
        ("bool", "float32"),
        ("", "float32"),
        ("float64", "float64"),
        ("int64", "float64"),
        ("complex128", "float64"),
    ],
)
def test_dtypes_compute_at_the_rate_of_their_class(dtype, rate):
    assert dtype_class(dtype) == rate


def test_a_device_without_a_rate_for_a_dtype_is_named_with_the_vertex():
    message = "device `slow` has no flops_per_s for float64, which vertex `v` needs"
    with pytest.raises(TopologyError, match=message):
        costs(vertex(flops=1, dtype="float64"))


def test_transfer_takes_the_latency_and_the_bytes_over_the_bandwidth():
    graph = vertex()
    assert [costs(graph).transfer_s(graph, 0, link) for link in (0, 1)] == [1 + 4, 3 + 2]


def test_explicit_seconds_are_taken_as_they_are():
    graph = vertex(flops=100, exec_s=7, transfer_s=9)
    priced = costs(graph)
    assert priced.exec_s.tolist() == [[7, 7]]
    assert [priced.transfer_s(graph, 0, link) for link in (0, 1)] == [9, 9]


def test_explicit_exec_s_leaves_transfers_to_the_links():
    graph = vertex(exec_s=[1, 2])
    priced = costs(graph)
    assert priced.exec_s.tolist() == [[1, 2]]
    assert priced.transfer_s(graph, 0, 0) == 5


def test_explicit_seconds_of_an_input_do_not_count():
    assert costs(vertex(kind="input", exec_s=7)).exec_s.tolist() == [[0, 0]]


def test_exec_s_for_another_number_of_devices_is_refused():
    with pytest.raises(TopologyError, match="gives exec_s for 3 devices, topology `machine` has 2"):
        costs(vertex(exec_s=[1, 2, 3]))


def test_the_reference_topology_needs_explicit_seconds():
    reference = preset("reference:2")
    with pytest.raises(TopologyError, match="`reference:2` has no speeds, and graph `one` no exec"):
        costs(vertex(flops=1), reference)
    with pytest.raises(TopologyError, match="no bandwidths, and graph `one` no transfer_s"):
        costs(vertex(exec_s=1), reference)
    assert costs(vertex(exec_s=1, transfer_s=2), reference).exec_s.tolist() == [[1, 1]]


def test_the_reference_topology_moves_nothing_for_nothing():
    b = GraphBuilder()
    b.op("v", "matmul", reads=[], output_bytes=0, exec_s=1)
    graph = b.build()
    assert costs(graph, preset("reference:2")).transfer_s(graph, 0, 0) == 0


# Contention.

SHARED = {"matmul": 1.5, "elementwise": 2.0, "reduction": 4.0}


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("matmul", [15.75, 7.875]),
        ("bcast-elemwise", [21, 10.5]),
        ("formation", [21, 10.5]),
        ("max-reduction", [42, 21]),
        ("of its own", [10.5, 5.25]),
    ],
)
def test_what_the_roofline_gives_is_multiplied_by_the_factor_of_its_family(kind, seconds):
    graph = vertex(kind=kind, flops=100)
    assert costs(graph, machine(contention=SHARED)).exec_s.tolist() == [seconds]
    alone = machine(contention=SHARED).without_contention()
    assert costs(graph, alone).exec_s.tolist() == [[10.5, 5.25]]


def test_every_kind_but_inputs_is_of_a_family():
    assert set(FAMILIES) == {str(kind) for kind in OpKind} - {"input"}
    assert set(FAMILIES.values()) == set(KERNEL_FAMILIES)


def test_measured_and_explicit_seconds_have_contention_in_them():
    measured = machine(exec_s={"relu -> 2 float32": (7.0, 8.0)}, contention=SHARED)
    assert costs(vertex(flops=100, kernel=RELU), measured).exec_s.tolist() == [[7, 8]]
    assert costs(vertex(flops=100, exec_s=[1, 2]), measured).exec_s.tolist() == [[1, 2]]


def test_one_device_has_nothing_to_share_with():
    one = machine(devices=machine().devices[:1], links=(), route=[[-1]], contention=SHARED)
    assert costs(vertex(flops=100), one).exec_s.tolist() == [[10.5]]


@given(topology=strategies.topologies(), graph=strategies.graphs(), data=st.data())
def test_bounds_without_contention_are_no_larger(topology, graph, data):
    loaded, alone = (lower_bounds(graph, topology, contention=c) for c in (True, False))
    assert alone.best_s <= loaded.best_s * (1 + 1e-9)
    assert alone == lower_bounds(graph, topology.without_contention())
    devices = data.draw(strategies.devices_for(graph, topology))
    makespan_s = simulate(graph, topology, Assignment(devices)).makespan_s
    assert loaded.best_s <= makespan_s * (1 + 1e-9)


# Measured seconds.

RELU = Kernel("relu", (), ((2,),), ("float32",))


def test_measured_seconds_go_before_the_roofline():
    measured = machine(exec_s={"relu -> 2 float32": (7.0, 8.0)})
    assert costs(vertex(flops=100, kernel=RELU), measured).exec_s.tolist() == [[7, 8]]
    assert costs(vertex(kernel=RELU), measured).exec_s.tolist() == [[7, 8]]
    other = Kernel("relu", (), ((3,),), ("float32",))
    assert costs(vertex(flops=100, kernel=other), measured).exec_s.tolist() == [[10.5, 5.25]]
    assert costs(vertex(flops=100), measured).exec_s.tolist() == [[10.5, 5.25]]


def test_explicit_seconds_go_before_measured_ones():
    measured = machine(exec_s={"relu -> 2 float32": (7.0, 8.0)})
    graph = vertex(flops=100, kernel=RELU, exec_s=[1, 2])
    assert costs(graph, measured).exec_s.tolist() == [[1, 2]]


def test_an_input_costs_nothing_whatever_was_measured():
    measured = machine(exec_s={"": (1.0, 1.0), "input -> 2 float32": (1.0, 1.0)})
    kernel = Kernel("input", (), ((2,),), ("float32",))
    assert costs(vertex(kind="input", kernel=kernel), measured).exec_s.tolist() == [[0, 0]]
    assert costs(vertex(flops=100), measured).exec_s.tolist() == [[10.5, 5.25]]


def relu_and_exp(dtype="float32"):
    b = GraphBuilder("two")
    for name in ("relu", "exp"):
        kernel = Kernel(name, (), ((2,),), (dtype,))
        b.op(name, name, reads=[], output_bytes=8, flops=100, dtype=dtype, kernel=kernel)
    return b.build()


def test_every_vertex_gets_the_first_that_there_is_for_it():
    measured = machine(exec_s={"exp -> 2 float32": (7.0, 8.0)})
    assert costs(relu_and_exp(), measured).exec_s.tolist() == [[10.5, 5.25], [7, 8]]


def test_speeds_are_only_needed_where_nothing_was_measured():
    graph = relu_and_exp("float64")
    exec_s = {f"{name} -> 2 float64": (1.0, 2.0) for name in ("relu", "exp")}
    no_speeds = tuple(Device(name) for name in "ab")
    for fields in ({}, {"devices": no_speeds}):
        measured = machine(exec_s=exec_s, **fields)
        assert costs(graph, measured).exec_s.tolist() == [[1, 2], [1, 2]]
    del exec_s["relu -> 2 float64"]
    with pytest.raises(TopologyError, match="no flops_per_s for float64, which vertex `relu`"):
        costs(graph, machine(exec_s=exec_s))
    with pytest.raises(TopologyError, match="topology `machine` has no speeds"):
        costs(graph, machine(exec_s=exec_s, devices=no_speeds))


def test_signatures_are_not_computed_where_nothing_was_measured(monkeypatch):
    def fail(_):
        raise AssertionError

    monkeypatch.setattr("doppler.cost.signatures", fail)
    graph = vertex(flops=100, kernel=RELU)
    assert costs(graph).exec_s.tolist() == [[10.5, 5.25]]
    measured = machine(exec_s={"relu -> 2 float32": (7.0, 8.0)})
    assert costs(vertex(kernel=RELU, exec_s=1), measured).exec_s.tolist() == [[1, 1]]
    with pytest.raises(AssertionError):
        costs(graph, measured)


def test_simulator_and_bounds_take_what_was_measured():
    graph = shard(chainmm(size=16), 4)
    exec_s = dict.fromkeys(signatures(graph), (3.0, 3.0))
    measured, alone = machine(exec_s=exec_s), np.where(graph.is_input, -1, 1)
    total_s = 3.0 * len(graph.assigned)
    assert simulate(graph, measured, Assignment(alone)).makespan_s == total_s
    assert lower_bounds(graph, measured).work_s == pytest.approx(total_s / 2)


SLOW_LINKS = {"links": (Link("up", 1e-30), Link("down", 1e-30))}
SLOW_DEVICES = {"devices": tuple(Device(name, {"float32": 1e-30}, 1e-30) for name in "ab")}


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ({"flops": 1e30}, SLOW_DEVICES),
        ({"touched_bytes": 1e30}, SLOW_DEVICES),
        ({"exec_s": [1e30, 1e30]}, {}),
        ({"kernel": RELU}, {"exec_s": {"relu -> 2 float32": (1e30, 1e30)}}),
        ({"exec_s": 1}, SLOW_LINKS),
        ({"exec_s": 1, "transfer_s": 1e30}, {}),
    ],
    ids=["flops", "bytes", "exec_s", "measured", "bandwidth", "transfer_s"],
)
def test_the_largest_numbers_give_costs_that_can_be_added_and_squared(columns, fields):
    graph, topology = vertex(**columns), machine(**fields)
    found = costs(graph, topology)
    seconds = [*found.exec_s.ravel(), *found.mean_transfer_s(graph, topology)]
    assert 1e30 <= max(seconds) <= 1e62


def test_mean_costs_are_over_devices_and_over_ordered_pairs():
    graph = vertex(flops=100)
    assert costs(graph).mean_exec_s().tolist() == [(10.5 + 5.25) / 2]
    assert costs(graph).mean_transfer_s(graph, machine()).tolist() == [(5 + 5) / 2]

    devices = tuple(Device(name) for name in "abc")
    topology = machine(devices=devices, route=[[-1, 0, 0], [0, -1, 0], [0, 1, -1]])
    graph = vertex(exec_s=[1, 2, 6])
    assert costs(graph, topology).mean_exec_s().tolist() == [3]
    graph = build_graph(**graph.columns() | {"tensor_bytes": [16]})
    mean = costs(graph, topology).mean_transfer_s(graph, topology)
    assert mean == pytest.approx([(5 * (1 + 8) + (3 + 4)) / 6])


def test_one_device_has_no_transfers_to_average():
    topology = machine(devices=(Device("a"),), links=(), route=[[-1]])
    graph = vertex(exec_s=1)
    assert costs(graph, topology).mean_transfer_s(graph, topology).tolist() == [0]


def test_levels_are_by_mean_costs():
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[], output_bytes=8, exec_s=[1, 3])
    b.op("b", "matmul", reads=[a], output_bytes=8, exec_s=[5, 5])
    graph, topology = b.build(), machine()
    problem = Problem(graph, topology)
    assert problem.bottom_levels.length_s.tolist() == [2 + 5 + 5, 5]
    assert problem.top_levels.length_s.tolist() == [0, 2 + 5]


@given(st.data())
def test_costs_are_finite_and_inputs_free(data):
    topology = data.draw(strategies.topologies())
    graph = data.draw(strategies.graphs(num_devices=topology.num_devices))
    priced = costs(graph, topology)
    assert priced.exec_s.shape == (graph.num_vertices, topology.num_devices)
    assert np.isfinite(priced.exec_s).all()
    assert not priced.exec_s[graph.is_input].any()
    assert not any(array.flags.writeable for array in (priced.exec_s, priced.fixed_s))
