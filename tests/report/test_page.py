"""The file of a report: whole, closed to the network, and built from the sources that are here."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.making import example, hostile, large

import doppler as dp
from doppler.errors import OutputError
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


def test_a_large_trace_stays_below_six_megabytes() -> None:
    graph, trace = large(5000, 40)
    size = len(report_html({"one": trace}, graph=graph))
    assert size * 50_000 / 5000 < 6e6  # the size of 50,000 vertices, as columns grow linearly


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
