"""The progress of `dop train`: a live view on a terminal, a line every few seconds elsewhere."""

import sys
from collections import deque
from collections.abc import Collection, Sequence
from math import inf, isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from doppler.base.text import visible
from doppler.cli.output import Table, is_quiet, note, percent, seconds, spread, table
from doppler.placers.bounds.lower import ROUNDING, gap

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from doppler.runs.comparison import Comparison
    from doppler.runs.run import ExerciseResult
    from doppler.runs.validation_set import FamilyGap
    from doppler.serving.trials import TrialSummary
    from doppler.training.trainer import RealProgress, TrainingProgress

PAUSE_S = 10.0  # between lines
FRAME_S = 0.25  # between pictures
WINDOW_S = 10.0  # of training, over which speed is measured
MAX_SHOWN = 3  # exercises in a line


class Meter:
    """Speed and time left, from the updates of the last seconds."""

    def __init__(self, budget_s: float | None, *, last_stage: str = "sim") -> None:
        """`budget_s` ends all stages."""
        self.budget_s, self.last_stage = budget_s, last_stage
        self._recent: deque[TrainingProgress] = deque()

    def add(self, progress: "TrainingProgress") -> None:
        """Take an update."""
        if self._recent and self._recent[-1].stage != progress.stage:
            self._recent.clear()
        self._recent.append(progress)
        while progress.seconds - self._recent[0].seconds > WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()

    def episodes_per_s(self) -> float:
        """Episodes a second, or 0 where that is not known yet."""
        return self._per_s("episodes")

    def left_s(self) -> float:
        """Seconds until the stage ends, or the last one where a budget does; at least 0."""
        last = self._recent[-1]
        if self.budget_s is not None and last.stage == self.last_stage:
            return max(self.budget_s - last.seconds, 0.0)
        speed = self._per_s("share")
        return (1 - last.share) / speed if speed > 0 else inf

    def _per_s(self, name: str) -> float:
        first, last = self._recent[0], self._recent[-1]
        took = last.seconds - first.seconds
        return (getattr(last, name) - getattr(first, name)) / took if took > 0 else 0.0


