"""`dop reproduce`."""

import json
from pathlib import Path

import pytest
from command_line import Dop

pytest.importorskip("torch")


def test_reproduce_prints_verdicts_writes_files_and_resumes(dop: Dop, tmp_path: Path) -> None:
    command = ("reproduce", "blocking", "--quick", "-o", "out", "--workers", "1")
    first = dop(*command)
    assert first.code == 0
    assert "2 jobs left, about" in first.err
    for word in ("Table 1", "chainmm", "185.3", "holds: Work-conserving", "cannot be tested here"):
        assert word in first.out
    again = dop(*command, "--json")
    assert "0 jobs left" in again.err
    (found,) = json.loads(again.out)
    assert (found["label"], found["verdict"]) == ("blocking", "holds")
    (line,) = (tmp_path / "out" / "findings.jsonl").read_text().splitlines()
    assert json.loads(line) == found
    assert "dop reproduce blocking --quick" in (tmp_path / "out" / "findings.md").read_text()


def test_mistakes(dop: Dop) -> None:
    wrong = dop("reproduce", "table-2")
    assert wrong.code == 2
    assert "no label named `table-2`" in wrong.err
    assert dop("reproduce", "seeds", "--executor", "tpu").code == 2
