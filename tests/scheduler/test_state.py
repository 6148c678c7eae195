"""Events in, instructions out: the scheduler's state machine without any clock."""

from contextlib import nullcontext

import numpy as np
import pytest

from doppler.assignment import Assignment
from doppler.errors import OutOfMemoryError
from doppler.graph import Graph, GraphBuilder, Kernel
from doppler.scheduler.state import SchedulerState
from doppler.sim import ReferenceSimulator, SimConfig, Simulator
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology import Device, Link, Topology


def fan_out() -> Graph:
    """a makes one tensor; b, c and d read it; e reads nothing."""
    g = GraphBuilder("fan out")
    t = g.op("a", "matmul", reads=[], output_bytes=4)
    for name in "bcd":
        g.op(name, "matmul", reads=[t], output_bytes=4)
    g.op("e", "matmul", reads=[], output_bytes=4)
    return g.build()


def machine(*, memory: float = float("inf"), slots: int = 1, lanes: int = 1) -> Topology:
    devices = tuple(Device(f"d{i}", memory_bytes=memory, slots=slots) for i in range(3))
    route = np.zeros((3, 3), int)
    np.fill_diagonal(route, -1)
    return Topology("three on a bus", devices, (Link("bus", lanes=lanes),), route)


def start(
    graph: Graph, topology: Topology, devices: list[int], **options: object
) -> tuple[SchedulerState, Tasks]:
    tasks = enumerate_tasks(graph, topology, np.array(devices))
    state = SchedulerState(graph, topology, tasks, **options)  # type: ignore[arg-type]
    state.begin(0.0)
    return state, tasks


def chosen(state: SchedulerState) -> list[int]:
    """Everything the scheduler starts now."""
    tasks = []
    while (task := state.choose()) is not None:
        tasks.append(task)
    return tasks


def finish(state: SchedulerState, task: int, now: float) -> list[int]:
    state.release(task)
    state.complete(task, now)
    return chosen(state)


A, B, C, D, E, FIRST_TRANSFER, SECOND_TRANSFER = range(7)


def test_entries_start_at_once_where_there_is_a_slot() -> None:
    state, _ = start(fan_out(), machine(), [0, 1, 1, 2, 0])
    assert chosen(state) == [A]  # e waits: d0 has one slot
    assert state.unfinished == 7


def test_both_slots_are_filled() -> None:
    state, _ = start(fan_out(), machine(slots=2), [0, 1, 1, 2, 0])
    assert chosen(state) == [A, E]


def test_a_result_goes_once_to_each_device_that_needs_it() -> None:
    state, tasks = start(fan_out(), machine(lanes=0), [0, 1, 1, 2, 0])
    assert (tasks.tensor.tolist(), tasks.target.tolist()) == ([0, 0], [1, 2])
    assert chosen(state) == [A]
    assert finish(state, A, 1.0) == [E, FIRST_TRANSFER, SECOND_TRANSFER]
    assert finish(state, FIRST_TRANSFER, 2.0) == [B]
    assert finish(state, B, 3.0) == [C]
    assert finish(state, SECOND_TRANSFER, 4.0) == [D]
    for task in (E, C, D):
        assert finish(state, task, 5.0) == []
    assert state.unfinished == 0


def test_a_lane_is_taken_until_it_is_released() -> None:
    state, _ = start(fan_out(), machine(lanes=1), [0, 1, 1, 2, 0])
    chosen(state)
    assert finish(state, A, 1.0) == [E, FIRST_TRANSFER]
    assert finish(state, FIRST_TRANSFER, 2.0) == [SECOND_TRANSFER, B]


def test_release_frees_the_slot_before_the_result_is_known() -> None:
    state, _ = start(fan_out(), machine(), [0, 0, 1, 1, 0])
    chosen(state)
    state.release(A)
    assert chosen(state) == [E]
    state.complete(A, 1.5)
    assert chosen(state) == [FIRST_TRANSFER]


def test_priorities_rule_where_given() -> None:
    urgent_e = np.array([5.0, 4, 3, 2, 1])
    state, _ = start(fan_out(), machine(), [0, 1, 1, 2, 0], priority=urgent_e)
    assert chosen(state) == [E]


