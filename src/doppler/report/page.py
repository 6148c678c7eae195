"""One HTML file that shows traces: data, script and style are inside, nothing is loaded."""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
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
from doppler.report.data import report_data
from doppler.topology.topology import Topology
from doppler.trace import Trace

KIND = "doppler-report"
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
    data = report_data(
        traces,
        graph=graph,
        topology=topology,
        assignments=assignments or {},
        lower_bounds_s=lower_bounds_s or {},
        runs={name: read_curves(folder) for name, folder in (runs or {}).items()},
        config=config or ReportConfig(),
    )
    first = next(iter(traces.values()), None)
    about = "Training" if first is None else f"{cut(first.graph, 60)} on {cut(first.topology, 60)}"
    data["title"] = cut(title, 200) or about
    script, style = _asset("report.js"), _asset("report.css")
    # Only this script and this style run, and nothing can be fetched, whatever the data are.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        kind=kind,
        policy=policy,
        title=escape(data["title"]),
        style=style,
        script=script,
        data=_packed(data),
    )


def _packed(data: Mapping[str, Any]) -> str:
    """JSON, compressed, in base64: letters and digits, which mean nothing to a browser."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


def _asset(name: str) -> str:
    return (resources.files("doppler.report") / "assets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"sha256-{digest}"
