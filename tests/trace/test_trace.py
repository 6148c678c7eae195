import json
from math import inf, nan

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from report.making import example, hostile, large, planned
from strategies import examples

from doppler.assignment import Assignment
from doppler.errors import DopplerError, FormatError
from doppler.graph import GraphBuilder
from doppler.sim import ReferenceSimulator, SimConfig
from doppler.topology import Device, Host, Link, Topology, preset
from doppler.trace import read_trace, trace_to_json, write_trace

NEAR, FAR = 0, 1


@pytest.fixture(scope="module")
def graph():
    """x → a, b; a (two tensors) → c, d; b → c, e. A byte takes a second over any link."""
    b = GraphBuilder("small")
    x = b.input("x", output_bytes=100)
    v = b.vertex("a", "matmul", exec_s=2)
    b.edge(x, v)
    a1, a3 = b.tensor(v, 1), b.tensor(v, 3)
    b2 = b.op("b", "matmul", reads=[x], output_bytes=2, exec_s=3)
    b.op("c", "matmul", reads=[a1, a3, b2], output_bytes=9, exec_s=1)
    b.op("d", "select", reads=[a1, a3], output_bytes=9, exec_s=1)
    b.op("e", "matmul", reads=[b2], output_bytes=9, exec_s=2)
    return b.build()


@pytest.fixture(scope="module")
def trace(graph):
    """a, b and e on the first device, c near by, d far away on a device with two slots.

    ```text
    first    a a b b b e e
    near         1 3 3 3 2 2
    far          1
                 3 3 3
    second                   c
    third              d
    ```
    """
    topology = Topology(
        name="machine",
        devices=(Device("1st", group="here"), Device("2nd", group="here"), Device("3rd", slots=2)),
        links=(Link("near", 1.0), Link("far", 1.0, lanes=0)),
        route=[[-1, NEAR, FAR], [NEAR, -1, FAR], [FAR, FAR, -1]],
    )
    assignment = Assignment([-1, 0, 0, 1, 2, 0], placer="hand")
    return ReferenceSimulator(topology).run(graph, assignment)


def rows(trace):
    """(vertex, tensor, device, begin, end) of each task."""
    table = (trace.vertex, trace.tensor, trace.device, trace.begin_s, trace.end_s)
    return list(zip(*(column.tolist() for column in table), strict=True))


def chain(trace):
    """(vertex, target of a transfer, what it waited for, how long) of each step."""
    return [
        (
            trace.vertex_names[trace.vertex[step.row]],
            int(trace.device[step.row]) if trace.is_transfer[step.row] else None,
            step.waited_for,
            step.wait_s,
        )
        for step in trace.critical_chain()
    ]


def run(builder, devices, topology, **options):
    simulator = ReferenceSimulator(topology, SimConfig(**options))
    return simulator.run(builder.build(), Assignment(devices))


def test_rows_are_the_tasks_by_begin_and_then_in_topological_order(trace):
    assert rows(trace) == [
        (1, -1, 0, 0, 2),
        (1, 1, 1, 2, 3),
        (1, 1, 2, 2, 3),
        (1, 2, 2, 2, 5),
        (2, -1, 0, 2, 5),
        (1, 2, 1, 3, 6),
        (4, -1, 2, 5, 6),
        (5, -1, 0, 5, 7),
        (2, 3, 1, 6, 8),
        (3, -1, 1, 8, 9),
    ]
    assert trace.source.tolist() == [-1, 0, 0, 0, -1, 0, -1, -1, 0, -1]
    assert trace.link.tolist() == [-1, NEAR, FAR, FAR, -1, NEAR, -1, -1, NEAR, -1]
    assert trace.moved_bytes.tolist() == [0, 1, 1, 3, 0, 3, 0, 0, 2, 0]
    assert trace.ready_s.tolist() == [0, 2, 2, 2, 0, 2, 5, 5, 5, 8]
    assert trace.after.tolist() == [-1, 0, 0, 0, -1, 0, 3, 4, 4, 8]


def test_names_come_from_what_was_run(trace):
    assert (trace.graph, trace.topology, trace.placer) == ("small", "machine", "hand")
    assert trace.vertex_names == ("x", "a", "b", "c", "d", "e")
    assert trace.vertex_kinds[4] == "select"
    assert trace.devices[1] == ("2nd", "here", 1)
    assert trace.links[FAR] == ("far", 0)


def test_devices_are_busy_or_idle_for_the_makespan_on_each_slot(trace):
    assert trace.makespan_s == 9
    assert trace.busy_s().tolist() == [7, 1, 1]
    assert trace.idle_s().tolist() == [2, 8, 17]
    assert trace.utilization() == pytest.approx([7 / 9, 1 / 9, 1 / 18])


def test_a_link_without_a_limit_is_in_use_while_anything_moves(trace):
    assert trace.link_utilization() == pytest.approx([(1 + 3 + 2) / 9, (5 - 2) / 9])


