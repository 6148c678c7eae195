"""The page of `dop view` in a browser: changes by mouse and keyboard, and training under way.

Needs the extra `browser` and a Chromium, and is skipped without.
"""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from report.making import HOSTILE, example, hostile, large

import doppler as dp
from doppler.report.config import ReportConfig
from doppler.view.config import ViewConfig
from doppler.view.session import ViewContent, ViewSession
from doppler.view.web_server import ViewServer
from doppler.view.what_if import WhatIf

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs `browser`")
CONFIG = ViewConfig(poll_s=0.05)
ROW = {"stage": "sim", "exercise": HOSTILE[0], "mean_s": 3.0, "least_s": 2.5, "bound_s": 1.0}


@pytest.fixture
def serve(open_page):
    """Serves a session, and opens its page."""
    started: list[tuple[ViewServer, threading.Thread]] = []

    def show(session: ViewSession):
        server = ViewServer(session)
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        started.append((server, thread))
        return open_page(server.url)

    yield show
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def plan(tmp_path: Path) -> ViewSession:
    """A plan of the example, to be saved in a file."""
    graph, topology, assignments, traces = example()
    content = ViewContent(
        "example", {"given": traces["critical-path"]}, graph, topology, assignments
    )
    what_if = WhatIf(dp.Problem(graph, topology), assignments["critical-path"])
    return ViewSession(content, what_if, save=tmp_path / "saved.json", config=CONFIG)


def what_if_of(session: ViewSession) -> WhatIf:
    assert session._what_if is not None
    return session._what_if


def revision(page, wanted: int) -> str:
    """Waits until the page shows a revision; what it says of it."""
    page.wait_for_function("wanted => report.whatIf.state.revision >= wanted", arg=wanted)
    return page.locator("#whatif .status").text_content()


def task_at(page, vertex: int) -> tuple[float, float]:
    """Where the task of a vertex is on the timeline of the what-if."""
    canvas = page.locator("canvas.timeline").last
    canvas.scroll_into_view_if_needed()
    return page.evaluate(
        """vertex => { const t = report.timelines()[1], trace = t.traces[0];
        const row = trace.execOf[vertex], box = t.canvas.getBoundingClientRect();
        const track = t.tracks.find(one => one.rows.includes(row));
        return [box.left + t.x((trace.tasks.begin[row] + trace.tasks.end[row]) / 2),
                box.top + track.y + track.height / 2]; }""",
        vertex,
    )


def lane_at(page, device: int) -> float:
    return page.evaluate(
        """device => { const t = report.timelines()[1], box = t.canvas.getBoundingClientRect();
        const lane = t.lanes.find(one => one.kind === "device" && one.index === device);
        return box.top + lane.y + lane.height / 2; }""",
        device,
    )


def node_at(page, vertex: int) -> tuple[float, float]:
    return page.evaluate(
        """vertex => { const g = report.graph(), box = g.canvas.getBoundingClientRect();
        const [x, y] = g.at.apply(g.place(g.net.nodeOf(vertex)));
        return [box.left + x, box.top + y]; }""",
        vertex,
    )


def longest() -> int:
    trace = example()[3]["critical-path"]
    takes = np.where(trace.is_transfer, 0, trace.end_s - trace.begin_s)
    return int(trace.vertex[takes.argmax()])


def test_a_task_is_dragged_to_another_device(serve, plan: ViewSession) -> None:
    page, what_if, vertex = serve(plan), what_if_of(plan), longest()
    device = int(what_if.setting.devices[vertex])
    target = (device + 1) % 4
    x, y = task_at(page, vertex)
    page.mouse.click(x, y)
    assert page.locator(".move-bar").is_visible()
    pan = page.evaluate("() => report.timelines()[1].x.domain()")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 10, y + 10)
    page.mouse.move(x, lane_at(page, target))
    assert "→ gpu" in page.locator(".ghost").text_content()
    assert page.evaluate("() => report.whatIf.bar.querySelector('.aimed').dataset.device") == str(
        target
    )
    page.mouse.up()
    status = revision(page, 1)
    assert what_if.setting.devices[vertex] == target
    assert page.evaluate("() => report.timelines()[1].x.domain()")[0] == pan[0]
    assert "1 vertex moved" in status
    assert page.locator(".ghost").count() == 0
    shown_s = page.evaluate("() => report.data.traces[1].makespan")
    assert shown_s == what_if.outcome.trace.makespan_s
    end_s = page.evaluate("() => report.data.traces[1].tasks.end.reduce((a, b) => Math.max(a, b))")
    assert end_s == pytest.approx(shown_s)
    assert page.locator("#summary article").last.locator(".big").text_content() in status


def test_a_drag_that_is_cancelled_changes_nothing(serve, plan: ViewSession) -> None:
    page, vertex = serve(plan), longest()
    x, y = task_at(page, vertex)
    page.mouse.click(x, y)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, lane_at(page, 0) + 30)
    page.keyboard.press("Escape")
    page.mouse.up()
    assert page.locator(".ghost").count() == 0
    assert what_if_of(plan).revision == 0


