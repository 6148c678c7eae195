"""Schedules: what is one, which fit, and what is made from times."""

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.assignment import Assignment, read_assignment, write_assignment
from doppler.errors import AssignmentError, FormatError, WrongTypeError
from doppler.graph import Graph, GraphBuilder
from doppler.schedule import (
    Schedule,
    schedule_document,
    schedule_from_document,
    schedule_from_times,
)
from doppler.tasks import Tasks, dependencies, enumerate_tasks
from doppler.topology import Device, Link, Topology

DEVICES = np.array([-1, 0, 1, 0])
TASKS = [1, 4, 2, 5, 3]  # a, a→1, b, b→0, c


def two_devices(*, slots: int = 1, lanes: int = 1) -> Topology:
    route = np.array([[-1, 0], [0, -1]])
    devices = tuple(Device(f"d{i}", slots=slots) for i in range(2))
    return Topology("two", devices, (Link("link", lanes=lanes),), route)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """x → a → b → c, and a → c; x is an input."""
    g = GraphBuilder("chain")
    x = g.input("x", output_bytes=1)
    a = g.op("a", "matmul", reads=[x], output_bytes=1, exec_s=1, transfer_s=1)
    b = g.op("b", "matmul", reads=[a], output_bytes=1, exec_s=1, transfer_s=1)
    g.op("c", "matmul", reads=[a, b], output_bytes=1, exec_s=1, transfer_s=1)
    return g.build()


def tasks_of(graph: Graph) -> Tasks:
    return enumerate_tasks(graph, two_devices(), DEVICES)


def test_dependencies_are_producers_and_the_transfers_that_bring_their_tensors(graph):
    needed, needs = dependencies(graph, tasks_of(graph))
    pairs = sorted(zip(needed.tolist(), needs.tolist(), strict=True))
    assert pairs == [(1, 3), (1, 4), (2, 5), (4, 2), (5, 3)]


def test_a_schedule_that_fits(graph):
    Schedule(TASKS, [0] * 5).check(graph, two_devices(), tasks_of(graph))
    Schedule(TASKS, [0, -1, 0, -1, 0]).check(graph, two_devices(lanes=0), tasks_of(graph))
    wide = two_devices(slots=3, lanes=2)
    assignment = Assignment(DEVICES, schedule=Schedule(TASKS, [2, 1, 0, 1, 0]))
    assignment.check(graph, wide)
    assert "5 tasks in order" in repr(assignment)
    assert repr(assignment.schedule) == "<Schedule: 5 tasks in order>"
    assert "5 tasks in order" in assignment.schedule._repr_html_()


BAD = [
    ([1, 4, 2, 5], [0] * 4, "does not name each of the 5 tasks once"),
    ([1, 4, 2, 5, 5], [0] * 5, "does not name each"),
    ([1, 4, 2, 5, 0], [0] * 5, "does not name each"),
    ([1, 4, 2, 5, 99], [0] * 5, "does not name each"),
    ([4, 1, 2, 5, 3], [0] * 5, "transfer of tensor 1 of vertex `a` to device 1 before vertex 1"),
    ([1, 2, 4, 5, 3], [0] * 5, "starts vertex 2 `b` before the transfer of tensor 1"),
    (TASKS, [0, 0, 1, 0, 0], "gives vertex 2 `b` slot 1, but the topology has slots 0 to 0"),
    (TASKS, [0, 1, 0, 0, 0], "lane 1, but the topology has lanes 0 to 0"),
    (TASKS, [0, -1, 0, 0, 0], "lane -1, but"),
    (TASKS, [-1, 0, 0, 0, 0], "slot -1, but"),
]


@pytest.mark.parametrize(("tasks", "rooms", "message"), BAD)
def test_a_schedule_that_does_not_fit_says_where(graph, tasks, rooms, message):
    assignment = Assignment(DEVICES, schedule=Schedule(tasks, rooms))
    with pytest.raises(AssignmentError, match=message):
        assignment.check(graph, two_devices())


def test_a_link_without_a_limit_has_no_lanes(graph):
    with pytest.raises(AssignmentError, match="a link without a limit of lanes there"):
        Schedule(TASKS, [0] * 5).check(graph, two_devices(lanes=0), tasks_of(graph))


def test_what_is_no_schedule_is_refused():
    with pytest.raises(AssignmentError, match="tasks of a schedule must be a list of whole"):
        Schedule([0.5], [0])
    with pytest.raises(AssignmentError, match="rooms of a schedule must be a list of whole"):
        Schedule([0], [[0]])
    with pytest.raises(AssignmentError, match="has 2 tasks, but 1 rooms"):
        Schedule([0, 1], [0])
    with pytest.raises(WrongTypeError, match="schedule must be a Schedule or None"):
        Assignment([0], schedule=[0])