class TrainingView:
    """Shows updates on stderr."""

    def __init__(
        self,
        labels: Collection[str],
        budget_s: float | None,
        *,
        last_stage: str = "sim",
        live: bool | None = None,
    ) -> None:
        """`labels` are the exercises to show; others only count."""
        self.labels = labels
        self.meter = Meter(budget_s, last_stage=last_stage)
        self._live_wanted = sys.stderr.isatty() and not is_quiet() if live is None else live
        self._live: Live | None = None
        self._exercises: dict[str, TrainingProgress] = {}  # the last update of each
        self._gaps: Sequence[FamilyGap] = ()  # of the last validation
        self._shown = -PAUSE_S if self._live_wanted else monotonic()

    def show(self, progress: "TrainingProgress", gaps: Sequence["FamilyGap"] = ()) -> None:
        """Take an update and the last validation, and show them if it is time to."""
        self._gaps = gaps
        self.meter.add(progress)
        if progress.exercise in self.labels:
            self._exercises[progress.exercise] = progress
        if monotonic() - self._shown < (FRAME_S if self._live_wanted else PAUSE_S):
            return
        self._shown = monotonic()
        if self._live_wanted:
            self._draw(progress)
        else:
            note(self.line(progress))

    def say(self, text: str) -> None:
        """Print a remark above the live view."""
        if self._live is None:
            note(text)
        else:
            self._live.console.print(visible(text), markup=False, emoji=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def line(self, progress: "TrainingProgress") -> str:
        """All in one line."""
        shown = list(self._exercises.values())
        parts = [f"{p.exercise} {_makespans(p)}" for p in shown[-MAX_SHOWN:]]
        more = f"; and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
        headline = self.headline(progress)
        if self._gaps:
            return f"{headline}; validation: {_gap_line(self._gaps[-1])}"
        return f"{headline}: {'; '.join(parts)}{more}" if parts else headline

    def headline(self, progress: "TrainingProgress") -> str:
        """The stage, how far it is, its speed and the time left."""
        left = self.meter.left_s()
        return ", ".join(
            [
                f"{progress.stage} {percent(progress.share)}",
                f"{progress.episodes} episodes",
                f"{self.meter.episodes_per_s():.0f}/s",
                f"{clock(left)} left" if isfinite(left) else "time left unknown",
            ]
        )

    def _draw(self, progress: "TrainingProgress") -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(self.picture(progress), refresh=True)

    def picture(self, progress: "TrainingProgress") -> "Group":
        """A bar, and a table of all exercises."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        bar: Any = ProgressBar(total=1.0, completed=progress.share, width=40)
        if self._gaps:
            return Group(visible(self.headline(progress)), bar, gaps_table(self._gaps))
        shown = table("exercise", "this update", "best", "bound", "gap")
        for p in self._exercises.values():
            shown.add_row(p.exercise, seconds(p.mean_s), *_best(p))
        return Group(visible(self.headline(progress)), bar, shown)


def measured_table(results: "list[ExerciseResult]") -> Table:
    """What stage `real` came to: measured makespans of the best assignment, the policy's greedy
    one and the start.

    Without a final race, the policy's is the mean of its latest episodes.
    """
    shown = table(
        *("exercise", "best of the run", "first run after", "policy", "start", "speedup"),
        *("runs", "failed", "simulator off by", "trained"),
    )
    for result in results:
        if (measured := result.measured) is not None:
            off = measured.sim_error
            shown.add_row(
                result.exercise,
                _run_best(result, measured),
                f"{measured.best_after} of {measured.executions}",
                _of_policy(measured),
                "" if measured.start_s is None else seconds(measured.start_s),
                f"{measured.speedup:.3f}",
                str(measured.runs),
                str(measured.failures),
                "" if off is None else percent(off),
                seconds(result.seconds),
            )
    return shown


def _run_best(result: "ExerciseResult", measured: "TrialSummary") -> str:
    if not isfinite(result.makespan_s):
        return "none that runs"
    return spread(result.makespan_s, measured.spread_s)


def _of_policy(measured: "TrialSummary") -> str:
    if measured.policy_s is not None:
        return seconds(measured.policy_s)
    return "" if measured.sampled_s is None else f"{seconds(measured.sampled_s)} sampled"


def comparison_table(labels: Sequence[str], comparisons: "Sequence[Comparison]") -> Table:
    """What was found with and without the run."""
    shown = table("exercise", "best of the run", "trained policy", "shipped policy", "auto")
    for label, one in zip(labels, comparisons, strict=True):
        values = (one.best_s, one.policy_s, one.shipped_s, one.auto_s)
        shown.add_row(label, *map(_found, values))
    return shown


def verdict(label: str, one: "Comparison") -> str:
    """Whether the run is better than no training, in a sentence."""
    auto = f"what auto finds without training in {seconds(one.budget_s)} ({_found(one.auto_s)})"
    other_s, other = one.shipped_s, f"the shipped one ({_found(one.shipped_s)})"
    if other_s is None:
        other_s, other = one.auto_s, "that"
    return (
        f"{label}: the best of the run ({_found(one.best_s)}) is "
        f"{_against(one.best_s, one.auto_s)} {auto}; the trained policy by itself "
        f"({_found(one.policy_s)}) is {_against(one.policy_s, other_s)} {other}"
    )


def _against(mine_s: float, other_s: float) -> str:
    """`2.3 % better than`, or `not better than`."""
    if not mine_s < other_s * (1 - ROUNDING):
        return "not better than"
    return (
        f"{100 * (1 - mine_s / other_s):.2g} % better than" if isfinite(other_s) else "better than"
    )


def _found(makespan_s: float | None) -> str:
    if makespan_s is None:
        return "none shipped"
    return seconds(makespan_s) if isfinite(makespan_s) else "none that fits"


def gaps_table(gaps: Sequence["FamilyGap"]) -> Table:
    """How the policy alone does on the validation problems."""
    heads = ("problems", "no fit", "mean gap", "95 %", "to bound", "beats lists")
    shown = table("validation", *heads)
    for one in gaps:
        shares = (one.mean_gap, one.p95_gap, one.bound_gap, one.wins)
        counts = (str(one.problems), str(one.failures) if one.failures else "")
        shown.add_row(one.family, *counts, *map(percent, shares))
    return shown


def _gap_line(one: "FamilyGap") -> str:
    return (
        f"gap {percent(one.mean_gap)} on average, {percent(one.p95_gap)} at 95 %, "
        f"beats list schedulers on {percent(one.wins)}"
        + (f", out of memory on {one.failures} of {one.problems}" if one.failures else "")
    )


def clock(value: float) -> str:
    """A duration for people who wait: 1:02:03, 2:03, 3 s."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _best(progress: "TrainingProgress") -> tuple[str, str, str]:
    bound = seconds(progress.bound_s)
    if not isfinite(progress.best_s):
        return "none that fits", bound, ""
    if progress.stage == "real":  # the bound is one of the cost model, not of what is measured
        return spread(progress.best_s, _measured(progress).spread_s), bound, ""
    return (
        seconds(progress.best_s),
        bound,
        percent(gap(progress.best_s, progress.bound_s)),
    )


def _makespans(progress: "TrainingProgress") -> str:
    best, _, above = _best(progress)
    shown = f"mean {seconds(progress.mean_s)}, best {best}" + (f", gap {above}" if above else "")
    return f"{shown}, {_runs(progress)}" if progress.stage == "real" else shown


def _measured(progress: "TrainingProgress") -> "RealProgress":
    return cast("RealProgress", progress)


def _runs(progress: "TrainingProgress") -> str:
    """What the executor did, and how far off the simulator is."""
    measured = _measured(progress)
    parts = [f"{measured.runs} runs"]
    if measured.failures:
        parts.append(f"{measured.failures} failed")
    if measured.sim_error is not None:
        parts.append(f"simulator off by {percent(measured.sim_error)}")
    return ", ".join(parts)
