"""The page in a browser: what it shows, what it answers, and that it needs nothing else.

Needs the extra `browser` and a Chromium, and is skipped without.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from report.making import HOSTILE, example, hostile, large, planned

import doppler as dp
from doppler.report.config import Detail, ReportConfig

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs the extra `browser`"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    graph, topology, assignments, traces = example()
    dp.write_report(
        traces,
        folder / "example.html",
        graph=graph,
        topology=topology,
        assignments=assignments,
        lower_bounds_s=dict.fromkeys(traces, dp.lower_bounds(graph, topology).best_s),
    )
    graph, topology, trace = hostile()
    named = {HOSTILE[0]: trace, HOSTILE[1]: trace}
    dp.write_report(named, folder / "hostile.html", graph=graph, topology=topology)
    graph, trace = large(300, 10)
    few = ReportConfig(max_vertices=100)
    dp.write_report({"large": trace}, folder / "groups.html", graph=graph, config=few)
    dp.write_report({"only": trace}, folder / "plain.html")
    less = ReportConfig(details=(Detail(max_tasks=60),))
    dp.write_report({"less": trace}, folder / "less.html", graph=graph, config=less)
    (folder / "run").mkdir()
    row = {"stage": "sim", "exercise": HOSTILE[0], "least_s": 2.0, "best_s": None, "bound_s": 1.0}
    rows = [row | {"step": step, "mean_s": 3.0 + step, "loss": -0.5 * step} for step in range(5)]
    rows[-1]["best_s"] = 2.0
    text = "".join(json.dumps(one) + "\n" for one in rows)
    (folder / "run" / "metrics.jsonl").write_text(text)
    others = {"single": 90.0, "critical-path": 4.0, HOSTILE[2]: 2.5, "auto": 2.4}
    untrained = {"format": "doppler-untrained", "version": 1, "makespans_s": {HOSTILE[0]: others}}
    (folder / "run" / "untrained.json").write_text(json.dumps(untrained))
    dp.write_report({}, folder / "training.html", runs={HOSTILE[1]: folder / "run"})
    graph, topology, trace = planned()
    dp.write_report({"p": trace}, folder / "planned.html", graph=graph, topology=topology)
    return folder


@pytest.fixture
def show(open_page, files: Path):
    """Opens a report."""
    return lambda name: open_page((files / name).as_uri())


def pixels(canvas) -> str:
    return canvas.evaluate("canvas => canvas.toDataURL()")


def test_timelines(show) -> None:
    page = show("example.html")
    assert page.title() == "llama-block on p100x4"
    assert page.locator(".summary h3").all_text_contents() == [*example()[3]]
    canvas = page.locator("canvas.timeline").first
    before = pixels(canvas)
    page.get_by_label("Colour by").select_option("meta")
    by_meta = pixels(canvas)
    page.get_by_role("checkbox", name="critical chain").uncheck()
    assert len({before, by_meta, pixels(canvas)}) == 3
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    spoken = page.locator("#timelines [aria-live]").text_content()
    assert "waited for" in spoken
    domain = "() => report.timelines().map(t => t.x.domain())"
    whole = page.evaluate(domain)
    page.keyboard.press("+")
    zoomed = page.evaluate(domain)
    assert zoomed[0] == zoomed[1] == zoomed[2]
    assert zoomed[0][1] - zoomed[0][0] < whole[0][1] - whole[0][0]
    page.get_by_role("button", name="Show all").first.click()
    assert page.evaluate(domain) == whole


def test_hovering_over_a_task(show) -> None:
    page = show("example.html")
    trace = example()[3]["critical-path"]
    row = max(range(len(trace.vertex)), key=lambda r: trace.end_s[r] - trace.begin_s[r])
    where = page.evaluate(
        """row => { const t = report.timelines()[0], tasks = report.data.traces[0].tasks;
        const track = t.tracks.find(one => one.rows.includes(row));
        return [t.x((tasks.begin[row] + tasks.end[row]) / 2), track.y + 4]; }""",
        row,
    )
    page.locator("canvas.timeline").first.hover(position={"x": where[0], "y": where[1]})
    tip = page.get_by_role("tooltip")
    assert tip.locator("strong").text_content() == trace.vertex_names[trace.vertex[row]]
    for word in ("takes", "inputs", "waited for", "device"):
        assert word in tip.text_content()


def test_the_wheel_scrolls_the_page_until_the_timeline_is_clicked(show) -> None:
    page = show("example.html")
    span = "() => report.timelines()[0].x.domain()[1]"
    canvas = page.locator("canvas.timeline").first
    whole = page.evaluate(span)
    canvas.hover(position={"x": 300, "y": 60})
    page.mouse.wheel(0, -200)
    assert page.evaluate(span) == whole
    canvas.click(position={"x": 300, "y": 60})
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"() => ({span})() < {whole}")


def test_two_traces_of_one_assignment_lie_over_each_other(show) -> None:
    page = show("example.html")
    options = page.get_by_label("Arrange").locator("option").all_text_contents()
    assert options == ["one below the other", "critical-path over measured"]
    page.get_by_label("Arrange").select_option("0/2")
    assert page.locator("canvas.timeline").count() == 1
    assert "A: critical-path" in page.locator("figcaption").first.text_content()
    page.get_by_label("To", exact=True).select_option("2")
    assert "the same assignment" in page.locator("#why").text_content()


def test_the_graph(show) -> None:
    page = show("example.html")
    graph, _, assignments, _ = example()
    canvas, panel = page.locator("canvas.graph"), page.locator("#graph .panel")
    page.get_by_label("Search").fill("exp[0")
    assert page.locator(".found button").count() == sum("exp[0" in n for n in graph.vertex_names)
    page.get_by_label("Search").press("Enter")
    assert panel.locator("strong").text_content().startswith("exp[0")
    focused = page.evaluate("() => report.graph().only.size")
    assert 1 < focused < graph.num_vertices
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    assert panel.locator("strong").text_content().startswith("sub[0")
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    slider = page.get_by_label("Vertices shown")
    before = pixels(canvas)
    slider.fill("5")
    order = assignments["critical-path"].order
    text = page.locator(".replay output").text_content()
    assert text == f"5 of {len(order)}: {graph.vertex_names[order[4]]}"
    assert pixels(canvas) != before
    page.get_by_label("Devices of").select_option("1")
    assert page.locator(".replay output").text_content() == f"all {len(order)}"


def test_why(show) -> None:
    page = show("example.html")
    text = page.locator("#why").text_content()
    for words in ("Where the critical chain", "Utilization over time", "Bytes by link", "gpu3"):
        assert words in text
    moved = page.locator("#why").get_by_text("vertices are on another device")
    _, _, assignments, _ = example()
    first, second = (a.devices for a in assignments.values())
    assert moved.text_content().startswith(f"{int((first != second).sum())} of ")
    assert page.locator("table").count() >= 5


def test_it_is_accessible(show) -> None:
    page = show("hostile.html")  # a small one, as every element is checked
    page.get_by_label("Search").fill("script")
    page.keyboard.press("Enter")
    page.emulate_media(color_scheme="light")
    light = axe.Axe().run(page)
    page.emulate_media(color_scheme="dark")
    dark = axe.Axe().run(page, options={"runOnly": ["color-contrast"]})
    for found in (light, dark):
        assert found.violations_count == 0, found.generate_report()


def test_theme_and_small_screens(show) -> None:
    page = show("example.html")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    seen = set()
    for _ in range(3):
        page.get_by_role("button", name="Theme").click()
        seen.add(
            (page.evaluate("() => document.documentElement.dataset.theme"), page.evaluate(colour))
        )
    assert {theme for theme, _ in seen} == {"auto", "light", "dark"}
    assert len({background for _, background in seen}) == 2
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390


def test_names_are_text_everywhere(show) -> None:
    page = show("hostile.html")
    page.get_by_label("Search").fill("script")
    page.get_by_label("Search").press("Enter")
    page.locator("canvas.timeline").first.focus()
    for key in ("ArrowRight", "ArrowRight", "+", "ArrowDown"):
        page.keyboard.press(key)
    for colour in ("kind", "meta", "device"):
        page.get_by_label("Colour by").select_option(colour)
    for details in page.locator("details").all():
        details.evaluate("one => { one.open = true; }")
    page.locator("canvas.timeline").first.hover(position={"x": 400, "y": 45})
    assert page.locator("#app script, #app img, #app b").count() == 0
    assert page.locator(".summary h3").all_text_contents() == [HOSTILE[0], HOSTILE[1]]
    assert HOSTILE[0] in page.locator("#graph").text_content()
    assert "\u202e" not in page.locator("body").text_content()


def test_groups_and_pages_without_a_graph(show) -> None:
    page = show("groups.html")
    assert "drawn as" in page.locator("#graph").text_content()
    page.locator("canvas.graph").focus()
    page.keyboard.press("ArrowRight")
    assert "vertices" in page.locator("#graph .panel").text_content()
    assert show("plain.html").locator("#graph").count() == 0


def test_memory_and_the_host(show) -> None:
    page = show("planned.html")
    assert "Memory over time" in page.locator("#why").text_content()
    assert "of 4 MB" in page.locator("#why").text_content()
    page.get_by_label("Transfers").select_option("device")
    page.locator("canvas.timeline").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert "host →" in page.locator("#timelines .panel strong").text_content()


def test_training_curves(show) -> None:
    page = show("training.html")
    assert page.locator("#training h3").text_content() == HOSTILE[1]
    caption = page.locator("#training figcaption").first.text_content()
    assert caption == f"sim: {HOSTILE[0]} best 2 s, gap 100.0 %"
    assert page.locator("#training svg.curves path.curve").count() == 4 + 1 + 3
    assert page.locator("nav a").all_text_contents() == ["Training"]
    page.locator("#training summary").click()
    assert page.locator("#training details path.curve").count() == 1


def test_placers_that_need_no_training_are_lines(show) -> None:
    page = show("training.html")
    lines = page.locator("#training .placer")
    assert lines.locator("title").all_text_contents() == [
        "auto 2.4 s",
        f"{HOSTILE[2]} 2.5 s",
        "critical-path 4 s",
    ]
    names = [text.bounding_box() for text in lines.locator("text").all()]
    for below, above in pairwise(names):  # the fastest is lowest, and no name covers another
        assert above["y"] + 0.7 * above["height"] <= below["y"]
    said = page.locator("#training .chart .hint").text_content()
    assert said.startswith("Without training: auto 2.4 s, ")
    assert said.endswith(", critical-path 4 s, single 90 s (above the chart)")
    assert said[18:] in page.locator("#training svg.curves").first.get_attribute("aria-label")
    assert "placers that need no training" in page.locator("#training .legend").text_content()


def test_it_prints_in_light_colours(show) -> None:
    page = show("example.html")
    page.emulate_media(color_scheme="dark")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(colour) == "rgb(255, 255, 255)" != dark
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colour) == dark
    assert len(page.pdf()) > 20_000


def test_groups_open_and_close(show) -> None:
    page = show("groups.html")
    canvas, panel = page.locator("canvas.graph"), page.locator("#graph .panel")
    graph = "() => [report.graph().net.size, report.graph().net.frames.length]"
    groups, none = page.evaluate(graph)
    assert none == 0
    canvas.focus()
    page.keyboard.press("ArrowRight")
    before = pixels(canvas)
    name = panel.locator("strong").text_content()
    members = page.evaluate("() => report.graph().net.members(report.graph().selected).length")
    assert members > 1
    page.keyboard.press("Enter")
    assert page.evaluate(graph) == [groups - 1 + members, 1]
    assert pixels(canvas) != before
    assert "1 of them open" in page.locator("#graph").text_content()
    assert panel.locator("strong").text_content() != name  # a vertex of it
    canvas.focus()
    page.keyboard.press("ArrowDown")
    panel.get_by_role("button", name="Close group").click()
    assert page.evaluate(graph) == [groups, 0]
    page.get_by_label("Search").fill("l3.1")
    page.locator(".found button").first.click()
    assert panel.locator("strong").text_content().startswith("l3.1")
    page.get_by_role("button", name="Close all groups").click()
    assert page.evaluate(graph) == [groups, 0]
    canvas.scroll_into_view_if_needed()
    where = page.evaluate(
        """() => { const g = report.graph(), [x, y] = g.place(g.net.first);
        const box = g.canvas.getBoundingClientRect(), [px, py] = g.at.apply([x, y]);
        return [box.left + px, box.top + py]; }"""
    )
    page.mouse.dblclick(*where)
    assert page.evaluate(graph)[1] == 1


def test_a_page_says_what_it_leaves_out(show) -> None:
    page = show("less.html")
    assert "are drawn together with their neighbours" in page.locator(".left-out").text_content()
    page.locator("canvas.timeline").focus()
    page.evaluate(
        """() => { const t = report.timelines()[0], { count } = report.data.traces[0].tasks;
        const track = t.tracks.find((one) => one.rows.some((row) => count[row] > 1));
        t.choose({ track, row: track.rows.find((row) => count[row] > 1) }); }"""
    )
    assert "tasks, to keep the page small" in page.locator("#timelines .panel").text_content()
    page.get_by_label("Search").fill("l3.1")
    page.get_by_label("Search").press("Enter")
    assert page.locator("#graph .panel strong").text_content().startswith("l3.1")
