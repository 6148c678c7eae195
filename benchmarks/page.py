"""How fast the page of `dop report` and `dop view` is in a browser.

    python benchmarks/page.py run [--vertices N]

Measured are seconds until the page is shown, frames per second while a timeline and the graph are
panned, and milliseconds from a change in the page until it shows the answer of the server (the
what-if); and the load average of the machine before. Needs the extra `browser` and a Chromium,
which `CHROMIUM` may name.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
import tables
from tables import Table

import doppler as dp
from doppler.programs import random_dag
from doppler.view.session import ViewContent, ViewSession
from doppler.view.web_server import ViewServer
from doppler.view.what_if import WhatIf

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
LOADS, STEPS, CHANGES = 3, 60, 10
FRAMES = """() => { const times = []; window.frameTimes = times; const note = (time) => {
    if (window.frameTimes !== times) return; times.push(time); requestAnimationFrame(note); };
    requestAnimationFrame(note); }"""
# A vertex is selected, and half a second later moved, as by a person.
CHANGE = """async ([vertex, device]) => { const { whatIf } = report;
    whatIf.pick([vertex], false); await new Promise((done) => setTimeout(done, 500));
    const begun = performance.now(); await whatIf.move(device);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - begun; }"""


def browsed(args: argparse.Namespace) -> Iterator[Table]:
    """How fast the page is."""
    from playwright.sync_api import sync_playwright  # the tables can be shown without it

    vertices = args.vertices
    graph = random_dag(vertices=vertices, depth=max(vertices // 40, 2), seed=0)
    topology = dp.Topology.uniform(8, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    plan = dp.place(graph, topology, "critical-path")
    what_if = WhatIf(dp.Problem(graph, topology), plan)
    traces = {"critical-path": what_if.outcome.trace}
    title = f"{graph.num_vertices:,} vertices, 8 devices, load average {os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = Path(folder) / "report.html"
        dp.write_report(traces, path, graph=graph, topology=topology)
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        loads = [load_s(page, path.as_uri()) for _ in range(LOADS)]
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        rows = [["shown after", f"{np.median(loads):.2f} s", size]]
        for name in ("timeline", "graph"):
            rate, worst_ms = panned(page, page.locator(f"canvas.{name}").first)
            longest = f"longest {worst_ms:.0f} ms"
            rows.append([f"panning the {name}", f"{rate:.1f} frames/s", longest])
        took = answers_ms(page, ViewSession(ViewContent("plan", traces, graph, topology), what_if))
        took_ms = [f"{np.median(took):.0f} ms", f"longest {max(took):.0f} ms"]
        rows.append(["moving a vertex, until shown", *took_ms])
        browser.close()
    yield Table("browser", title, ["", "", ""], rows)


def load_s(page: Any, url: str) -> float:
    """Seconds until a page is there."""
    began = perf_counter()
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    return perf_counter() - began


def panned(page: Any, canvas: Any) -> tuple[float, float]:
    """Frames per second while a canvas is dragged, and the longest time between two, in ms."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"] / 2, 150)
    page.mouse.move(x, y)
    canvas.focus()
    for _ in range(3):
        page.keyboard.press("+")  # zoomed in, so that there is something to pan
    page.mouse.down()
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.evaluate(FRAMES)
    for step in range(STEPS):
        page.mouse.move(x + 200 * np.sin(step / 6), y)
    page.mouse.up()
    times = page.evaluate("() => { const found = frameTimes; frameTimes = null; return found; }")
    between = np.diff(times)
    if canvas.evaluate("canvas => canvas.toDataURL()") == before:
        raise SystemExit("nothing was panned")
    return float(1e3 / between.mean()), float(between.max())


def answers_ms(page: Any, session: ViewSession) -> list[float]:
    """Milliseconds from changes in the page until it shows what the server answered."""
    what_if = session._what_if
    assert what_if is not None
    rng, assigned = np.random.default_rng(0), what_if.graph.assigned
    with ViewServer(session) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        page.goto(server.url)
        page.wait_for_selector("html[data-ready]")
        pairs = [(int(rng.choice(assigned)), int(rng.integers(8))) for _ in range(CHANGES)]
        took = [float(page.evaluate(CHANGE, list(pair))) for pair in pairs]
        page.goto("about:blank")
        server.shutdown()
        thread.join()
    return took


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vertices", type=int, default=2000)


def main() -> None:
    tables.main(__doc__, {"browser": browsed}, options)


if __name__ == "__main__":
    main()
