"""Make the pictures of pages that the documentation shows: docs/assets/report-*.png.

Needs the extra `browser` and a Chromium, which `CHROMIUM` may name:

    python tools/screenshots.py
"""

import os
import shutil
import tempfile
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.sync_api import sync_playwright

import doppler as dp
from doppler.view.session import ViewContent, ViewSession
from doppler.view.web_server import ViewServer
from doppler.view.what_if import WhatIf

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
MAX_BYTES = 300_000


def main() -> None:
    """Write a report of two plans and pictures of its parts, and one of a what-if."""
    graph, topology = dp.shard(dp.programs.llama_block(), parts=4), dp.Topology.preset("p100x4")
    plans = {name: dp.place(graph, topology, name) for name in ("critical-path", "round-robin")}
    traces = {name: dp.simulate(graph, topology, plan) for name, plan in plans.items()}
    bounds_s = dict.fromkeys(traces, dp.lower_bounds(graph, topology).best_s)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = Path(folder) / "report.html"
        dp.write_report(
            traces,
            path,
            graph=graph,
            topology=topology,
            assignments=plans,
            lower_bounds_s=bounds_s,
        )
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 800}, color_scheme="light")
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        take(page, "timelines", {"x": 0, "y": 0, "width": 1100, "height": 820})
        page.get_by_label("Search").fill("exp[0,1,0,0]")
        page.get_by_label("Search").press("Enter")
        page.locator("#graph").get_by_role("button", name="Show all").click()
        take(page, "graph", part(page, "#graph", 720))
        take(page, "why", part(page, "#why", 560))
        picture_what_if(page, WhatIf(dp.Problem(graph, topology), plans["critical-path"]))
        browser.close()


def picture_what_if(page: Any, what_if: WhatIf) -> None:
    """A picture of a what-if in which the vertices of a meta-op are moved to one device."""
    content = ViewContent(
        "llama-block on p100x4",
        {"critical-path": what_if.outcome.trace},
        what_if.graph,
        what_if.topology,
        lower_bounds_s={"critical-path": what_if.bound_s},
    )
    with ViewServer(ViewSession(content, what_if, save=Path("plan.json"))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        page.goto(server.url)
        page.wait_for_selector("html[data-ready]")
        page.get_by_label("Search").fill("exp[0,1,0,0]")
        page.get_by_label("Search").press("Enter")
        page.get_by_role("button", name="Select all of meta-op exp").click()
        page.get_by_role("button", name="Move to gpu1").click()
        page.get_by_text("3 vertices moved").wait_for()
        page.get_by_label("Transfers").select_option("none")
        # How long the answer took depends on the machine, and scrolling is smooth.
        page.evaluate("() => { report.whatIf.took = 0; report.whatIf.said(); }")
        page.evaluate(
            "() => document.querySelector('#whatif').scrollIntoView({ behavior: 'instant' })"
        )
        page.set_viewport_size({"width": 1100, "height": 860})
        take(page, "whatif", None)
        server.shutdown()
        thread.join()


def part(page: Any, selector: str, height: float) -> dict[str, float]:
    """The upper part of an element, with some room around it."""
    page.evaluate("() => window.scrollTo({ top: 0, behavior: 'instant' })")
    box = page.locator(selector).bounding_box()
    return {"x": 0, "y": box["y"] - 8, "width": box["width"] + 2 * box["x"], "height": height}


def take(page: Any, name: str, clip: dict[str, float] | None) -> None:
    """Write a picture of a part of the page, or of what can be seen of it."""
    path = ASSETS / f"report-{name}.png"
    page.screenshot(path=path, clip=clip, full_page=clip is not None)
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MAX_BYTES}")


if __name__ == "__main__":
    main()
