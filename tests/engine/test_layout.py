"""Where tensors are: nothing is overwritten that is still needed, whatever order a run takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies

from doppler.base.arrays import IntArray
from doppler.engine.layout import copies_in_run, make_layout
from doppler.errors import OutOfMemoryError
from doppler.graph import Graph, GraphBuilder
from doppler.scheduler.places import IN_PLACE, Places, memory_sizes
from doppler.tasks import TaskTable, enumerate_tasks, task_table
from doppler.topology import Device, Topology


def one_device(memory_bytes: float, slots: int = 1) -> Topology:
    return Topology("one", (Device("d0", memory_bytes=memory_bytes, slots=slots),), (), [[-1]])


def chain(length: int, kind: str = "everywhere", temporary: float = 0.0) -> Graph:
    """x → v0 → v1 → …, of 10 bytes each."""
    b = GraphBuilder("chain")
    tensor = b.input("x", output_bytes=10, kind=kind)
    for i in range(length):
        tensor = b.op(
            f"v{i}", "relu", reads=[tensor], output_bytes=10, temporary_bytes=temporary * (i + 1)
        )
    return b.build()


def lay_out(graph: Graph, topology: Topology, order: Sequence[int] | None, **options) -> Places:
    devices = np.where(graph.is_input, -1, 0)
    tasks = enumerate_tasks(graph, topology, devices)

    def planned() -> Sequence[int]:
        assert order is not None, "nobody needs it"
        return order

    copies = copies_in_run(graph, tasks, None)
    return make_layout(graph, topology, tasks, copies, planned, **options)


def test_every_tensor_has_its_place_where_there_is_room() -> None:
    places = lay_out(chain(4), one_device(40), None)
    assert (places.offset, places.top, places.after) == ([0, 10, 20, 30], [40], [])
    unlimited = lay_out(chain(4), one_device(1), None, limit=False)
    assert unlimited.offset == places.offset


def test_places_are_used_again_after_the_last_reader() -> None:
    places = lay_out(chain(5), one_device(20), range(1, 6))
    assert places.top == [20]
    assert set(places.after) == {(3, 2), (4, 3), (5, 4)}


@pytest.mark.parametrize(("kind", "top"), [("everywhere", 20), ("resident", 30), ("streamed", 20)])
def test_inputs_have_places_too(kind: str, top: int) -> None:
    """A streamed one leaves after its only reader; there is no link that it could come over."""
    graph = chain(3, kind)
    places = lay_out(graph, one_device(top), range(1, 4))
    assert places.top == [top]
    (copy,) = [c for c in places.copies if c.writer == IN_PLACE] or [None]
    assert (copy is None) == (kind == "everywhere")
    assert copy is None or copy.is_kept == (kind == "resident")


def test_too_little_is_said() -> None:
    message = (
        r"device `d0` is out of memory: its tensors take 30 bytes "
        r"\(10 are of inputs that are in place\), 1 more than the 29 it has"
    )
    with pytest.raises(OutOfMemoryError, match=message) as error:
        lay_out(chain(3, "resident"), one_device(29), range(1, 4))
    assert "memory plan" in str(error.value.hint)


@pytest.mark.parametrize("slots", [1, 2])
def test_temporaries_are_shared_where_tasks_run_one_after_the_other(slots: int) -> None:
    places = lay_out(chain(3, temporary=5.0), one_device(1000, slots), None)
    assert places.top == [45 if slots == 1 else 60]
    assert (places.temporary[1] == places.temporary[2]) == (slots == 1)


# Any graph.


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


def assert_safe(graph: Graph, devices: IntArray, places: Places, table: TaskTable) -> None:
    """Of two that are in the same bytes, one is written after all who use the other are done."""
    before: dict[int, set[int]] = {}
    for task in an_order(table, 0):
        before[task] = {each for need in table.needs[task] for each in (need, *before[need])}
    sizes, temporaries = memory_sizes(graph)
    spans = [  # device, offset, bytes, writer, users, whether it stays
        (c.device, at, sizes[c.tensor], c.writer, c.users or [c.writer], c.is_kept)
        for c, at in zip(places.copies, places.offset, strict=True)
    ]
    spans += [
        (int(devices[v]), places.temporary[v], temporaries[v], v, [v], False)
        for v in graph.assigned.tolist()
    ]

    def gone(old, new) -> bool:
        *_, users, stays = old
        return not stays and new[3] != IN_PLACE and set(users) <= before[new[3]]

    for i, one in enumerate(spans):
        for other in spans[:i]:
            apart = (
                one[0] != other[0] or one[1] >= other[1] + other[2] or other[1] >= one[1] + one[2]
            )
            empty = not one[2] or not other[2]
            assert apart or empty or gone(one, other) or gone(other, one)


@settings(max_examples=100)
@given(st.data())
def test_no_order_overwrites_what_is_needed(data: st.DataObject) -> None:
    drawn = data.draw(topologies())
    graph = data.draw(graphs(num_devices=drawn.num_devices))
    devices = data.draw(devices_for(graph, drawn))
    tasks = enumerate_tasks(graph, drawn, devices)
    table = task_table(graph, drawn, tasks)
    order = an_order(table, data.draw(st.integers(0, 9)))
    copies = copies_in_run(graph, tasks, None)
    unlimited = replace(
        drawn, devices=tuple(replace(d, slots=2, memory_bytes=np.inf) for d in drawn.devices)
    )
    apart = make_layout(graph, unlimited, tasks, copies, lambda: order)
    room = data.draw(st.sampled_from([0.3, 0.6, 0.9]))
    limits = [max(room * top, 1.0) for top in apart.top]
    limited = [
        replace(device, slots=2, memory_bytes=limit)
        for device, limit in zip(drawn.devices, limits, strict=True)
    ]
    topology = replace(drawn, devices=tuple(limited))
    try:
        places = make_layout(graph, topology, tasks, copies, lambda: order)
    except OutOfMemoryError:
        return
    assert all(top <= limit for top, limit in zip(places.top, limits, strict=True))
    position = {task: i for i, task in enumerate(order)}
    assert all(position[other] < position[task] for task, other in places.after)
    assert_safe(graph, devices, places, task_table(graph, topology, tasks, places.after))
