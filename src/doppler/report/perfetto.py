"""Traces as events for Perfetto and chrome://tracing, in the JSON trace-event format."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.notebook import cut
from doppler.base.text import json_visible
from doppler.base.writing import write_text
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.report.causes import utilization_over_time
from doppler.report.config import ReportConfig
from doppler.report.data import check_graph
from doppler.trace import Trace

KIND = "doppler-perfetto"
LONGEST = 200  # characters of a name
US = 1e6  # the format counts in microseconds


def write_perfetto(
    traces: Mapping[str, Trace],
    path: str | Path,
    *,
    graph: Graph | None = None,
    config: ReportConfig | None = None,
    force: bool = False,
) -> None:
    """Write the traces for https://ui.perfetto.dev or chrome://tracing.

    A device and its slots, and a link and its lanes, are a process and its threads. Arrows lead
    from a task to the one whose last input it made; with a graph, to all that need it. Counters
    show utilization over time and, with a graph, the memory in use.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_perfetto({"heft": trace}, "heft.perfetto.json", graph=graph)
    """
    if not traces:
        raise ConfigError("a report needs at least one trace")
    events: list[dict[str, Any]] = []
    first = 1  # Perfetto takes process 0 for the idle one
    for name, trace in traces.items():
        check_graph(trace, graph)
        events += _events(trace, name if len(traces) > 1 else "", first, graph, config)
        first += len(trace.devices) + len(trace.links)
    document = {
        "otherData": {"format": KIND},
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }
    text = json_visible(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    write_text(path, text + "\n", kind=KIND, force=force)


def _events(
    trace: Trace, name: str, first: int, graph: Graph | None, config: ReportConfig | None
) -> list[dict[str, Any]]:
    resource = np.where(trace.is_transfer, len(trace.devices) + trace.link, trace.device)
    process = (first + resource).tolist()
    thread = _threads(trace, resource.tolist())
    events = list(_names(trace, name, first, sorted(set(zip(process, thread, strict=True)))))
    events += _slices(trace, process, thread)
    events += _flows(trace, _needs(trace, graph), process, thread, first)
    events += _counters(trace, first, (config or ReportConfig()).bins)
    events += _memory(trace, graph, first)
    return events


def _threads(trace: Trace, resource: list[int]) -> list[int]:
    """The slot or lane of each row: the first of its device or link that is free."""
    free_s: dict[int, list[float]] = {}
    found = []
    rows = zip(resource, trace.begin_s.tolist(), trace.end_s.tolist(), strict=True)
    for where, begin_s, end_s in rows:
        slots = free_s.setdefault(where, [])
        slot = next((i for i, until_s in enumerate(slots) if until_s <= begin_s), len(slots))
        slot = slot if end_s > begin_s else 0  # what takes no time needs no slot of its own
        slots[slot : slot + 1] = [max([end_s, *slots[slot : slot + 1]])]
        found.append(slot)
    return found


def _names(
    trace: Trace, name: str, first: int, threads: list[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    places = [("slot", d.name) for d in trace.devices] + [("lane", x.name) for x in trace.links]
    used = {process for process, _ in threads}
    for process, (_, place) in enumerate(places, first):
        if process - first < len(trace.devices) or process in used:
            shown = f"{cut(name, LONGEST)}: " if name else ""
            yield _meta("process_name", process, 0, {"name": shown + cut(place, LONGEST)})
            yield _meta("process_sort_index", process, 0, {"sort_index": process})
    for process, thread in threads:
        what = places[process - first][0]
        yield _meta("thread_name", process, thread, {"name": f"{what} {thread}"})


def _meta(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


def _slices(trace: Trace, process: list[int], thread: list[int]) -> Iterator[dict[str, Any]]:
    chain, moves = {step.row for step in trace.critical_chain()}, trace.is_transfer.tolist()
    for step in trace.waits():
        row, vertex = step.row, int(trace.vertex[step.row])
        args: dict[str, Any] = {
            "vertex": vertex,
            "ready_us": float(trace.ready_s[row] * US),
            "waited_for": step.waited_for,
            "critical": row in chain,
        }
        if moves[row]:
            args["bytes"] = float(trace.moved_bytes[row])
        kind = "transfer" if moves[row] else cut(trace.vertex_kinds[vertex], LONGEST)
        yield {
            "ph": "X",
            "name": cut(trace.vertex_names[vertex], LONGEST),
            "cat": kind,
            "pid": process[row],
            "tid": thread[row],
            "ts": float(trace.begin_s[row] * US),
            "dur": float((trace.end_s[row] - trace.begin_s[row]) * US),
            "args": args,
        }


def _needs(trace: Trace, graph: Graph | None) -> list[tuple[int, int]]:
    """Rows of tasks, and of those that need them: all with a graph, otherwise the last only."""
    rows, moves = range(len(trace.vertex)), trace.is_transfer.tolist()
    last = [(int(trace.after[row]), row) for row in rows if trace.after[row] >= 0]
    if graph is None:
        return last
    exec_row: dict[int, int] = {}
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        if moves[row]:
            arrivals[int(trace.tensor[row]), int(trace.device[row])].append(row)
        else:
            exec_row[int(trace.vertex[row])] = row
    pairs = [(giver, row) for giver, row in last if moves[row]]
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        row = exec_row.get(reader, -1)
        came = arrivals[tensor, int(trace.device[row])] if row >= 0 else []
        # Memory plans bring a tensor more than once; what counts is the last time before its use.
        before = [one for one in came if trace.end_s[one] <= trace.begin_s[row]]
        made = exec_row.get(int(graph.tensor_producer[tensor]), -1)
        giver = before[-1] if before else made
        if row >= 0 and giver >= 0:
            pairs.append((giver, row))
    return pairs


def _flows(
    trace: Trace, pairs: list[tuple[int, int]], process: list[int], thread: list[int], first: int
) -> Iterator[dict[str, Any]]:
    """Two events for each arrow: it leaves where a task ends, and arrives where one begins."""
    for number, (giver, taker) in enumerate(pairs):
        same = {"name": "needs", "cat": "dependency", "id": f"{first}.{number}"}
        # An arrow is bound to the slice around its time; the very end may belong to the next one.
        middle_s = (trace.begin_s[giver] + trace.end_s[giver]) / 2
        leaves = {
            "ph": "s",
            "pid": process[giver],
            "tid": thread[giver],
            "ts": float(middle_s * US),
        }
        begin_s = float(trace.begin_s[taker] * US)
        arrives = {"ph": "f", "bp": "e", "pid": process[taker], "tid": thread[taker], "ts": begin_s}
        yield same | leaves
        yield same | arrives


def _counters(trace: Trace, first: int, bins: int) -> Iterator[dict[str, Any]]:
    edges = (np.linspace(0.0, trace.makespan_s, bins + 1) * US).tolist()
    for device, row in enumerate(np.round(100 * utilization_over_time(trace, bins), 1).tolist()):
        for time_us, percent in zip(edges, [*row, 0.0], strict=True):
            args = {"percent": percent}
            counter = {"ph": "C", "name": "utilization", "pid": first + device, "tid": 0}
            yield counter | {"ts": time_us, "args": args}


def _memory(trace: Trace, graph: Graph | None, first: int) -> Iterator[dict[str, Any]]:
    """Bytes in use on each device, wherever they change; a graph says what they are."""
    for device, use in enumerate([] if graph is None else trace.memory(graph)):
        counter = {"ph": "C", "name": "memory", "pid": first + device, "tid": 0}
        for time_s, used in zip(use.time_s.tolist(), use.used_bytes.tolist(), strict=True):
            yield counter | {"ts": time_s * US, "args": {"bytes": used}}