def test_bytes_are_told_apart_by_link_and_by_distance(trace):
    assert trace.bytes_moved == 10
    assert trace.bytes_by_link().tolist() == [6, 4]
    assert trace.bytes_by_class() == {"same-device": 2, "same-group": 6, "across-groups": 4}


def test_overlap_is_the_share_of_moving_time_with_computing(trace):
    assert trace.overlap() == pytest.approx(5 / 6)


def test_the_critical_chain_goes_back_over_a_busy_link(trace):
    assert chain(trace) == [
        ("a", None, "start", 0),
        ("a", 1, "input", 0),
        ("a", 1, "link", 0),
        ("b", 1, "link", 0),
        ("c", None, "input", 0),
    ]


def test_the_critical_chain_goes_back_over_a_busy_device():
    b = GraphBuilder()
    b.op("a", "matmul", reads=[], output_bytes=0, exec_s=2)
    b.op("b", "matmul", reads=[], output_bytes=0, exec_s=3)
    trace = run(b, [0, 0], preset("reference:1"))
    assert chain(trace) == [("a", None, "start", 0), ("b", None, "device", 0)]
    assert trace.overlap() == 1


def test_of_inputs_that_arrive_together_the_lowest_task_counts():
    b = GraphBuilder()
    tensors = [
        b.op(name, "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=0) for name in "ab"
    ]
    b.op("c", "matmul", reads=tensors, output_bytes=0, exec_s=1, transfer_s=0)
    trace = run(b, [0, 1, 0], preset("reference:2"))
    assert chain(trace) == [("a", None, "start", 0), ("c", None, "input", 0)]


def test_the_critical_chain_shows_what_the_host_costs():
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[], output_bytes=0, exec_s=2)
    b.op("b", "matmul", reads=[a], output_bytes=0, exec_s=3)
    topology = Topology("hosted", (Device("d"),), (), [[-1]], Host(0.25, 1.0))
    assert chain(run(b, [0, 0], topology)) == [
        ("a", None, "start", 0.25),
        ("b", None, "input", 1.25),
    ]


def test_the_critical_chain_has_an_end_where_tasks_take_no_time():
    # r has a lower number than s, follows it, and both begin and end when the barrier opens.
    b = GraphBuilder()
    for name, exec_s in {"slow": 1, "r": 0, "s": 0, "last": 1, "first": 0}.items():
        b.op(name, "matmul", reads=[], output_bytes=1, exec_s=exec_s, transfer_s=0)
    for producer, reader in [(4, 2), (2, 1), (1, 3)]:
        b.edge(producer, reader)
    trace = run(b, [1, 0, 0, 0, 0], preset("reference:2"), synchronous=True)
    assert chain(trace) == [
        ("first", None, "start", 0),
        ("s", None, "input", 1),
        ("r", None, "input", 0),
        ("last", None, "input", 0),
    ]


def test_a_trace_of_nothing_has_metrics_too():
    b = GraphBuilder()
    b.input("x", output_bytes=1)
    trace = run(b, [-1], preset("cpu2"))
    assert trace.makespan_s == 0
    assert trace.utilization().tolist() == [0, 0]
    assert trace.link_utilization().tolist() == [0]
    assert trace.critical_chain() == []


def test_arrays_are_read_only(trace):
    columns = ("vertex", "tensor", "source", "device", "link", "after", "begin_s", "end_s")
    assert not any(getattr(trace, name).flags.writeable for name in columns)


def use(trace):
    """Everything that is derived from a trace."""
    return (
        [trace.makespan_s, trace.bytes_moved, trace.bytes_by_class(), trace.overlap()],
        [a.tolist() for a in (trace.busy_s(), trace.idle_s(), trace.bytes_by_link())],
        [a.tolist() for a in (trace.utilization(), trace.link_utilization())],
        trace.critical_chain(),
    )


@given(st.data())
def test_a_trace_survives_its_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "trace.json"
    topology = data.draw(strategies.topologies())
    graph = data.draw(strategies.graphs(num_devices=topology.num_devices))
    devices = data.draw(strategies.devices_for(graph, topology))
    config = SimConfig(synchronous=data.draw(st.booleans()))
    trace = ReferenceSimulator(topology, config).run(graph, Assignment(devices))
    write_trace(trace, path)
    again = read_trace(path)
    assert trace_to_json(again) == trace_to_json(trace)
    assert use(again) == use(trace)


@given(st.data())
def test_shares_are_shares_and_times_add_up(data):
    topology = data.draw(strategies.topologies())
    graph = data.draw(strategies.graphs(num_devices=topology.num_devices))
    devices = data.draw(strategies.devices_for(graph, topology))
    trace = ReferenceSimulator(topology).run(graph, Assignment(devices))
    slots = np.array([d.slots for d in topology.devices])
    assert trace.busy_s() + trace.idle_s() == pytest.approx(slots * trace.makespan_s)
    for share in (*trace.utilization(), *trace.link_utilization(), trace.overlap()):
        assert 0 <= share <= 1 + 1e-9
    assert sum(trace.bytes_by_class().values()) == trace.bytes_moved + trace.local_bytes
    steps = trace.critical_chain()
    ends = [trace.end_s[step.row] for step in steps]
    assert max(ends, default=0) == trace.makespan_s
    assert all(step.wait_s >= -1e-9 * trace.makespan_s for step in steps)