def test_by_keyboard_with_undo_and_redo(serve, plan: ViewSession) -> None:
    page, what_if = serve(plan), what_if_of(plan)
    undo, redo = (page.get_by_role("button", name=name, exact=True) for name in ("Undo", "Redo"))
    assert undo.is_disabled()
    page.locator("canvas.timeline").last.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    (vertex,) = page.evaluate("() => [...report.whatIf.bus.selection]")
    before = int(what_if.setting.devices[vertex])
    target = (before + 2) % 4
    page.keyboard.press("m")
    assert page.evaluate("() => document.activeElement.closest('.move-bar') !== null")
    page.get_by_role("button", name=f"Move to gpu{target}").focus()
    page.keyboard.press("Enter")
    revision(page, 1)
    assert what_if.setting.devices[vertex] == target
    assert page.get_by_role("button", name=f"Move to gpu{target}").get_attribute("aria-pressed")
    assert redo.is_disabled()
    page.keyboard.press("Control+z")
    assert "0 vertices moved" in revision(page, 2)
    assert what_if.setting.devices[vertex] == before
    redo.click()
    revision(page, 3)
    assert what_if.setting.devices[vertex] == target
    page.get_by_role("button", name="Start over").click()
    revision(page, 4)
    assert what_if.moved == 0


def test_the_graph_a_rectangle_and_a_meta_op(serve, plan: ViewSession) -> None:
    page, what_if, graph = serve(plan), what_if_of(plan), example()[0]
    canvas = page.locator("canvas.graph")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 3)
    page.mouse.up()
    page.keyboard.up("Shift")
    many = page.evaluate("() => report.whatIf.bus.selection.size")
    assert 1 < many < graph.num_vertices
    page.get_by_role("button", name="Clear the selection").click()
    assert page.locator(".move-bar").is_hidden()
    vertex = longest()
    page.mouse.click(*node_at(page, vertex))
    meta = graph.meta_ops[vertex]
    page.get_by_role("button", name=f"Select all of meta-op {meta}").click()
    chosen = [v for v, name in enumerate(graph.meta_ops) if name == meta]
    assert page.evaluate("() => [...report.whatIf.bus.selection]") == chosen
    where = node_at(page, vertex)
    target = page.get_by_role("button", name="Move to gpu2").bounding_box()
    page.mouse.move(*where)
    page.mouse.down()
    page.mouse.move(where[0] + 20, where[1] + 20)
    page.mouse.move(target["x"] + 10, target["y"] + 10)
    page.mouse.up()
    revision(page, 1)
    assert set(what_if.setting.devices[chosen].tolist()) == {2}
    assert page.evaluate("() => report.graph().trace.name") == "what if"


def test_a_faster_device_and_a_slower_link(serve, plan: ViewSession) -> None:
    page, what_if = serve(plan), what_if_of(plan)
    page.get_by_text("Change the machine").click()
    speed = page.get_by_label("Speed of gpu1")
    speed.fill("0.25")
    speed.press("Enter")
    status = revision(page, 1)
    assert "more than at the start" in status
    assert "lower bound" in status
    assert what_if.setting.speed[1] == 0.25
    near = 0.999 * what_if.bound_s  # numbers of a page have a few digits
    page.wait_for_function("bound => report.data.traces[1].bound >= bound", arg=near)
    link = page.get_by_label("Bandwidth of nvlink gpu0→gpu1")
    before = link.input_value()
    link.fill("1")
    link.press("Enter")
    revision(page, 2)
    assert what_if.setting.bandwidth[0] == 1e9
    assert page.evaluate("() => report.data.machine.links['nvlink gpu0→gpu1']") == 1e9
    speed.fill("-3")
    speed.press("Enter")
    assert "above 0" in page.get_by_role("alert").text_content()
    assert speed.input_value() == "0.25"
    speed.fill("1e9")
    speed.press("Enter")
    page.wait_for_function("() => document.querySelector('.error').textContent.includes('between')")
    page.locator("#whatif h2").click()
    page.keyboard.press("Control+z")
    revision(page, 3)
    assert link.input_value() == before != "1"


def test_saving(serve, plan: ViewSession, tmp_path: Path) -> None:
    page, what_if, vertex = serve(plan), what_if_of(plan), longest()
    page.mouse.click(*task_at(page, vertex))
    page.get_by_role("button", name="Move to gpu0").click()
    page.get_by_role("button", name="Move to gpu3").click()
    revision(page, 2)
    page.get_by_role("button", name="Save as an assignment").click()
    page.get_by_text("saved to").wait_for()
    saved = dp.read_assignment(tmp_path / "saved.json")
    np.testing.assert_array_equal(saved.devices, what_if.setting.devices)
    assert saved.devices[vertex] == 3
    assert not plan.has_unsaved


