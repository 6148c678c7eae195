"""Training curves, read again and again while they grow."""

import json
from pathlib import Path

import pytest

from doppler.errors import FormatError
from doppler.report.curves import CurveReader, read_curves

ROW = {"stage": "sim", "exercise": "g@m", "mean_s": 2.0, "least_s": 1.5, "best_s": 1.5}
ROW |= {"bound_s": 1.0, "loss": 0.5}


def lines(first: int, last: int, **values) -> str:
    rows = (json.dumps(ROW | {"step": step} | values) + "\n" for step in range(first, last + 1))
    return "".join(rows)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    reader, path = CurveReader(tmp_path), tmp_path / "metrics.jsonl"
    assert not reader.has_begun
    path.write_text(lines(1, 3) + '{"step": 4')
    assert reader.has_begun
    assert reader.read()[0].step == (1, 2, 3)
    path.write_text(lines(1, 5) + lines(6, 7, stage="real"))
    assert [curve.step for curve in reader.read()] == [(1, 2, 3, 4, 5), (6, 7)]
    assert reader.lines == 7
    assert reader.read() == read_curves(tmp_path)


def test_losses_and_episodes_per_second(tmp_path: Path) -> None:
    rows = [ROW | {"step": s, "episodes": 16 * s, "seconds": 0.5 * s} for s in range(1, 5)]
    rows[2]["loss"] = None
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    (curve,) = read_curves(tmp_path)
    assert curve.loss == (0.5, 0.5, None, 0.5)
    assert curve.episodes_per_s == 32.0
    odd = json.dumps(ROW | {"step": 1, "loss": "low", "episodes": [], "seconds": True})
    (tmp_path / "metrics.jsonl").write_text(odd + "\n")
    (curve,) = read_curves(tmp_path)
    assert (curve.loss, curve.episodes_per_s) == ((), None)


UNTRAINED = {"format": "doppler-untrained", "version": 1}


def test_placers_that_need_no_training(tmp_path: Path) -> None:
    reader, path = CurveReader(tmp_path), tmp_path / "untrained.json"
    (tmp_path / "metrics.jsonl").write_text(lines(1, 2) + lines(3, 4, stage="real"))
    assert [curve.untrained_s for curve in reader.read()] == [(), ()]
    seen = reader.seen
    found = {"g@m": {"single": 4.0, "heft": 1.5, "auto": 1.5}, "other@m": {"single": 1.0}}
    path.write_text(json.dumps(UNTRAINED | {"makespans_s": found}))
    simulated, measured = reader.read()
    assert simulated.untrained_s == (("auto", 1.5), ("heft", 1.5), ("single", 4.0))
    assert measured.untrained_s == ()  # a simulated makespan is none of the machine
    assert reader.seen != seen


@pytest.mark.parametrize(
    "odd",
    [{"makespans_s": []}, {"makespans_s": {"g@m": {"a": -1.0}}}, {"makespans_s": {}, "x": 1}, {}],
)
def test_mistakes_in_what_needs_no_training(tmp_path: Path, odd: dict) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines(1, 1))
    (tmp_path / "untrained.json").write_text(json.dumps(UNTRAINED | odd))
    with pytest.raises(FormatError, match="no makespans by exercise and placer"):
        read_curves(tmp_path)


def test_a_resumed_run_starts_over(tmp_path: Path) -> None:
    reader, path = CurveReader(tmp_path), tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 5))
    reader.read()
    path.write_text(lines(1, 2) + lines(3, 9, mean_s=7.0))
    (curve,) = reader.read()
    assert curve.step == tuple(range(1, 10))
    assert curve.mean_s[2:] == (7.0,) * 7
    path.write_text("")
    assert reader.read() == ()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read_curves(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(FormatError, match="line 1 is no JSON"):
        read_curves(tmp_path)
