"""Metrics of a run: a line of JSON per update, and TensorBoard or Weights & Biases if wanted."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from doppler.errors import MissingExtraError
from doppler.runs.validation_set import FamilyGap
from doppler.training.trainer import RealProgress, TrainingProgress

FILE = "metrics.jsonl"
EVENTS = "tensorboard"  # folder of its events
PAUSE_S = 0.2  # between what is sent of one exercise: plots show a thousand points at most
MEASURED = (  # plotted of Stage III
    *("spread_s", "runs", "failures", "speedup", "sim_error"),
    *("best_after", "sampled_s", "policy_s", "start_s"),
)
PROJECT = "doppler"  # at Weights & Biases


class MetricsFile:
    """Appends a line per update to those that are there."""

    def __init__(self, folder: Path, steps: int) -> None:
        """What comes after the line of update `steps` is cut off."""
        self._file = (folder / FILE).open("a+b")
        try:
            self._cut(steps)
        except BaseException:
            self._file.close()
            raise

    def _cut(self, steps: int) -> None:
        self._file.seek(0)
        end = sum(len(line) for _, line in zip(range(steps), self._file, strict=False))
        self._file.truncate(end)

    def write(self, step: int, progress: TrainingProgress, gaps: Sequence[FamilyGap] = ()) -> None:
        """Append the line of an update, with what validation said after it if there was one."""
        values = row(step, progress)
        if gaps:
            values["validation"] = [asdict(one) for one in gaps]
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; what could not be written is lost."""
        with suppress(OSError):
            self._file.close()


def row(step: int, progress: TrainingProgress) -> dict[str, Any]:
    """JSON values of an update, `step` counted over all stages; null is infinity."""
    values = {"step": step} | asdict(progress)
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in values.items()}


class Plots(Protocol):
    """Something that draws numbers by the update they belong to."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Take the numbers of one update."""
        ...

    def close(self) -> None:
        """Send all that was taken."""
        ...


class TensorBoard:
    """Plots as TensorBoard events."""

    def __init__(self, folder: Path, steps: int) -> None:
        """What came after update `steps` is to be forgotten."""
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter  # it has no types
        self._writer = writer(str(folder / EVENTS), purge_step=steps + 1)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write an event per number."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still buffered."""
        with suppress(OSError):
            self._writer.close()


class WeightsAndBiases:
    """Plots at Weights & Biases."""

    def __init__(self, folder: Path, run_id: str, config: Mapping[str, Any]) -> None:
        self._run: Any = import_module("wandb").init(
            project=PROJECT,
            name=folder.name,
            dir=str(folder),
            id=run_id,
            resume="allow",
            config=dict(config),
        )

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the numbers."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


def require_wandb() -> None:
    """Raise unless Weights & Biases is there."""
    if find_spec("wandb") is None:
        raise MissingExtraError("wandb", "logging to Weights & Biases")


def tensorboard(folder: Path, steps: int) -> TensorBoard | None:
    """Plots as TensorBoard events; None where the library is absent or does not work."""
    try:
        return TensorBoard(folder, steps)
    except (ImportError, AttributeError, TypeError):  # the last two: versions that do not fit
        return None


class Thinned:
    """Hands on to plots what comes after a pause, exercise by exercise."""

    def __init__(self, plots: list[Plots], clock: Callable[[], float] = monotonic) -> None:
        self.plots, self._clock = plots, clock
        self._last: dict[tuple[str, str], float] = {}

    def log(self, step: int, progress: TrainingProgress, *, as_one: bool = False) -> None:
        """Plot an update, unless the last one of its exercise was a moment ago.

        Where there are many exercises, plot all `as_one`.
        """
        key, now = (progress.stage, "" if as_one else progress.exercise), self._clock()
        if not self.plots or now - self._last.get(key, -PAUSE_S) < PAUSE_S:
            return
        self._last[key] = now
        self.send(step, scalars_of_all(progress) if as_one else scalars_of(progress))

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Plot numbers at once."""
        for plots in self.plots:
            plots.log(step, scalars)

    def close(self) -> None:
        """Close all plots."""
        for plots in self.plots:
            plots.close()


def scalars_of(progress: TrainingProgress) -> dict[str, float]:
    """The numbers that are plotted, by `stage/exercise/name`."""
    values = {name: getattr(progress, name) for name in ("mean_s", "least_s", "best_s", "loss")}
    if isinstance(progress, RealProgress):  # the bound is the simulator's
        measured = {name: getattr(progress, name) for name in MEASURED}
        values |= {name: value for name, value in measured.items() if value is not None}
    elif progress.bound_s > 0:
        values["gap"] = progress.best_s / progress.bound_s - 1
    prefix = f"{progress.stage}/{progress.exercise}"
    named = {f"{prefix}/{name}": value for name, value in values.items() if isfinite(value)}
    return named | {f"{progress.stage}/lr": progress.lr}


def scalars_of_all(progress: TrainingProgress) -> dict[str, float]:
    """The numbers that are plotted where exercises are not distinguished, by `stage/name`.

    `lag` is how far the episodes are, on average, behind the best of their exercise.
    """
    lag = progress.mean_s / progress.best_s - 1
    values = {"loss": progress.loss, "lr": progress.lr, "lag": lag}
    return {f"{progress.stage}/{name}": v for name, v in values.items() if isfinite(v)}


def scalars_of_gaps(gaps: Sequence[FamilyGap]) -> dict[str, float]:
    """The numbers of a validation that are plotted, by `validation/family/name`."""
    names = ("mean_gap", "p95_gap", "bound_gap", "wins", "failures")
    return {f"validation/{g.family}/{name}": getattr(g, name) for g in gaps for name in names}