def test_two_pages_of_one_server(serve, plan: ViewSession) -> None:
    page, what_if = serve(plan), what_if_of(plan)
    what_if.move([longest()], 3)  # by another page
    what_if.set_speed(0, 0.5)
    revision(page, 2)
    page.wait_for_function("() => report.whatIf.fields.speed[0].input.value === '0.5'")
    assert page.evaluate("() => report.data.traces[1].makespan") == what_if.outcome.trace.makespan_s


def test_groups_move_as_one(serve) -> None:
    graph, trace = large(300, 10)
    topology = dp.Topology.uniform(8, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    assignment = dp.place(graph, topology, "round-robin")
    what_if = WhatIf(dp.Problem(graph, topology), assignment)
    config = ViewConfig(report=ReportConfig(max_vertices=100))
    content = ViewContent("groups", {"given": trace}, graph, topology)
    page = serve(ViewSession(content, what_if, config=config))
    page.locator("canvas.graph").focus()
    page.keyboard.press("ArrowRight")
    chosen = page.evaluate("() => [...report.whatIf.bus.selection]")
    assert len(chosen) > 1
    page.get_by_role("button", name="Move to", exact=False).nth(5).click()
    revision(page, 1)
    assert set(what_if.setting.devices[chosen].tolist()) == {5}
    assert page.get_by_role("button", name="Save as an assignment").is_disabled()


def test_names_are_text_and_the_page_is_accessible(serve, tmp_path: Path) -> None:
    graph, topology, trace = hostile([name for name in HOSTILE if name.isascii()])
    assignment = dp.Assignment(np.arange(graph.num_vertices) % 2)
    what_if = WhatIf(dp.Problem(graph, topology), assignment)
    content = ViewContent(HOSTILE[0], {HOSTILE[1]: trace}, graph, topology, message=HOSTILE[2])
    page = serve(ViewSession(content, what_if, save=tmp_path / "a<b>.json", config=CONFIG))
    page.get_by_text("Change the machine").click()
    page.locator("canvas.timeline").last.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".targets button").nth(1).click()
    assert "1 vertex moved" in revision(page, 1)
    page.locator(".move-bar button").first.click()
    page.get_by_role("button", name="Save as an assignment").click()
    page.get_by_text("saved to").wait_for()
    assert page.locator("#app script, #app img, #app b").count() == 0
    assert page.locator(".banner").text_content() == HOSTILE[2]
    assert HOSTILE[0] in page.locator(".move-bar").text_content()
    assert "\u202e" not in page.locator("body").text_content()
    page.emulate_media(color_scheme="light")
    light = axe.Axe().run(page)
    page.emulate_media(color_scheme="dark")
    dark = axe.Axe().run(page, options={"runOnly": ["color-contrast"]})
    for found in (light, dark):
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_screens_in_both_themes(serve, plan: ViewSession, scheme: str) -> None:
    page = serve(plan)
    page.emulate_media(color_scheme=scheme)
    page.mouse.click(*task_at(page, longest()))
    page.get_by_text("Change the machine").click()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") == width
        bar = page.locator(".move-bar").bounding_box()
        assert bar["x"] >= 0
        assert bar["x"] + bar["width"] <= width
        assert bar["y"] + bar["height"] <= 800
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor") != (
        "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")


def write_metrics(folder: Path, steps: int, best_s: float) -> None:
    folder.mkdir(exist_ok=True)
    rows = (json.dumps(ROW | {"step": step + 1, "best_s": best_s}) for step in range(steps))
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))


def test_training_is_followed_and_runs_are_compared(serve, tmp_path: Path) -> None:
    runs = {name: tmp_path / name for name in ("first", "second")}
    runs["second"].mkdir()
    write_metrics(runs["first"], 3, 2.5)
    page = serve(ViewSession(ViewContent("Training", runs=runs), config=CONFIG))
    training = page.locator("#training")
    assert "no update yet" in training.text_content()
    assert page.locator(".compared figure").count() == 0
    write_metrics(runs["second"], 4, 2.0)
    page.locator(".compared figure").wait_for()
    caption = page.locator(".compared figcaption").text_content()
    assert caption == f"sim: {HOSTILE[0]} first 2.5 s, second 2 s"
    write_metrics(runs["second"], 9, 1.5)
    page.get_by_text("second 1.5 s").wait_for()
    assert page.locator("path.compared").count() == 2 + 2  # with the legend
    found = {"format": "doppler-untrained", "version": 1, "makespans_s": {HOSTILE[0]: {"cp": 2.2}}}
    (runs["first"] / "untrained.json").write_text(json.dumps(found))
    page.locator(".compared .placer").get_by_text("cp", exact=True).wait_for()
    assert page.locator("nav a").all_text_contents() == ["Training"]


def test_a_trace_without_a_graph_says_so(serve) -> None:
    traces = {"only": example()[3]["critical-path"]}
    page = serve(ViewSession(ViewContent("t", traces, message="no graph"), config=CONFIG))
    assert page.locator(".banner").text_content() == "no graph"
    assert page.locator("#whatif, #graph").count() == 0
    page.locator("canvas.timeline").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".move-bar").count() == 0
