import json

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from doppler.assignment import Assignment, read_assignment, write_assignment
from doppler.errors import AssignmentError, DopplerError, FormatError
from doppler.graph import GraphBuilder, build_graph
from doppler.topology import preset

MINIMAL = {"format": "doppler-assignment", "version": 1, "devices": [None, 0, 1]}
FULL = MINIMAL | {"graph": "sha256:0", "topology": "cpu2", "placer": "mine", "order": [2, 1]}


@pytest.fixture(scope="module")
def graph():
    """x → a → b, x an input."""
    b = GraphBuilder("chain")
    x = b.input("x", output_bytes=1)
    a = b.op("a", "matmul", reads=[x], output_bytes=1)
    b.op("b", "matmul", reads=[a], output_bytes=1)
    return b.build()


def read(path, document):
    path.write_text(json.dumps(document), "utf-8")
    return read_assignment(path)


def test_a_full_assignment_survives_its_file(tmp_path, graph):
    assignment = Assignment([-1, 0, 1], [2, 1], "mine", "cpu2", graph.digest())
    write_assignment(assignment, tmp_path / "a.json")
    again = read_assignment(tmp_path / "a.json")
    assert again == assignment
    assert (again.placer, again.topology, again.graph) == ("mine", "cpu2", graph.digest())
    again.check(graph, preset("cpu2"))


@given(st.data())
def test_assignments_survive_their_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "assignment.json"
    graph, topology = data.draw(strategies.graphs()), data.draw(strategies.topologies())
    order = data.draw(st.none() | st.permutations(graph.assigned.tolist()))
    assignment = Assignment(data.draw(strategies.devices_for(graph, topology)), order)
    assignment.check(graph, topology)
    write_assignment(assignment, path)
    assert read_assignment(path) == assignment


def test_a_file_written_by_hand_needs_only_devices(tmp_path, graph):
    assignment = read(tmp_path / "a.json", MINIMAL)
    assert assignment == Assignment([-1, 0, 1])
    assert assignment.order is None
    assignment.check(graph, preset("cpu2"))


BAD_DOCUMENTS = [
    ({"devices": ...}, "key `devices` is missing"),
    ({"devices": {}}, "`devices` must be a list"),
    ({"devices.1": -1}, "`devices` holds -1"),
    ({"devices.1": 1.0}, "`devices` holds 1.0"),
    ({"devices.1": "gpu0"}, "`devices` holds 'gpu0'"),
    ({"devices.1": True}, "`devices` holds True"),
    ({"devices.1": [0]}, r"`devices` holds \[0\]"),
    ({"devices.1": 2**63}, "`devices` holds 9223372036854775808"),
    ({"order": "ab"}, "`order` must be a list of vertex numbers"),
    ({"order": [1.0, 2]}, "`order` must be a list of vertex numbers"),
    ({"order": [None]}, "`order` must be a list of vertex numbers"),
    ({"graph": 1}, "`graph` must be text, not 1"),
    ({"topology": None}, "`topology` must be text, not None"),
    ({"placer": []}, r"`placer` must be text, not \[\]"),
    ({"extra": 1}, "unknown key `extra`"),
    ({"version": 3}, "`version` is 3, this reader knows 1 and 2"),
    ({"format": "doppler-graph"}, "expected 'doppler-assignment'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_DOCUMENTS)
def test_a_bad_document_is_named_with_its_key(tmp_path, changes, message):
    path = tmp_path / "a.json"
    with pytest.raises(FormatError, match=f"`{path}`: .*{message}"):
        read(path, strategies.changed(FULL, changes))


BAD_ASSIGNMENTS = [
    (Assignment([-1, 0]), "has 2 devices, graph `chain` has 3 vertices"),
    (Assignment([]), "has 0 devices, graph `chain` has 3 vertices"),
    (Assignment([-1, 0, 2]), "vertex 2 `b` has device 2, but the topology has devices 0 to 1"),
    (Assignment([-1, 0, -2]), "vertex 2 `b` has device -2"),
    (Assignment([-1, -1, 0]), "vertex 1 `a` has device none"),
    (Assignment([0, 0, 1]), "vertex 0 `x` is an input but has device 0"),
    (Assignment([-1, 0, 1], [1]), "does not name each of the 2 assigned vertices once"),
    (Assignment([-1, 0, 1], [1, 1]), "does not name each"),
    (Assignment([-1, 0, 1], [0, 1]), "does not name each"),
    (Assignment([-1, 0, 1], [1, 9]), "does not name each"),
    (Assignment([-1, 0, 1], [0, 1, 2]), "does not name each"),
]


@pytest.mark.parametrize(("assignment", "message"), BAD_ASSIGNMENTS)
def test_an_assignment_that_does_not_fit_says_where(graph, assignment, message):
    with pytest.raises(AssignmentError, match=message):
        assignment.check(graph, preset("cpu2"))


@pytest.mark.parametrize("devices", [[0.5], [True], ["0"], [None], [[0]], 0])
def test_devices_that_are_no_whole_numbers_are_refused(devices):
    with pytest.raises(AssignmentError, match="devices must be a list of whole numbers"):
        Assignment(devices)
    with pytest.raises(AssignmentError, match="order must be a list of whole numbers"):
        Assignment([0], devices)


def test_an_assignment_for_another_graph_is_refused(graph):
    other = build_graph(**graph.columns() | {"tensor_bytes": [1, 1, 2]})
    with pytest.raises(AssignmentError, match="was made for another graph than `chain`"):
        Assignment([-1, 0, 1], graph=other.digest()).check(graph, preset("cpu2"))


def test_costs_may_change_under_an_assignment(graph):
    slower = build_graph(**graph.columns() | {"flops": [0, 9, 9]})
    Assignment([-1, 0, 1], graph=slower.digest()).check(graph, preset("cpu2"))


def test_assignments_are_equal_by_devices_and_order():
    assert Assignment([0, 1]) == Assignment(np.array([0, 1]), placer="other")
    assert hash(Assignment([0, 1])) == hash(Assignment([0, 1], [1, 0]))
    assert Assignment([0, 1]) != Assignment([1, 0])
    assert Assignment([0, 1], [0, 1]) != Assignment([0, 1])
    assert Assignment([0, 1], [0, 1]) != Assignment([0, 1], [1, 0])
    assert Assignment([0]) != [0]


def test_arrays_are_read_only_copies():
    devices = np.array([0, 1])
    assignment = Assignment(devices, devices)
    devices[0] = 5
    assert assignment.devices.tolist() == assignment.order.tolist() == [0, 1]
    assert not assignment.devices.flags.writeable
    assert not assignment.order.flags.writeable


@settings(max_examples=examples(500))
@given(data=st.data())
def test_a_broken_file_raises_nothing_but_our_errors(tmp_path_factory, graph, data):
    path = tmp_path_factory.getbasetemp() / "broken-assignment.json"
    path.write_text(data.draw(strategies.broken_files(json.dumps(FULL))), "utf-8")
    try:
        read_assignment(path).check(graph, preset("reference:2"))
    except DopplerError:
        return
