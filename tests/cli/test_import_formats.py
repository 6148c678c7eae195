"""`dop import` of other graph formats, and `--to` for writing them."""

from pathlib import Path

import pytest
from command_line import Dop

STG = "2\n0 0 0\n1 20 1 0\n2 10 1 1\n3 0 1 2\n"


def test_every_verb_reads_them(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "g.stg").write_text(STG)
    assert dop("show", "g.stg", "-t", "reference:2").code == 0
    place = ("place", "g.stg", "-t", "reference:2", "-p", "heft", "-o", "a.json")
    assert dop(*place).code == 0
    report = dop("simulate", "g.stg", "a.json", "-t", "reference:2", "--json").json()
    assert report["makespan_s"] == 30


@pytest.mark.parametrize("name", ["doppler", "dot", "stg", "wfformat"])
def test_a_graph_is_written_in_another_format(dop: Dop, tmp_path: Path, name: str) -> None:
    text = "digraph { a [cost=1] b [cost=2] a -> b [size=8] }"
    (tmp_path / "g.dot").write_text(text)
    result = dop("import", "g.dot", "--to", name, "-o", "out")
    assert result.code == 0, result.err
    report = dop("import", "out", "-o", "again.json", "--json").json()
    assert report["edges"] >= 1
    assert "a" in dop("show", "out", "-t", "p100x4").out


def test_mistakes(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text("digraph {\n a -> b [size=x] }")
    assert "line 2: `size` of edge" in dop("import", "g.dot", "-o", "g.json").err
    (tmp_path / "g.dot").write_text("digraph { a -> b }")
    assert "no seconds" in dop("import", "g.dot", "--to", "stg", "-o", "g.stg").err
    assert "did you mean `dot`" in dop("import", "g.dot", "--to", "dott", "-o", "x").err
    assert "cannot be written" in dop("import", "g.dot", "--to", "reference-text", "-o", "x").err
    (tmp_path / "out").write_text("mine")
    result = dop("import", "g.dot", "--to", "dot", "-o", "out")
    assert result.code == 2
    assert (tmp_path / "out").read_text() == "mine"