def test_schedules_are_equal_by_tasks_and_rooms():
    assert Schedule([0, 1], [0, 0]) == Schedule(np.array([0, 1]), np.array([0, 0]))
    assert Schedule([0, 1], [0, 0]) != Schedule([1, 0], [0, 0])
    assert Schedule([0, 1], [0, 0]) != Schedule([0, 1], [0, 1])
    assert Schedule([0], [0]) != [0]
    assert hash(Schedule([0], [0])) == hash(Schedule([0], [1]))
    assert Assignment([0], schedule=Schedule([0], [0])) != Assignment([0])
    assert Assignment([0], schedule=Schedule([0], [0])) == Assignment(
        [0], schedule=Schedule([0], [0])
    )


def test_arrays_are_read_only_copies():
    tasks = np.array([0, 1])
    schedule = Schedule(tasks, tasks)
    tasks[0] = 5
    assert schedule.tasks.tolist() == schedule.rooms.tolist() == [0, 1]
    assert not schedule.tasks.flags.writeable


def test_tasks_come_in_the_order_in_which_they_began(graph):
    times = np.array([0, 3, 5, 9, 4, 6.0])
    made = schedule_from_times(graph, two_devices(), tasks_of(graph), times, times + 1)
    assert made == Schedule(TASKS, [0] * 5)
    # By the clock of another device, b began before its input was there.
    times[2] = 1
    made = schedule_from_times(graph, two_devices(), tasks_of(graph), times, times + 1)
    assert made == Schedule(TASKS, [0] * 5)
    # Everything at once: what is needed comes first.
    made = schedule_from_times(graph, two_devices(), tasks_of(graph), np.zeros(6), np.zeros(6))
    assert made == Schedule(TASKS, [0] * 5)


def test_what_took_no_time_comes_before_what_began_with_it():
    g = GraphBuilder("pair")
    g.op("long", "matmul", reads=[], output_bytes=1, exec_s=5, transfer_s=1)
    g.op("none", "matmul", reads=[], output_bytes=1, exec_s=0, transfer_s=1)
    pair, topology = g.build(), two_devices()
    tasks = enumerate_tasks(pair, topology, np.array([0, 0]))
    made = schedule_from_times(pair, topology, tasks, np.zeros(2), np.array([5.0, 0]))
    assert made.tasks.tolist() == [1, 0]


def test_a_task_gets_the_room_that_is_free_first():
    g = GraphBuilder("three")
    for name in "abcd":
        g.op(name, "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=1)
    four, topology = g.build(), two_devices(slots=2)
    tasks = enumerate_tasks(four, topology, np.zeros(4, int))
    begin, end = np.array([0, 0, 1, 2.0]), np.array([2, 1, 2, 3.0])
    made = schedule_from_times(four, topology, tasks, begin, end)
    assert made == Schedule([1, 0, 2, 3], [0, 1, 0, 0])


@settings(deadline=None)
@given(data=st.data())
def test_schedules_survive_their_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "scheduled.json"
    topology = data.draw(strategies.topologies())
    graph = data.draw(strategies.graphs(num_devices=topology.num_devices))
    devices = data.draw(strategies.devices_for(graph, topology))
    schedule = data.draw(strategies.schedules_for(graph, topology, devices))
    assignment = Assignment(devices, schedule=schedule)
    assignment.check(graph, topology)
    write_assignment(assignment, path)
    assert read_assignment(path) == assignment


FINE = schedule_document(Schedule([1, 2], [0, -1]))
BAD_DOCUMENTS = [
    ([], "must be an object, not list"),
    ({"task": [1]}, "key `room` is missing"),
    (FINE | {"lane": []}, "unknown key `lane`"),
    (FINE | {"task": 1}, "`task` must be a list"),
    (FINE | {"task": [1, None]}, "`task` holds None"),
    (FINE | {"task": [1, -1]}, "`task` holds -1"),
    (FINE | {"task": [1, 2**63]}, "`task` holds 9223372036854775808"),
    (FINE | {"task": [1]}, "has 1 tasks, but 2 rooms"),
    (FINE | {"room": [0, 0.5]}, "`room` holds 0.5"),
    (FINE | {"room": [0, True]}, "`room` holds True"),
    (FINE | {"room": "00"}, "`room` must be a list"),
]


def test_a_room_of_a_link_without_a_limit_is_null():
    assert FINE == {"task": [1, 2], "room": [0, None]}
    assert schedule_from_document(FINE, "it") == Schedule([1, 2], [0, -1])


@pytest.mark.parametrize(("document", "message"), BAD_DOCUMENTS)
def test_a_bad_document_is_named_with_its_key(document, message):
    with pytest.raises(FormatError, match=message):
        schedule_from_document(document, "`a.json`: `schedule`")