BAD_DOCUMENTS = [
    ({"tasks": ...}, "key `tasks` is missing"),
    ({"tasks.begin_s": ...}, "tasks: key `begin_s` is missing"),
    ({"tasks.colour": []}, "tasks: unknown key `colour`"),
    ({"vertices": []}, "vertices must be an object, not list"),
    ({"graph": 1}, "`graph` must be text, not 1"),
    ({"placer": None}, "`placer` must be text, not None"),
    ({"local_bytes": -1}, "`local_bytes` is -1"),
    ({"local_bytes": "1"}, "`local_bytes` is '1'"),
    ({"local_bytes": 10**400}, "`local_bytes` is 1000"),
    ({"vertices.name": "xabcde"}, "vertices.name must be a list of texts"),
    ({"vertices.kind.0": 1}, "vertices.kind must be a list of texts"),
    ({"vertices.kind": ["input"]}, "vertices.name and vertices.kind differ in length"),
    ({"devices": []}, "devices is empty"),
    ({"devices": {}}, "devices must be a list"),
    ({"devices.0": []}, r"devices\[0\] must be an object, not list"),
    ({"devices.0.group": ...}, r"devices\[0\]: key `group` is missing"),
    ({"devices.0.name": 1}, r"devices\[0\].name is 1"),
    ({"devices.0.slots": 0}, r"devices\[0\].slots is 0"),
    ({"devices.0.slots": True}, r"devices\[0\].slots is True"),
    ({"links.1.lanes": -1}, r"links\[1\].lanes is -1"),
    ({"links.1.lanes": 1.0}, r"links\[1\].lanes is 1.0"),
    ({"tasks.vertex": 1}, "tasks.vertex must be a list of numbers"),
    ({"tasks.vertex.0": 1.5}, "tasks.vertex must be a list of numbers"),
    ({"tasks.end_s.0": None}, "tasks.end_s must be a list of numbers"),
    ({"tasks.end_s": [1]}, "tasks.end_s does not have 10 entries"),
    ({"tasks.vertex.0": -1}, r"tasks.vertex\[0\] is -1"),
    ({"tasks.vertex.0": 6}, r"tasks.vertex\[0\] is 6"),
    ({"tasks.device.0": -1}, r"tasks.device\[0\] is -1"),
    ({"tasks.device.0": 3}, r"tasks.device\[0\] is 3"),
    ({"tasks.source.0": 0}, r"tasks.source\[0\] is 0"),
    ({"tasks.source.1": -1}, r"tasks.source\[1\] is -1"),
    ({"tasks.link.0": 0}, r"tasks.link\[0\] is 0"),
    ({"tasks.link.1": -1}, r"tasks.link\[1\] is -1"),
    ({"tasks.link.1": 2}, r"tasks.link\[1\] is 2"),
    ({"tasks.tensor.1": -2}, r"tasks.tensor\[1\] is -2"),
    ({"tasks.after.3": 3}, r"tasks.after\[3\] is 3"),
    ({"tasks.moved_bytes.1": -1}, r"tasks.moved_bytes\[1\] is -1"),
    ({"tasks.ready_s.1": nan}, r"tasks.ready_s\[1\] is nan"),
    ({"tasks.end_s.9": inf}, r"tasks.end_s\[9\] is inf"),
    ({"tasks.end_s.9": 7}, r"tasks.end_s\[9\] is 7"),
    ({"tasks.begin_s.9": 1}, r"tasks.begin_s\[9\] is 1"),
    ({"version": 0}, "`version` is 0"),
    ({"format": "doppler-graph"}, "expected 'doppler-trace'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_DOCUMENTS)
def test_a_bad_document_is_named_with_its_key(tmp_path, trace, changes, message):
    path = tmp_path / "trace.json"
    document = strategies.changed(json.loads(trace_to_json(trace)), changes)
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(FormatError, match=f"`{path}`: .*{message}"):
        read_trace(path)


@settings(max_examples=examples(1000))
@given(data=st.data())
def test_a_broken_file_raises_nothing_but_our_errors(tmp_path_factory, trace, data):
    path = tmp_path_factory.getbasetemp() / "broken-trace.json"
    path.write_text(data.draw(strategies.broken_files(trace_to_json(trace))), "utf-8")
    try:
        broken = read_trace(path)
    except DopplerError:
        return
    use(broken)


def test_waits_are_what_the_critical_chain_says_row_by_row() -> None:
    """The columns that all rows share and the search of one row find the same."""
    for trace in (*example()[3].values(), planned()[2], hostile()[2], large(300, 10)[1]):
        neighbours = trace._rows_by_resource()
        rows = range(len(trace.end_s))
        assert trace.waits() == [trace._step(row, neighbours) for row in rows]
