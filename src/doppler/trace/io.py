"""The file of a trace."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.arrays import frozen, integers, plain, reals
from doppler.base.files import check_header, check_keys, parse_json, read_text, source_name, to_json
from doppler.base.writing import write_text
from doppler.errors import FormatError
from doppler.trace.trace import Trace, TraceDevice, TraceLink

FORMAT, VERSION = "doppler-trace", 1
TOO_LARGE = 1e200  # for a time or a size: no graph on any topology comes to so much
_INTEGERS = ("vertex", "tensor", "source", "device", "link", "after")
_REALS = ("moved_bytes", "ready_s", "begin_s", "end_s")


def write_trace(trace: Trace, path: str | Path, *, force: bool = False) -> None:
    """Write a `doppler-trace` file; over a file of another kind only with `force`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_trace(trace, "trace.json")
    """
    write_text(path, trace_to_json(trace), kind=FORMAT, force=force)


def trace_to_json(trace: Trace) -> str:
    """The JSON text of a trace; `makespan_s` is there for other readers."""
    return to_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "makespan_s": trace.makespan_s,
            "graph": trace.graph,
            "topology": trace.topology,
            "placer": trace.placer,
            "local_bytes": trace.local_bytes,
            "devices": [d._asdict() for d in trace.devices],
            "links": [link._asdict() for link in trace.links],
            "vertices": {"name": list(trace.vertex_names), "kind": list(trace.vertex_kinds)},
            "tasks": {c: plain(getattr(trace, c)) for c in _INTEGERS + _REALS},
        }
    )


def read_trace(path: str | Path) -> Trace:
    """The trace in a `doppler-trace` file.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_trace(trace, "trace.json")
    >>> dp.read_trace("trace.json").makespan_s == trace.makespan_s
    True
    """
    return trace_from_json(read_text(path), source_name(path))


def trace_from_json(text: str, source: str) -> Trace:
    """The trace in a JSON text; `source` is what errors call it."""
    document = parse_json(text, source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    texts, tables = ("graph", "topology", "placer"), ("devices", "links", "vertices", "tasks")
    required = ("format", "version", "makespan_s", "local_bytes", *texts, *tables)
    check_keys(document, required=required, source=source)
    check_keys(document["vertices"], required=("name", "kind"), source=f"{source}: vertices")
    check_keys(document["tasks"], required=_INTEGERS + _REALS, source=f"{source}: tasks")
    for key in texts:
        if not isinstance(document[key], str):
            raise FormatError(f"{source}: `{key}` must be text, not {document[key]!r}")
    rows = document["tasks"]
    columns: dict[str, Any] = {c: integers(rows[c]) for c in _INTEGERS}
    columns |= {c: reals(rows[c]) for c in _REALS}
    if bad := next((c for c, column in columns.items() if column is None), None):
        raise FormatError(f"{source}: tasks.{bad} must be a list of numbers")
    columns = {c: frozen(column) for c, column in columns.items()}
    local_bytes = reals([document["local_bytes"]])
    if local_bytes is None or not 0 <= local_bytes[0] < TOO_LARGE:
        raise FormatError(f"{source}: `local_bytes` is {document['local_bytes']!r}")
    trace = Trace(
        **{key: document[key] for key in texts},
        local_bytes=float(local_bytes[0]),
        devices=_records(document["devices"], TraceDevice, f"{source}: devices"),
        links=_records(document["links"], TraceLink, f"{source}: links"),
        vertex_names=_texts(document["vertices"]["name"], f"{source}: vertices.name"),
        vertex_kinds=_texts(document["vertices"]["kind"], f"{source}: vertices.kind"),
        **columns,
    )
    _check_rows(trace, source)
    return trace


def _texts(values: Any, source: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise FormatError(f"{source} must be a list of texts")
    return tuple(values)


def _records(rows: Any, kind: Any, source: str) -> tuple[Any, ...]:
    if not isinstance(rows, list):
        raise FormatError(f"{source} must be a list")
    for i, row in enumerate(rows):
        check_keys(row, required=kind._fields, source=f"{source}[{i}]")
        for key, wanted in kind.__annotations__.items():
            least = 1 if key == "slots" else 0
            if type(row[key]) is not wanted or (wanted is int and not least <= row[key] < 2**31):
                raise FormatError(f"{source}[{i}].{key} is {row[key]!r}")
    return tuple(kind(**row) for row in rows)


def _check_rows(trace: Trace, source: str) -> None:
    if not trace.devices:
        raise FormatError(f"{source}: devices is empty")
    if len(trace.vertex_kinds) != len(trace.vertex_names):
        raise FormatError(f"{source}: vertices.name and vertices.kind differ in length")
    size = len(trace.vertex)
    for name in _INTEGERS + _REALS:
        if len(getattr(trace, name)) != size:
            raise FormatError(f"{source}: tasks.{name} does not have {size} entries")
    moves = trace.is_transfer
    least = np.where(moves, 0, -1)  # an exec has no source and no link
    ranges: dict[str, tuple[Any, Any]] = {  # column: least value, and what it must stay below
        "vertex": (0, len(trace.vertex_names)),
        "tensor": (-1, inf),
        "source": (least, np.where(moves, len(trace.devices) + 1, 0)),
        "device": (0, len(trace.devices) + moves),
        "link": (least, np.where(moves, len(trace.links), 0)),
        "after": (-1, np.arange(size)),
        "moved_bytes": (0, TOO_LARGE),
        "ready_s": (0, TOO_LARGE),
        "begin_s": (np.concatenate([[0.0], trace.begin_s])[:size], TOO_LARGE),
        "end_s": (trace.begin_s, TOO_LARGE),
    }
    for name, (low, high) in ranges.items():
        column = getattr(trace, name)
        bad = np.flatnonzero(~((column >= low) & (column < high)))
        if len(bad):
            raise FormatError(f"{source}: tasks.{name}[{bad[0]}] is {column[bad[0]]}")
