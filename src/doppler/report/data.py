"""What a report shows, as JSON: columns of tasks, causes, graph; every name is made visible."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, plain
from doppler.base.notebook import cut
from doppler.base.palette import COLOURS
from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.report.causes import chain_time, most_over_time, utilization_over_time
from doppler.report.config import ReportConfig
from doppler.report.curves import Curve
from doppler.report.graph_view import LONGEST, graph_view
from doppler.topology.topology import Topology
from doppler.trace import Trace

TICKS = 10**10  # of a makespan: times are whole numbers, which take less room than fractions
REASONS = ("start", "input", "device", "link")


def report_data(
    traces: Mapping[str, Trace],
    *,
    graph: Graph | None,
    topology: Topology | None,
    assignments: Mapping[str, Assignment],
    lower_bounds_s: Mapping[str, float],
    runs: Mapping[str, Sequence[Curve]],
    config: ReportConfig,
) -> dict[str, Any]:
    """All that the page shows."""
    tables: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    placed: dict[tuple[int, bytes], int] = {}
    shown = []
    for name, trace in traces.items():
        if graph is not None and graph.vertex_names != trace.vertex_names:
            raise GraphError(
                f"trace `{name}` is of another graph than `{graph.name}`",
                hint="give the graph that was placed",
            )
        names = tables.setdefault((trace.vertex_names, trace.vertex_kinds), len(tables))
        devices = devices_of(trace)
        row = (
            _trace(trace, config)
            | _memory(trace, graph, config)
            | {
                "name": cut(name, LONGEST),
                "vertices": names,
                "assignment": placed.setdefault((names, devices.tobytes()), len(placed)),
                "deviceOf": devices.tolist(),
                "bound": lower_bounds_s.get(name),
                "order": _order(assignments.get(name), devices),
            }
        )
        shown.append(row)
    return {
        "ticks": TICKS,
        "reasons": REASONS,
        "colours": COLOURS,
        "traces": shown,
        "machine": None if topology is None else _machine(topology),
        "vertices": [_vertices(names, kinds, graph) for names, kinds in tables],
        "runs": [_run(name, curves, config) for name, curves in runs.items()],
        "graph": None if graph is None or not shown else graph_view(graph, config.max_vertices),
    }


def _run(name: str, curves: Sequence[Curve], config: ReportConfig) -> dict[str, Any]:
    shown = []
    for curve in curves:
        every = -(-len(curve.step) // config.max_points)
        kept = [i for i in range(len(curve.step)) if i % every == 0 or i + 1 == len(curve.step)]
        columns = {
            key: [getattr(curve, key)[i] for i in kept]
            for key in ("step", "mean_s", "least_s", "best_s")
        }
        names = {"stage": cut(curve.stage, LONGEST), "exercise": cut(curve.exercise, LONGEST)}
        shown.append(names | columns | {"bound_s": curve.bound_s})
    return {"name": cut(name, LONGEST), "curves": shown}


def _machine(topology: Topology) -> dict[str, Any]:
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


def _vertices(names: tuple[str, ...], kinds: tuple[str, ...], graph: Graph | None) -> Any:
    table = {"name": [cut(n, LONGEST) for n in names], **_coded("kind", kinds)}
    if graph is not None and any(graph.meta_ops):
        table |= _coded("meta", graph.meta_ops)
    return table


def _coded(key: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """A column of few different texts: these, and the number of each row's."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    shown = [cut(text, LONGEST) for text in number]
    return {f"{key}s": shown, key: [number[text] for text in texts]}


def _trace(trace: Trace, config: ReportConfig) -> dict[str, Any]:
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
        "tasks": _tasks(trace),
        "chain": [step.row for step in trace.critical_chain()],
        "chainTime": chain_time(trace)._asdict(),
        "series": np.round(utilization_over_time(trace, config.bins), 3).tolist(),
        "utilization": trace.utilization().tolist(),
        "linkUtilization": trace.link_utilization().tolist(),
        "linkBytes": trace.bytes_by_link().tolist(),
        "classBytes": trace.bytes_by_class(),
        "bytesMoved": trace.bytes_moved,
        "overlap": trace.overlap(),
    }


def _tasks(trace: Trace) -> dict[str, list[Any]]:
    """Columns of the tasks, most of them as differences, which are small and compress well."""
    waits, row, moves = trace.waits(), np.arange(len(trace.vertex)), trace.is_transfer
    before = np.array([step.before for step in waits], np.int64)
    begin, end, ready = (_ticks(trace, s) for s in (trace.begin_s, trace.end_s, trace.ready_s))
    return {
        "vertex": trace.vertex.tolist(),
        "output": np.where(moves, trace.tensor - trace.vertex, 0).tolist(),
        "source": trace.source.tolist(),
        "device": trace.device.tolist(),
        "link": trace.link.tolist(),
        "bytes": plain(np.round(trace.moved_bytes)),
        "begin": np.diff(begin, prepend=0).tolist(),  # from the begin of the row before
        "takes": (end - begin).tolist(),
        "wait": (begin - ready).tolist(),
        "after": (row - trace.after).tolist(),  # rows back
        "before": (row - before).tolist(),
        "reason": [REASONS.index(step.waited_for) for step in waits],
    }


def _ticks(trace: Trace, times_s: FloatArray) -> IntArray:
    scale = TICKS / trace.makespan_s if trace.makespan_s else 0.0
    return np.round(times_s * scale).astype(np.int64)
