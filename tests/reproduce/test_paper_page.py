"""The page of the documentation says what the committed data say."""

import importlib
import json
import re
from pathlib import Path

import pytest

from doppler.reproduce.findings import FAILS, HOLDS, UNTESTED, from_json
from doppler.reproduce.pages import overview
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
    text = PAGE.read_text("utf-8").partition("## What it takes")[2].partition("<!-- table")[0]
    figures = re.findall(r"\d+\.\d+", text)
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in shown] == []
