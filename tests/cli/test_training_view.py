"""What `dop train` shows while it works."""

from io import StringIO
from math import inf

import pytest
from rich.console import Console

pytest.importorskip("torch")

from doppler.cli.training_view import Meter, TrainingView, clock, comparison_table, verdict
from doppler.runs.comparison import Comparison
from doppler.training.trainer import TrainingProgress


def update(
    number: int, *, stage: str = "sim", seconds: float = 0.0, best_s: float = 0.012
) -> TrainingProgress:
    return TrainingProgress(
        stage=stage,
        update=number,
        episodes=32 * number,
        share=number / 10,
        seconds=seconds,
        exercise=f"graph{number % 5}@p100x4",
        mean_s=0.02,
        least_s=0.015,
        best_s=best_s,
        bound_s=0.01,
        loss=1.0,
        lr=1e-3,
    )


def test_speed_and_time_left() -> None:
    meter = Meter(None)
    meter.add(update(9, stage="imitation"))
    assert meter.left_s() == float("inf")
    meter.add(update(1, seconds=2.0))
    meter.add(update(3, seconds=4.0))
    assert meter.episodes_per_s() == 32
    assert meter.left_s() == pytest.approx(7)
    for number in range(4, 9):
        meter.add(update(number, seconds=40.0 + number))
    assert meter.episodes_per_s() == 32
    assert meter.left_s() == pytest.approx(2)
    budget = Meter(60.0)
    budget.add(update(1, seconds=20.0))
    assert budget.left_s() == 40


def test_lines() -> None:
    view = TrainingView([f"graph{i}@p100x4" for i in range(5)], None, live=False)
    for number in range(1, 5):
        view.show(update(number, seconds=float(number)))
    assert view.line(update(4)) == (
        "sim 40.0 %, 128 episodes, 32/s, 6 s left: "
        "graph2@p100x4 mean 20 ms, best 12 ms, gap 20.0 %; "
        "graph3@p100x4 mean 20 ms, best 12 ms, gap 20.0 %; "
        "graph4@p100x4 mean 20 ms, best 12 ms, gap 20.0 %; and 1 more"
    )
    view.show(update(5, best_s=float("inf")))
    assert "graph0@p100x4 mean 20 ms, best none that fits" in view.line(update(5))
    assert [clock(s) for s in (0, 59.4, 60, 3600, 7325)] == [
        *("0 s", "59 s", "1:00"),
        *("1:00:00", "2:02:05"),
    ]


def test_variants_are_not_shown_but_count() -> None:
    view = TrainingView(["graph1@p100x4"], None, live=False)
    view.show(update(3))
    assert view.line(update(3)) == "sim 30.0 %, 96 episodes, 0/s, time left unknown"
    view.show(update(6, seconds=1.0))
    assert view.line(update(6)).endswith(
        "96/s, 1 s left: graph1@p100x4 mean 20 ms, best 12 ms, gap 20.0 %"
    )


def test_the_picture() -> None:
    view = TrainingView([f"graph{i}@p100x4" for i in range(5)], None, live=True)
    view.meter.add(update(1))
    view._exercises["graph1@p100x4"] = update(1)
    console = Console(width=100, record=True, file=StringIO())
    console.print(view.picture(update(1)))
    shown = console.export_text()
    for word in ("sim 10.0 %", "32 episodes", "graph1@p100x4", "20 ms", "12 ms", "20.0 %"):
        assert word in shown


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Comparison(0.009, 0.011, 0.012, 0.010, 2.0),
            "a@b: the best of the run (9 ms) is 10 % better than what auto finds without training "
            "in 2 s (10 ms); the trained policy by itself (11 ms) is 8.3 % better than the shipped "
            "one (12 ms)",
        ),
        (
            Comparison(0.010, 0.013, 0.012, 0.010, 0.5),
            "a@b: the best of the run (10 ms) is not better than what auto finds without training "
            "in 500 ms (10 ms); the trained policy by itself (13 ms) is not better than the "
            "shipped one (12 ms)",
        ),
        (
            Comparison(0.010, inf, None, inf, 2.0),
            "a@b: the best of the run (10 ms) is better than what auto finds without training in "
            "2 s (none that fits); the trained policy by itself (none that fits) is not better "
            "than that",
        ),
    ],
)
def test_what_a_run_was_good_for(found: Comparison, sentence: str) -> None:
    assert verdict("a@b", found) == sentence
    console = Console(width=100, record=True, file=StringIO())
    console.print(comparison_table(["a[b]"], [found]))
    shown = console.export_text()
    assert "a[b]" in shown
    assert ("none shipped" in shown) == (found.shipped_s is None)
