"""One HTML file that shows traces: data, script and style are inside, nothing is loaded."""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from doppler.assignment import Assignment
from doppler.base.notebook import cut
from doppler.base.writing import write_text
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.report.config import ReportConfig
from doppler.report.curves import read_curves
from doppler.report.data import report_data, trace_view
from doppler.topology.topology import Topology
from doppler.trace import Trace

KIND = "doppler-report"
CHUNK = 1 << 20  # bytes compressed at a time
DEMO = "doppler-demo"  # the kind of those that `dop demo` writes
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{kind}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"><noscript>This report needs JavaScript; it loads nothing from a network.</noscript>
</div>
<script type="application/json" id="data">"{data}"</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(
    traces: Mapping[str, Trace],
    path: str | Path,
    *,
    graph: Graph | None = None,
    topology: Topology | None = None,
    assignments: Mapping[str, Assignment] | None = None,
    lower_bounds_s: Mapping[str, float] | None = None,
    runs: Mapping[str, str | Path] | None = None,
    title: str = "",
    config: ReportConfig | None = None,
    kind: str = KIND,
    force: bool = False,
) -> None:
    """Write an HTML page of timelines, and why they are as long as they are.

    The traces are shown in their order, each under its name. With a graph, the page draws it; with
    a topology, it says how large memories are and how fast links. `assignments` and
    `lower_bounds_s`, by the names of the traces, add the order in which vertices were chosen, and
    the gap; `runs`, directories of training runs by name, add their curves. A file that is not of
    this `kind` is written over only with `force`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_report({"heft": trace}, "report.html", graph=graph)
    """
    page = report_html(
        traces,
        graph=graph,
        topology=topology,
        assignments=assignments,
        lower_bounds_s=lower_bounds_s,
        runs=runs,
        title=title,
        config=config,
        kind=kind,
    )
    write_text(path, page, kind=kind, force=force)


def report_html(
    traces: Mapping[str, Trace],
    *,
    graph: Graph | None = None,
    topology: Topology | None = None,
    assignments: Mapping[str, Assignment] | None = None,
    lower_bounds_s: Mapping[str, float] | None = None,
    runs: Mapping[str, str | Path] | None = None,
    title: str = "",
    config: ReportConfig | None = None,
    kind: str = KIND,
) -> str:
    """The text of the page that `write_report` writes."""
    if not traces and not runs:
        raise ConfigError("a report needs at least one trace or training run")
    config = config or ReportConfig()
    made = {name: trace_view(trace, graph, config) for name, trace in traces.items()}
    curves = {name: read_curves(folder) for name, folder in (runs or {}).items()}
    for detail in config.details:
        data = report_data(
            made,
            graph=graph,
            topology=topology,
            assignments=assignments or {},
            lower_bounds_s=lower_bounds_s or {},
            runs=curves,
            config=config,
            detail=detail,
        )
        data["title"] = cut(title, 200) or _about(traces)
        page = page_html(data, kind=kind, max_bytes=config.max_bytes)
        if page is not None:
            return page
    raise ConfigError(
        f"the page would have more than {config.max_bytes:,} bytes",
        hint="show fewer traces or runs on one page",
    )


def _about(traces: Mapping[str, Trace]) -> str:
    first = next(iter(traces.values()), None)
    return "Training" if first is None else f"{cut(first.graph, 60)} on {cut(first.topology, 60)}"


def page_html(
    data: Mapping[str, Any],
    *,
    kind: str = KIND,
    connects: bool = False,
    max_bytes: int | None = None,
) -> str | None:
    """The page of these data, or None if it has more than `max_bytes`.

    One that `connects` may ask the server it came from.
    """
    texts = {
        "kind": kind,
        "policy": content_policy(connects=connects),
        "title": escape(data["title"]),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
    }
    frame = _PAGE.format(**texts, data="")
    room = None if max_bytes is None else max_bytes - len(frame.encode("utf-8"))
    packed = _packed(data, room)
    return None if packed is None else _PAGE.format(**texts, data=packed)


def content_policy(*, connects: bool = False) -> str:
    """What a page may do: run this script, use this style, load nothing, whatever the data are."""
    script, style = _digest(_asset("report.js")), _digest(_asset("report.css"))
    asks = "connect-src 'self'; " if connects else ""
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; {asks}"
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _packed(data: Mapping[str, Any], max_bytes: int | None) -> str | None:
    """JSON, compressed, in base64: letters and digits, which mean nothing to a browser.

    None where there are more than `max_bytes` of these.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")
    packer, parts, size = zlib.compressobj(), [], 0
    for first in range(0, len(text), CHUNK):
        parts.append(packer.compress(text[first : first + CHUNK]))
        size += len(parts[-1])
        if max_bytes is not None and size * 4 // 3 > max_bytes:
            return None
    packed = base64.b64encode(b"".join([*parts, packer.flush()])).decode("ascii")
    return packed if max_bytes is None or len(packed) <= max_bytes else None


@cache
def _asset(name: str) -> str:
    return (resources.files("doppler.report") / "assets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"sha256-{digest}"