def test_the_most_urgent_reader_makes_a_transfer_urgent() -> None:
    priority = np.array([0.0, 9, 9, 1, 0])
    state, _ = start(fan_out(), machine(lanes=1), [0, 1, 1, 2, 0], priority=priority)
    chosen(state)
    assert finish(state, A, 1.0) == [E, SECOND_TRANSFER]


def test_a_barrier_holds_transfers_back_until_the_level_is_done() -> None:
    state, _ = start(fan_out(), machine(slots=2, lanes=0), [0, 1, 1, 2, 0], synchronous=True)
    assert chosen(state) == [A, E]
    assert finish(state, A, 1.0) == []
    assert finish(state, E, 2.0) == [FIRST_TRANSFER, SECOND_TRANSFER]
    assert finish(state, FIRST_TRANSFER, 3.0) == []
    assert finish(state, SECOND_TRANSFER, 4.0) == [B, C, D]


def test_what_lacks_memory_is_set_aside_and_others_go_ahead() -> None:
    """d0 holds 12 bytes: a and e take 8, b's output 4, c's must wait until a's is freed."""
    state, _ = start(fan_out(), machine(memory=12, slots=4), [0, 0, 0, 0, 0])
    assert chosen(state) == [A, E]
    assert finish(state, A, 1.0) == [B]
    assert finish(state, B, 2.0) == []
    assert finish(state, E, 3.0) == []
    assert state.unfinished == 2
    error = state.stuck()
    assert "`d0`" in str(error)
    assert "vertex `c` needs 4 bytes, 0 are free" in str(error)


def test_memory_freed_lets_the_waiting_go() -> None:
    """With one slot less to fill: once b, c and d have read a's output its 4 bytes are free."""
    g = GraphBuilder("chain")
    t = g.op("a", "matmul", reads=[], output_bytes=4)
    g.op("b", "matmul", reads=[t], output_bytes=4)
    g.op("c", "matmul", reads=[], output_bytes=4)
    state, _ = start(g.build(), machine(memory=8, slots=3), [0, 0, 0])
    assert chosen(state) == [0, 2]
    assert finish(state, 0, 1.0) == []  # b does not fit beside a and c
    state, _ = start(
        g.build(), machine(memory=9, slots=1), [0, 0, 0], priority=np.array([0.0, 1, 2])
    )
    assert chosen(state) == [0]
    assert finish(state, 0, 1.0) == [1]
    assert finish(state, 1, 2.0) == [2]  # a's output was freed when b ended


def test_a_result_that_is_read_stays() -> None:
    """a's output is 4 of 8 bytes; c has room once b has read it, unless it is a result."""
    block = {"block": [[0, 1]]}
    for attributes, expected in ((block, [2]), (block | {"result": "a"}, [])):
        g = GraphBuilder("chain")
        kernel = Kernel("fill", (), ((1,),), ("float32",), attributes)
        t = g.op("a", "fill", reads=[], output_bytes=4, exec_s=1.0, kernel=kernel, meta_op="a")
        reader = Kernel("select", (0,), ((1,),), ("float32",), block)
        g.op("b", "select", reads=[t], output_bytes=4, exec_s=1.0, kernel=reader, meta_op="b")
        plain = Kernel("fill", (), ((1,),), ("float32",), block)
        g.op("c", "fill", reads=[], output_bytes=4, exec_s=1.0, kernel=plain, meta_op="c")
        graph = g.build()
        topology = Topology("one", (Device("d0", memory_bytes=8.0),), (), np.array([[-1]]))
        state, _ = start(graph, topology, [0, 0, 0], priority=np.array([0.0, 1, 2]))
        assert chosen(state) == [0]
        assert finish(state, 0, 1.0) == [1]
        assert finish(state, 1, 2.0) == expected
        for kind in (Simulator, ReferenceSimulator):
            simulator = kind(topology, SimConfig(strategy="order"))
            runs = nullcontext() if expected else pytest.raises(OutOfMemoryError)
            with runs:
                simulator.run(graph, Assignment(np.zeros(3, np.int64), np.arange(3)))
