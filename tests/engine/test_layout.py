"""Where tasks write: nothing is overwritten that is still needed, whatever order a run takes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, examples, graphs, topologies

from doppler.engine.layout import Buffers, Layout, live_bytes, make_layout
from doppler.errors import OutOfMemoryError
from doppler.graph import Graph
from doppler.tasks import TaskTable, enumerate_tasks, task_table
from doppler.topology import Device, Link, Topology


def one_device(memory_bytes: float, slots: int = 1) -> Topology:
    return Topology("one", (Device("d0", memory_bytes=memory_bytes, slots=slots),), (), [[-1]])


def chain(length: int, size: int = 10) -> Buffers:
    """Each task reads what the one before wrote; the last is a result."""
    readers: list[list[int]] = [[i + 1] for i in range(length - 1)] + [[]]
    tasks = list(range(length))
    return Buffers(tasks, [0] * length, [size] * length, [0] * length, readers, frozenset())


def test_every_buffer_has_its_place_where_there_is_room() -> None:
    def order() -> Sequence[int]:
        raise AssertionError("nobody needs it")

    layout = make_layout(chain(4), one_device(40), order)
    assert (layout.offset, layout.arena_bytes, layout.after) == ([0, 10, 20, 30], [40], [])
    unlimited = make_layout(chain(4), one_device(1), order, limit=False)
    assert unlimited.offset == layout.offset


def test_places_are_used_again_after_the_last_reader() -> None:
    layout = make_layout(chain(5), one_device(20), lambda: range(5))
    assert layout.offset == [0, 10, 0, 10, 0]
    assert layout.arena_bytes == [20]
    assert layout.after == [(2, 1), (3, 2), (4, 3)]


def test_too_little_is_said() -> None:
    message = "device `d0` is out of memory: its tensors take 20 bytes, and it has 19"
    with pytest.raises(OutOfMemoryError, match=message):
        make_layout(chain(5), one_device(19), lambda: range(5))


def test_free_neighbours_are_joined() -> None:
    sizes = [30, 10, 20, 40, 10]  # 0 and 1 are read by 2, whose output stays in use
    readers = [[2], [2], [3, 4], [4], []]
    buffers = Buffers(range(5), [0] * 5, sizes, [0] * 5, readers, frozenset())
    layout = make_layout(buffers, one_device(70), lambda: range(5))
    assert layout.offset == [0, 30, 40, 0, 60]
    assert layout.arena_bytes == [70]
    assert layout.after == [(3, 2)]


def test_the_best_fit_is_taken() -> None:
    sizes = [30, 5, 10, 5, 10]  # 0 and 2 are free after 3: 4 goes where 2 was
    readers = [[3], [4], [3], [4], []]
    buffers = Buffers(range(5), [0] * 5, sizes, [0] * 5, readers, frozenset())
    layout = make_layout(buffers, one_device(50), lambda: range(5))
    assert layout.offset == [0, 30, 35, 45, 35]
    assert layout.after == [(4, 3)]


def test_results_stay_though_they_are_read() -> None:
    buffers = chain(5)
    kept = Buffers(
        buffers.tasks, buffers.device, buffers.size, buffers.scratch, buffers.readers,
        frozenset({1}),
    )  # fmt: skip
    layout = make_layout(kept, one_device(30), lambda: range(5))
    assert layout.arena_bytes == [30]
    assert layout.offset.count(layout.offset[1]) == 1


@pytest.mark.parametrize("slots", [1, 2])
def test_scratch_is_shared_where_tasks_run_one_after_the_other(slots: int) -> None:
    buffers = chain(3)
    buffers = Buffers(
        buffers.tasks, buffers.device, buffers.size, [5, 7, 0], buffers.readers, frozenset()
    )
    layout = make_layout(buffers, one_device(1000, slots), lambda: range(3))
    assert layout.arena_bytes == [37 if slots == 1 else 42]
    assert (layout.scratch[0] == layout.scratch[1]) == (slots == 1)


# Any graph.


def buffers_of(graph: Graph, topology: Topology, devices: np.ndarray) -> tuple[Buffers, TaskTable]:
    tasks = enumerate_tasks(graph, topology, devices)
    table = task_table(graph, topology, tasks)
    rng = np.random.default_rng(len(table.needs))
    size = rng.integers(0, 5, len(table.needs)) * 256
    scratch = rng.integers(0, 3, len(table.needs)) * 256 * (np.arange(len(size)) < len(devices))
    kept = frozenset(rng.choice(table.tasks, size=len(table.tasks) // 5).tolist())
    where = [*tasks.devices.tolist(), *tasks.target.tolist()]
    return Buffers(
        table.tasks, where, size.tolist(), scratch.tolist(), table.dependents, kept
    ), table


def an_order(table: TaskTable, seed: int) -> list[int]:
    """A random order in which every task comes after what it needs."""
    rng, missing = np.random.default_rng(seed), table.num_needs
    ready = [task for task in table.tasks if not missing[task]]
    order = []
    while ready:
        task = ready.pop(int(rng.integers(len(ready))))
        order.append(task)
        for other in table.dependents[task]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return order


def assert_safe(buffers: Buffers, layout: Layout, table: TaskTable, order: list[int]) -> None:
    """Of two tasks that write to the same bytes, one waits for all who use what the other wrote."""
    before: dict[int, set[int]] = {}
    for task in order:
        before[task] = {each for need in table.needs[task] for each in (need, *before[need])}
    spans = [
        (buffers.device[t], layout.offset[t], layout.offset[t] + buffers.size[t], t) for t in order
    ]
    for i, (device, low, high, old) in enumerate(spans):
        for other, begin, end, new in spans[i + 1 :]:
            if device == other and low < end and begin < high:
                assert old not in buffers.kept
                assert buffers.readers[old]
                assert {old, *buffers.readers[old]} <= before[new]


@settings(max_examples=examples(200))
@given(st.data())
def test_no_order_overwrites_what_is_needed(data: st.DataObject) -> None:
    drawn = data.draw(topologies())
    graph = data.draw(graphs(num_devices=drawn.num_devices))
    devices = data.draw(devices_for(graph, drawn))
    buffers, table = buffers_of(graph, drawn, devices)
    order = an_order(table, data.draw(st.integers(0, 9)))
    least = live_bytes(buffers, drawn.num_devices, order)
    room = data.draw(st.sampled_from([1.0, 1.3, 2.0]))
    limited = [
        Device(d.name, memory_bytes=max(room * size, 1.0), slots=d.slots)
        for d, size in zip(drawn.devices, least, strict=True)
    ]
    links = tuple(Link(link.name, 1e9, lanes=link.lanes) for link in drawn.links)
    topology = Topology("limited", tuple(limited), links, drawn.route)
    try:
        layout = make_layout(buffers, topology, lambda: order)
    except OutOfMemoryError:
        assert room < 2.0 or any(d.slots > 1 for d in limited) or max(buffers.scratch)
        return
    for d, size in enumerate(layout.arena_bytes):
        assert size <= limited[d].memory_bytes
    tasks = enumerate_tasks(graph, topology, devices)
    after = task_table(graph, topology, tasks, layout.after)
    position = {task: i for i, task in enumerate(order)}
    assert all(position[other] < position[task] for task, other in layout.after)
    assert_safe(buffers, layout, after, order)
