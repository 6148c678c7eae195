import numpy as np
import strategies
from hypothesis import given
from hypothesis import strategies as st

from doppler.graph import GraphBuilder
from doppler.tasks import dependencies, enumerate_tasks, task_table
from doppler.topology import Topology, preset


def columns(tasks):
    """(tensor, source, target, link) of each transfer."""
    table = (tasks.tensor, tasks.source, tasks.target, tasks.link)
    return list(zip(*(column.tolist() for column in table), strict=True))


def test_a_tensor_goes_once_to_each_device_with_readers():
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[], output_bytes=1)
    for name in "bcde":
        b.op(name, "matmul", reads=[a], output_bytes=1)
    topology = preset("p100x4")
    tasks = enumerate_tasks(b.build(), topology, np.array([1, 2, 1, 2, 0]))
    route = topology.route
    assert columns(tasks) == [(0, 1, 0, route[1, 0]), (0, 1, 2, route[1, 2])]
    assert (tasks.num_vertices, tasks.num_transfers) == (5, 2)


def test_each_tensor_of_a_vertex_goes_where_it_is_read():
    b = GraphBuilder()
    split = b.vertex("split", "select")
    low, high = b.tensor(split, 1), b.tensor(split, 2)
    b.op("l", "matmul", reads=[low], output_bytes=1)
    b.op("h", "matmul", reads=[low, high], output_bytes=1)
    tasks = enumerate_tasks(b.build(), preset("reference:3"), np.array([0, 1, 2]))
    assert columns(tasks) == [(low, 0, 1, 0), (low, 0, 2, 0), (high, 0, 2, 0)]


def test_inputs_are_ready_everywhere():
    b = GraphBuilder()
    x = b.input("x", output_bytes=1)
    for name in "ab":
        b.op(name, "matmul", reads=[x], output_bytes=1)
    tasks = enumerate_tasks(b.build(), preset("cpu2"), np.array([-1, 0, 1]))
    assert tasks.num_transfers == 0


def test_one_device_needs_no_transfers():
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[], output_bytes=1)
    b.op("b", "matmul", reads=[a], output_bytes=1)
    tasks = enumerate_tasks(b.build(), preset("reference:1"), np.array([0, 0]))
    assert tasks.num_transfers == 0


def test_inputs_that_arrive_come_once_to_each_device_that_reads_them():
    b = GraphBuilder()
    x = b.input("x", output_bytes=1, kind="streamed")
    w = b.input("w", output_bytes=1, kind="resident")
    for name in "abc":
        b.op(name, "matmul", reads=[x, w], output_bytes=1)
    graph, devices = b.build(), np.array([-1, -1, 0, 1, 0])
    topology = uniform_with_host()
    warm = enumerate_tasks(graph, topology, devices)
    assert columns(warm) == [(x, 2, 0, 2), (x, 2, 1, 3)]
    cold = enumerate_tasks(graph.cold(), topology, devices)
    assert columns(cold) == [(x, 2, 0, 2), (x, 2, 1, 3), (w, 2, 0, 2), (w, 2, 1, 3)]
    needed, needs = dependencies(graph.cold(), cold)
    assert sorted(zip(needed.tolist(), needs.tolist(), strict=True)) == [
        *((5, 2), (5, 4), (6, 3), (7, 2), (7, 4), (8, 3)),
    ]
    assert enumerate_tasks(graph.cold(), preset("cpu2"), devices).num_transfers == 0


def uniform_with_host() -> Topology:
    return Topology.uniform(
        2, flops_per_s=1e12, bandwidth_bytes_per_s=1e9, host_bandwidth_bytes_per_s=1e9
    )


@given(st.data())
def test_the_table_holds_the_dependencies(data):
    graph, topology = data.draw(strategies.graphs()), data.draw(strategies.topologies())
    devices = data.draw(strategies.devices_for(graph, topology))
    tasks = enumerate_tasks(graph, topology, devices)
    needed, needs = dependencies(graph, tasks)
    table = task_table(graph, topology, tasks)
    pairs = sorted(zip(needs.tolist(), needed.tolist(), strict=True))
    assert pairs == sorted((task, o) for task, others in enumerate(table.needs) for o in others)


@given(st.data())
def test_transfers_are_the_distinct_tensors_and_devices_of_remote_readers(data):
    graph, topology = data.draw(strategies.graphs()), data.draw(strategies.topologies())
    devices = data.draw(strategies.devices_for(graph, topology))
    tasks = enumerate_tasks(graph, topology, devices)
    wanted = set()
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        producer, target = graph.tensor_producer[tensor], devices[reader]
        source = devices[producer]
        if graph.arrives[producer] and topology.has_host_links:
            wanted.add((tensor, topology.num_devices, target, topology.host_links[target]))
        elif source not in (-1, target):
            wanted.add((tensor, source, target, topology.route[source, target]))
    assert columns(tasks) == sorted(wanted)
