"""The page of the documentation says what the committed data say."""

import importlib
import json
import re
from pathlib import Path

import pytest

from doppler.placers.bounds.lower import bounds_of
from doppler.reproduce.findings import FAILS, HOLDS, UNTESTED, from_json
from doppler.reproduce.pages import overview
from doppler.reproduce.placements import problem_of
from doppler.reproduce.registry import LABELS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "results" / "paper.jsonl"
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


def test_figures_at_the_full_budget_are_those_of_their_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script, results = importlib.import_module("paper_full"), DATA.with_name("paper-full.jsonl")
    script.main(["show", str(results)])
    shown = capsys.readouterr().out
    bounds = ["2.9", "4.6"]  # of EnumOpt above lower bounds
    others = ["1.2", "11.9", "0.6", "5.6", *bounds]  # hours; the paper's
    assert set(unknown_figures("## Table 2 at", shown, at_least=20)) <= set(others)
    for graph, above in zip(("chainmm", "ffnn"), bounds, strict=True):
        problem = problem_of("p100x4", graph)
        found = next(
            r["ms"]
            for r in script.read(results).values()
            if r["parameters"].get("placer") == "enumerative" and r["parameters"]["graph"] == graph
        )
        assert f"{100 * (found / 1e3 / bounds_of(problem).best_s - 1):.1f}" == above
    script.main(["restore", str(results), str(tmp_path)])
    script.main(["collect", str(tmp_path)])
    assert capsys.readouterr().out == results.read_text("utf-8")


def unknown_figures(heading: str, shown: str, *, at_least: int) -> list[str]:
    """Figures of the text below a heading that are not in what a script shows."""
    text = PAGE.read_text("utf-8").partition(heading)[2].partition("<!-- table")[0]
    figures = re.findall(r"\d+\.\d+", text)
    assert len(figures) > at_least
    return [figure for figure in figures if figure not in shown]
