"""Hypothesis strategies for the values of Doppler, and documents that are not quite right."""

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from doppler.base.arrays import IntArray
from doppler.graph import Graph, InputKind, build_graph
from doppler.schedule import Schedule, all_tasks
from doppler.tasks import dependencies, enumerate_tasks
from doppler.topology import DTYPE_CLASSES, KERNEL_FAMILIES, Device, Host, Link, Topology

# Round values make ties likely, arbitrary ones make rounding visible.
seconds = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(1e-30, 10)
whole_sizes = (st.integers(0, 2) | st.integers(0, 10**9)).map(float)
rates = st.sampled_from([1.0, 2.0, 1e8]) | st.floats(0.5, 1e12)
unlimited = st.just(math.inf)


def examples(count: int) -> int:
    """How many examples a property is tried on: `count` in `make thorough`, else a third of them.

    They are other ones each time.
    """
    return count if os.environ.get("THOROUGH") else count // 3


# Making a strategy takes longer than drawing from it, so functions that draw make few.
T = TypeVar("T")


@lru_cache(maxsize=None, typed=True)
def one_of(*options: Hashable) -> st.SearchStrategy[Any]:
    """`st.sampled_from` these, made once."""
    return st.sampled_from(options)


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """One of the options, which need not be hashable."""
    return options[draw(st.integers(0, len(options) - 1))]


