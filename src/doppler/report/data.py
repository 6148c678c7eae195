"""What a report shows, as JSON: columns of tasks, causes, graph; every name is made visible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import BoolArray, IntArray, plain
from doppler.base.notebook import cut
from doppler.base.palette import COLOURS
from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.report.causes import chain_time, most_over_time, utilization_over_time
from doppler.report.config import Detail, ReportConfig
from doppler.report.curves import Curve
from doppler.report.graph_view import LONGEST, graph_view
from doppler.report.task_columns import TaskColumns, listed, merged, packed_columns, task_columns
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.trace.trace import REASONS


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace as a page shows it, whatever its detail: made once, as it takes long."""

    trace: Trace
    columns: TaskColumns
    chain: IntArray  # rows of the critical chain
    devices: IntArray  # (V,) device of each vertex, -1 where it was not executed
    facts: dict[str, Any]  # that do not depend on the detail


def check_graph(trace: Trace, graph: Graph | None) -> None:
    """Raise if there is a graph, and the trace is of another one."""
    if graph is not None and graph.vertex_names != trace.vertex_names:
        raise GraphError(
            f"trace `{cut(trace.graph, LONGEST)}` is of another graph than `{graph.name}`",
            hint="give the graph that was placed",
        )


def trace_view(trace: Trace, graph: Graph | None, config: ReportConfig) -> TraceView:
    """What a page says of a trace; with a graph, also of memory."""
    check_graph(trace, graph)
    chain = np.array([step.row for step in trace.critical_chain()], np.int64)
    facts = _facts(trace, config) | _memory(trace, graph, config) | {"chainTasks": len(chain)}
    return TraceView(trace, task_columns(trace), chain, devices_of(trace), facts)


