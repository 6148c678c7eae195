"""Makespans of placers that need no training, kept beside a run: lines in its charts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from doppler.base.writing import write_text
from doppler.errors import DopplerError
from doppler.placers.base import Placer
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig
from doppler.report.curves import UNTRAINED_FILE, UNTRAINED_FORMAT, Untrained
from doppler.training.exercise_record import ExerciseRecord


@dataclass(frozen=True, slots=True)
class UntrainedConfig:
    """Which placers are shown beside a training."""

    heuristics: tuple[str, ...] = ("single", "critical-path", "enumerative")
    evaluations: int = 1000  # of simulated annealing, on one core so that runs repeat


def place_untrained(
    records: Sequence[ExerciseRecord], config: UntrainedConfig | None = None
) -> Untrained:
    """Makespans by exercise and placer, as the run simulates them; without those that fail."""
    config = config or UntrainedConfig()
    placers: list[Placer] = [make_placer(name) for name in config.heuristics]
    placers.append(AnnealingPlacer(SearchConfig(evaluations=config.evaluations, chains=1)))
    return {record.label: _makespans(record, placers) for record in records}


def _makespans(record: ExerciseRecord, placers: Sequence[Placer]) -> dict[str, float]:
    exercise, found = record.exercise, {}
    for placer in placers:
        try:
            placed = placer.place(exercise.problem, seed=exercise.config.seed)
        except DopplerError:
            continue
        found[placer.name] = exercise.mean_makespan_s(placed.devices)
    return found


def write_untrained(folder: Path, makespans_s: Untrained) -> None:
    """Write the file into the directory of a run; makespans of what does not fit are left out."""
    finite: Mapping[str, dict[str, float]] = {
        label: {name: found_s for name, found_s in rows.items() if isfinite(found_s)}
        for label, rows in makespans_s.items()
    }
    document = {"format": UNTRAINED_FORMAT, "version": 1, "makespans_s": finite}
    write_text(folder / UNTRAINED_FILE, json.dumps(document, allow_nan=False) + "\n", durable=True)