@cache
def _mostly_large(largest: int) -> st.SearchStrategy[int]:
    return st.integers(1, largest) | st.integers((largest + 1) // 2, largest)


@cache
def _orders(size: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(size))


@st.composite
def graphs(draw: st.DrawFn, *, max_vertices: int = 8, num_devices: int | None = None) -> Graph:
    """A graph whose ids are in no particular order, with inputs and several tensors per vertex.

    With or without explicit costs; `exec_s` may be per device where `num_devices` is given.
    """
    size = draw(_mostly_large(max_vertices))
    order = draw(_orders(size))

    def column(entries: st.SearchStrategy[Any], length: int) -> list[Any]:
        return draw(st.lists(entries, min_size=length, max_size=length))

    kinds = column(one_of("matmul", "select", "matmul", "input"), size)
    producers: list[int] = []
    edges: list[tuple[int, int]] = []
    for vertex in order:
        if producers and kinds[vertex] != "input":
            fewest = draw(one_of(1, 1, 0))
            tensors = st.sets(st.integers(0, len(producers) - 1), min_size=fewest, max_size=4)
            edges += [(tensor, vertex) for tensor in sorted(draw(tensors))]
        producers += [vertex] * draw(one_of(1, 2, 1, 0))

    per_vertex = [seconds]
    if num_devices is not None:
        per_vertex.append(st.lists(seconds, min_size=num_devices, max_size=num_devices))
    exec_s, transfer_s = pick(draw, [None, *per_vertex]), draw(st.booleans())
    return build_graph(
        name="random",
        kinds=kinds,
        flops=column(whole_sizes, size),
        touched_bytes=column(whole_sizes, size),
        input_kinds=[draw(one_of(*InputKind)) if k == "input" else "" for k in kinds],
        temporary_bytes=column(whole_sizes, size) if draw(st.booleans()) else None,
        exec_s=None if exec_s is None else column(exec_s, size),
        tensor_producer=producers,
        tensor_bytes=column(whole_sizes, len(producers)),
        transfer_s=column(seconds, len(producers)) if transfer_s else None,
        edge_tensor=[tensor for tensor, _ in edges],
        edge_reader=[reader for _, reader in edges],
    )


_CONTENTION = st.just({}) | st.dictionaries(st.sampled_from(KERNEL_FAMILIES), st.floats(1, 3))


@st.composite
def topologies(
    draw: st.DrawFn,
    *,
    max_devices: int = 4,
    memory_bytes: st.SearchStrategy[float] = unlimited,
) -> Topology:
    """A machine of unequal devices with a few links, shared by random pairs of them."""
    size = draw(_mostly_large(max_devices))
    devices = [
        Device(
            name=f"d{i}",
            flops_per_s={key: draw(rates) for key in DTYPE_CLASSES},
            memory_bytes_per_s=draw(rates),
            memory_bytes=draw(memory_bytes),
            slots=draw(st.integers(1, 3)),
            launch_s=draw(seconds),
            group=draw(one_of("", "left", "right")),
        )
        for i in range(size)
    ]
    links = [
        Link(f"l{i}", draw(rates), latency_s=draw(seconds), lanes=draw(st.integers(0, 2)))
        for i in range(draw(st.integers(1, 4)))
    ]
    pairs = st.lists(st.integers(0, len(links) - 1), min_size=size * size, max_size=size * size)
    route = np.array(draw(pairs)).reshape(size, size)
    np.fill_diagonal(route, -1)
    host = Host(draw(seconds), draw(seconds), ahead=draw(st.integers(0, 2)))
    to_host = st.lists(st.integers(0, len(links) - 1), min_size=size, max_size=size)
    return Topology(
        "random",
        tuple(devices),
        tuple(links),
        route,
        host,
        contention=draw(_CONTENTION),
        host_links=tuple(draw(to_host)) if draw(st.booleans()) else (),
    )


@st.composite
def devices_for(draw: st.DrawFn, graph: Graph, topology: Topology) -> IntArray:
    """(V,) a device for every vertex, -1 for inputs."""
    device = st.integers(0, topology.num_devices - 1)
    return np.array([-1 if is_input else draw(device) for is_input in graph.is_input], np.int64)


@st.composite
def schedules_for(draw: st.DrawFn, graph: Graph, topology: Topology, devices: IntArray) -> Schedule:
    """Any order of all tasks that can be kept, each in any slot or lane."""
    tasks = enumerate_tasks(graph, topology, devices)
    needed, needs = dependencies(graph, tasks)
    missing = np.bincount(needs, minlength=graph.num_vertices + tasks.num_transfers)
    ready = [t for t in all_tasks(graph, tasks).tolist() if missing[t] == 0]
    order, rooms = [], []
    while ready:
        task = ready.pop(draw(st.integers(0, len(ready) - 1)))
        order.append(task)
        for other in needs[needed == task].tolist():
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
        k = task - graph.num_vertices
        limit = (
            topology.devices[devices[task]].slots if k < 0 else topology.links[tasks.link[k]].lanes
        )
        rooms.append(draw(st.integers(0, limit - 1)) if limit else -1)
    return Schedule(np.array(order, np.int64), np.array(rooms, np.int64))


_ODD_VALUES = [None, -1, 1.5, True, "x", "\ud800", "\0", [], {}, [[1]], math.nan, math.inf]
_ODD_VALUES += [2**31, 2**63, 10**400]
_ODD_TEXTS = ["", "null", "-1", "1e999", "NaN", "true", '"x"', '"\\ud800"', "[]", "{}", "{", "]"]


def changed(document: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a JSON document with other values at dotted keys; `...` takes a key away."""
    document = deepcopy(document)
    for path, value in changes.items():
        *tables, key = [int(part) if part.isdigit() else part for part in path.split(".")]
        table = document
        for name in tables:
            table = table[name]
        table[key] = value
        if value is ...:
            del table[key]
    return document


def broken_files(text: str) -> st.SearchStrategy[str]:
    """A JSON text with slices cut out, put in or exchanged, or with odd values at odd places."""
    return edited(text) | _with_odd_values(text)


_INSERTED = st.sampled_from(_ODD_TEXTS) | st.text(max_size=4)


@st.composite
def edited(draw: st.DrawFn, text: str) -> str:
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 12)) if draw(st.booleans()) else len(text)
        inserted = draw(_INSERTED)
        text = text[:start] + inserted + text[start + length :]
    return text


@st.composite
def _with_odd_values(draw: st.DrawFn, text: str) -> str:
    document = json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        spots = list(_spots(document))
        if not spots:
            break
        holder, key = spots[draw(st.integers(0, len(spots) - 1))]
        if draw(st.integers(0, 4)) == 0:
            del holder[key]
        else:
            holder[key] = deepcopy(pick(draw, _ODD_VALUES))
    return json.dumps(document)


def _spots(value: Any) -> Any:
    """Every (container, key) below a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _spots(value[key])