def report_data(
    traces: Mapping[str, TraceView],
    *,
    graph: Graph | None,
    topology: Topology | None,
    assignments: Mapping[str, Assignment],
    lower_bounds_s: Mapping[str, float],
    runs: Mapping[str, Sequence[Curve]],
    config: ReportConfig,
    detail: Detail,
    ticks_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """All that the page shows; `ticks_s` are units of time that traces have whatever the detail."""
    tables: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    rows: list[dict[str, Any]] = []
    named: list[BoolArray] = []  # vertices with a task of their own, by table
    for name, one in traces.items():
        number = tables.setdefault((one.trace.vertex_names, one.trace.vertex_kinds), len(tables))
        columns, chain = _detailed(one, detail)
        if number == len(named):
            named.append(np.zeros(len(one.devices), np.bool_))
        named[number][columns.vertex[columns.count == 1]] = True
        tick_s = (ticks_s or {}).get(name, one.trace.makespan_s / detail.ticks)
        rows.append(
            one.facts
            | {
                "name": cut(name, LONGEST),
                "vertices": number,
                "tick_s": tick_s,
                "tasks": listed(packed_columns(columns, tick_s)),
                "chain": chain,
                "mergedTasks": int(columns.count[columns.count > 1].sum()),
                "deviceOf": one.devices.tolist(),
                "bound": lower_bounds_s.get(name),
                "order": _order(assignments.get(name), one.devices),
            }
        )
    return {
        "reasons": REASONS,
        "colours": COLOURS,
        "traces": rows,
        "machine": None if topology is None else machine_data(topology),
        "vertices": [
            _vertices(names, kinds, graph, detail, is_named)
            for (names, kinds), is_named in zip(tables, named, strict=True)
        ],
        "runs": runs_data(runs, config),
        "graph": None
        if graph is None or not detail.with_graph or not rows
        else graph_view(graph, config.max_vertices, detail.longest),
        "leftOut": _left_out(rows, graph, detail),
    }


def _detailed(one: TraceView, detail: Detail) -> tuple[TaskColumns, list[int]]:
    """The columns in this detail, and the rows of the critical chain in them."""
    if detail.max_tasks is None:
        return one.columns, one.chain.tolist()
    columns, row = merged(one.columns, one.chain, detail.max_tasks)
    return columns, list(dict.fromkeys(row[one.chain].tolist()))


def _left_out(rows: list[dict[str, Any]], graph: Graph | None, detail: Detail) -> list[str]:
    """What a page does not show because it would be too large, in words."""
    if detail == Detail():
        return []
    said = [
        f"{row['mergedTasks']:,} short tasks of {row['name']} are drawn together with their "
        "neighbours on the same device or link"
        for row in rows
        if row["mergedTasks"]
    ]
    if graph is not None and not detail.with_graph:
        said.append("the graph is not drawn")
    if not detail.all_names:
        said.append("vertices of such tasks have numbers instead of names")
    said.append(f"names are cut to {detail.longest} characters")
    return [*said, f"times are rounded to a {detail.ticks:,}th of a makespan"]


def runs_data(runs: Mapping[str, Sequence[Curve]], config: ReportConfig) -> list[dict[str, Any]]:
    """The curves of training runs."""
    return [_run(name, curves, config) for name, curves in runs.items()]


def _run(name: str, curves: Sequence[Curve], config: ReportConfig) -> dict[str, Any]:
    shown = []
    for curve in curves:
        every = -(-len(curve.step) // config.max_points)
        kept = [i for i in range(len(curve.step)) if i % every == 0 or i + 1 == len(curve.step)]
        keys = ("step", "mean_s", "least_s", "best_s", *(("loss",) if curve.loss else ()))
        columns = {key: [getattr(curve, key)[i] for i in kept] for key in keys}
        names = {"stage": cut(curve.stage, LONGEST), "exercise": cut(curve.exercise, LONGEST)}
        facts: dict[str, Any] = {
            "bound_s": curve.bound_s,
            "episodesPerS": curve.episodes_per_s,
            "untrained": [(cut(placer, LONGEST), found_s) for placer, found_s in curve.untrained_s],
        }
        shown.append(names | columns | facts)
    return {"name": cut(name, LONGEST), "curves": shown}


def machine_data(topology: Topology) -> dict[str, Any]:
    """Memory of the devices and bandwidth of the links, by name; None where there is no limit."""
    memory = [d.memory_bytes for d in topology.devices]
    speed = [link.bandwidth_bytes_per_s for link in topology.links]
    return {
        "devices": {
            cut(d.name, LONGEST): _finite(m) for d, m in zip(topology.devices, memory, strict=True)
        },
        "links": {
            cut(x.name, LONGEST): _finite(s) for x, s in zip(topology.links, speed, strict=True)
        },
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _memory(trace: Trace, graph: Graph | None, config: ReportConfig) -> dict[str, Any]:
    """The most bytes on each device in each part of the makespan; a graph says what they are."""
    if graph is None or not trace.makespan_s:
        return {}
    edges = np.linspace(0.0, trace.makespan_s, config.bins + 1)
    rows = [most_over_time(use.time_s, use.used_bytes, edges) for use in trace.memory(graph)]
    return {"memory": {"bytes": [plain(np.round(row)) for row in rows]}}


def devices_of(trace: Trace) -> IntArray:
    """(V,) device of each vertex in a trace, -1 where it was not executed."""
    devices = np.full(len(trace.vertex_names), -1)
    execs = ~trace.is_transfer
    devices[trace.vertex[execs]] = trace.device[execs]
    return devices


def _order(assignment: Assignment | None, devices: IntArray) -> list[int] | None:
    """The order in which the vertices were chosen, if the trace is of this assignment."""
    if assignment is None or assignment.order is None:
        return None
    if not np.array_equal(assignment.devices, devices):
        return None
    return list(assignment.order.tolist())


def _vertices(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    graph: Graph | None,
    detail: Detail,
    is_named: BoolArray,
) -> dict[str, Any]:
    wanted = [True] * len(names) if detail.all_names else is_named.tolist()
    texts = [cut(name, detail.longest) if w else "" for name, w in zip(names, wanted, strict=True)]
    table = {"name": texts, "numbered": not detail.all_names, **_coded("kind", kinds, detail)}
    if graph is not None and any(graph.meta_ops):
        table |= _coded("meta", graph.meta_ops, detail)
    return table


def _coded(key: str, texts: tuple[str, ...], detail: Detail) -> dict[str, Any]:
    """A column of few different texts: these, and the number of each row's."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return {
        f"{key}s": [cut(text, detail.longest) for text in number],
        key: [number[text] for text in texts],
    }


def _facts(trace: Trace, config: ReportConfig) -> dict[str, Any]:
    return {
        "graph": cut(trace.graph, LONGEST),
        "topology": cut(trace.topology, LONGEST),
        "placer": cut(trace.placer, LONGEST),
        "makespan": trace.makespan_s,
        "devices": [
            {"name": cut(d.name, LONGEST), "group": cut(d.group, LONGEST), "slots": d.slots}
            for d in trace.devices
        ],
        "links": [{"name": cut(x.name, LONGEST), "lanes": x.lanes} for x in trace.links],
        "chainTime": chain_time(trace)._asdict(),
        "series": np.round(utilization_over_time(trace, config.bins), 3).tolist(),
        "utilization": trace.utilization().tolist(),
        "linkUtilization": trace.link_utilization().tolist(),
        "linkBytes": trace.bytes_by_link().tolist(),
        "classBytes": trace.bytes_by_class(),
        "bytesMoved": trace.bytes_moved,
        "overlap": trace.overlap(),
    }
