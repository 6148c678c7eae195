"""The page of the documentation says what the committed data say."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from doppler.placers.bounds.lower import bounds_of
from doppler.reproduce.findings import FAILS, HOLDS, UNTESTED, from_json
from doppler.reproduce.pages import overview
from doppler.reproduce.placements import problem_of
from doppler.reproduce.registry import LABELS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "results" / "paper.jsonl"
JOBS = DATA.with_name("paper-full.jsonl")
PAGE = ROOT / "docs" / "results" / "paper.md"


def test_verdicts_on_the_page_are_those_of_the_data() -> None:
    lines = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
    found = [from_json(line) for line in lines]
    assert [f.label for f in found] == list(LABELS)
    for line, finding in zip(lines, found, strict=True):
        assert (line["verdict"], line["summary"]) == (finding.verdict, finding.summary)
    shown = re.search(r"(?s)<!-- verdicts -->\n(.*?)<!-- /verdicts -->", PAGE.read_text("utf-8"))
    assert shown is not None
    assert shown[1].strip() == overview(found)
    holds, fails, untested = (
        sum(f.verdict == verdict for f in found) for verdict in (HOLDS, FAILS, UNTESTED)
    )
    counts = f"{holds} labels hold, {fails} do not, {untested} cannot be tested here"
    assert counts in PAGE.read_text("utf-8")


def test_figures_of_the_order_are_those_of_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("ordering").show([DATA.with_name("ordering.jsonl")])
    shown = capsys.readouterr().out
    assert unknown_figures("## What it takes", shown, at_least=20) == []


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("paper_full")


def test_findings_are_those_of_the_jobs(script: Any) -> None:
    pytest.importorskip("torch")
    stored = {f.label: f for f in map(from_json, map(json.loads, DATA.read_text().splitlines()))}
    found = {f.label: f for f in script.findings(script.read(JOBS))}
    assert list(found) == list(LABELS)
    for label, finding in found.items():
        same = (stored[label].tables, stored[label].claims) == (finding.tables, finding.claims)
        assert same, label


def test_figures_of_full_training_are_those_of_the_findings() -> None:
    tables = DATA.read_text("utf-8")
    of_the_paper = {"122.5", "49.9", "191.5"}
    assert set(unknown_figures("## What full", tables, at_least=40)) <= of_the_paper


def test_how_far_enumopt_is_above_a_bound(script: Any) -> None:
    for graph, above in (("chainmm", "2.9"), ("ffnn", "4.6")):
        problem = problem_of("p100x4", graph)
        results = [r for r in script.read(JOBS).values() if r["parameters"].get("graph") == graph]
        found = next(r["ms"] for r in results if r["parameters"].get("placer") == "enumerative")
        assert f"{100 * (found / 1e3 / bounds_of(problem).best_s - 1):.1f}" == above
        assert above in PAGE.read_text("utf-8")


def test_jobs_can_be_put_back(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main(["restore", str(JOBS), str(tmp_path)])
    script.main(["collect", str(tmp_path)])
    assert capsys.readouterr().out == JOBS.read_text("utf-8")


def unknown_figures(heading: str, shown: str, *, at_least: int) -> list[str]:
    """Figures of the text below a heading that are not in what a script shows."""
    text = PAGE.read_text("utf-8").partition(heading)[2].partition("<!-- table")[0]
    figures = re.findall(r"\d+\.\d+", text)
    assert len(figures) > at_least
    return [figure for figure in figures if figure not in shown]
