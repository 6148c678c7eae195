"""`dop report`: from trace files to a page, or to events for Perfetto."""

import json
from pathlib import Path

import pytest
from command_line import Dop


@pytest.fixture
def traces(dop: Dop, files: Path) -> Path:
    for name, placer in (("cp", "critical-path"), ("rr", "round-robin")):
        made = dop("place", "graph.json", "-t", "p100x4", "--placer", placer, "-o", f"{name}.json")
        assert made.code == 0
        dop("simulate", "graph.json", f"{name}.json", "-t", "p100x4", "-o", f"{name}.trace.json")
    return files


def test_a_page(dop: Dop, traces: Path) -> None:
    result = dop("report", "cp.trace.json", "rr.trace.json")
    assert (result.code, result.out, result.err) == (0, "wrote report.html\n", "")
    assert (traces / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_graph_adds_bounds_and_an_assignment_its_order(
    dop: Dop, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    monkeypatch.setattr(
        "doppler.report.page.write_report",
        lambda shown, _, **options: seen.update(options, t=shown),
    )
    options = ("--graph", "graph.json", "--assignment", "cp.json")
    assert dop("report", "cp.trace.json", "rr.trace.json", *options).code == 0
    assert list(seen["t"]) == ["cp", "rr"]
    assert list(seen["assignments"]) == ["cp"]
    assert 0 < seen["lower_bounds_s"]["rr"] <= seen["t"]["rr"].makespan_s
    assert seen["topology"].name == "p100x4"


def test_the_same_file_twice_has_two_names(dop: Dop, traces: Path) -> None:
    result = dop("report", "cp.trace.json", "cp.trace.json", "-o", "x.perfetto.json")
    assert result.code == 0
    events = json.loads((traces / "x.perfetto.json").read_text())["traceEvents"]
    names = {e["args"]["name"].split(":")[0] for e in events if e["name"] == "process_name"}
    assert names == {"cp", "cp (2)"}


def test_an_unknown_machine_has_no_bounds(dop: Dop, traces: Path) -> None:
    text = (traces / "cp.trace.json").read_text().replace('"p100x4"', '"/etc/passwd"')
    (traces / "odd.trace.json").write_text(text)
    result = dop("report", "odd.trace.json", "--graph", "graph.json")
    assert result.code == 0
    assert "the machine is not known" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cp.trace.json", "-o", "cp.trace.json", "--force"), "is an input of this command"),
        (("cp.trace.json", "-o", "graph.json"), "holds a doppler-graph"),
        (("cp.trace.json", "--topology", "p100x4"), "without --graph"),
        (("graph.json",), "doppler-graph"),
        (("missing.json",), "missing.json"),
        (("cp.trace.json", "-o", "nowhere/report.html"), "no folder"),
        ((), "no trace is named"),
        (("--run", "runs", "-o", "x.json"), "no trace is named"),
        (("--run", "nowhere"), "nowhere/metrics.jsonl"),
    ],
)
def test_mistakes(dop: Dop, traces: Path, arguments: tuple[str, ...], message: str) -> None:
    result = dop("report", *arguments)
    assert result.code == 2
    assert message in result.err


def test_to_the_standard_output(dop: Dop, traces: Path) -> None:
    result = dop("report", "cp.trace.json", "-o", "-")
    assert result.out.startswith("<!doctype html>")


def test_as_json(dop: Dop, traces: Path) -> None:
    shown = dop("report", "cp.trace.json", "--graph", "graph.json", "--json").json()
    assert shown["report"] == "report.html"
    (row,) = shown["traces"]
    assert (
        row["lower_bound_s"]
        <= row["makespan_s"]
        == pytest.approx(sum(row["critical_chain"].values()))
    )


def test_training_curves(dop: Dop, files: Path) -> None:
    (files / "run").mkdir()
    row = {"step": 1, "stage": "sim", "exercise": "g@m", "mean_s": 2.0, "least_s": 1.5}
    row |= {"best_s": 1.5, "bound_s": 1.0, "loss": 0.1}
    lines = [json.dumps(row | {"step": step}) for step in (1, 2, 3)]
    (files / "run" / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step"')
    assert dop("report", "--run", "run").out == "wrote report.html\n"
    (files / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    result = dop("report", "--run", "run")
    assert result.code == 2
    assert "no line of metrics" in result.err
