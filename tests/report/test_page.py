"""The file of a report: whole, closed to the network, and built from the sources that are here."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.making import drawn, example, hostile, large

import doppler as dp
from doppler.errors import ConfigError, OutputError
from doppler.report.config import Detail, ReportConfig
from doppler.report.page import report_html

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src" / "doppler" / "report" / "assets"


class Reader(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_this_script_and_this_style_and_no_network() -> None:
    graph, topology, assignments, traces = example()
    page = report_html(traces, graph=graph, topology=topology, assignments=assignments)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert f"script-src '{digest(scripts[0])}'" in policy[1]
    assert f"style-src '{digest(styles[0])}'" in policy[1]
    assert policy[1].startswith("default-src 'none'")
    assert len(page) < 400_000


def test_no_name_becomes_an_element() -> None:
    graph, topology, trace = hostile()
    mine = Reader(report_html({trace.placer: trace}, graph=graph, topology=topology, title="<b>"))
    _, _, _, traces = example()
    assert mine.tags == Reader(report_html(traces)).tags
    assert not [key for key, _ in mine.attributes if key in ("src", "href") or key.startswith("on")]


def test_equal_values_give_equal_pages() -> None:
    _, _, _, traces = example()
    assert report_html(traces) == report_html(traces)


def data_of(page: str) -> dict:
    packed = re.search(r'id="data">"([^"]+)"', page)
    assert packed is not None
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_two_traces_of_fifty_thousand_vertices_stay_below_six_megabytes() -> None:
    """Their times and names are noise, which nothing compresses."""
    page = report_html({"one": drawn(50_000), "two": drawn(50_000, 1)})
    assert len(page) <= 6_000_000
    assert "times are rounded" in data_of(page)["leftOut"][-1]


def test_a_page_gets_as_much_detail_as_there_is_room_for() -> None:
    graph, trace = large(300, 10)
    details = (
        Detail(),
        Detail(ticks=10**5, max_tasks=50),
        Detail(ticks=10**5, max_tasks=20, longest=4, with_graph=False),
    )
    said = []
    for detail in details:
        alone = report_html({"t": trace}, graph=graph, config=ReportConfig(details=(detail,)))
        config = ReportConfig(max_bytes=len(alone.encode()), details=details)
        assert report_html({"t": trace}, graph=graph, config=config) == alone
        said.append(data_of(alone)["leftOut"])
    assert said[0] == []
    assert "drawn together" in said[1][0]
    assert "the graph is not drawn" in said[2]
    with pytest.raises(ConfigError, match="fewer traces"):
        report_html({"t": trace}, graph=graph, config=ReportConfig(max_bytes=100_000))


def test_only_files_of_their_own_kind_are_written_over(tmp_path: Path) -> None:
    _, _, _, traces = example()
    path = tmp_path / "report.html"
    dp.write_report(traces, path)
    dp.write_report(traces, path)
    path.write_text("<!doctype html><title>mine</title>")
    with pytest.raises(OutputError, match="not written by doppler"):
        dp.write_report(traces, path)
    dp.write_report(traces, path, force=True)


def test_the_bundle_is_built_from_the_sources() -> None:
    """Run tools/build_report.sh after a change in tools/report."""
    folder = ROOT / "tools" / "report"
    files = [*sorted(folder.glob("src/*.js")), *sorted(folder.glob("src/*.css"))]
    text = b"".join(path.read_bytes() for path in [*files, folder / "package-lock.json"])
    banner = (ASSETS / "report.js").read_text("utf-8").splitlines()[0]
    assert banner == f"/* sources sha256:{hashlib.sha256(text).hexdigest()} */"


def test_libraries_are_named_with_version_and_licence() -> None:
    text = (ASSETS / "THIRD_PARTY.md").read_text("utf-8")
    named = re.findall(r"^## (\S+) [\d.]+ \((ISC|BSD-3-Clause|MIT)\)$", text, re.MULTILINE)
    assert {"d3-zoom", "d3-scale", "d3-shape"} <= {name for name, _ in named}
    assert len(named) == text.count("\n## ")
    assert text.lower().count("copyright") >= len(named)
