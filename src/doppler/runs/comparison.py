"""Comparison: makespans of the policy of a run, and of placers that need no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, isfinite

from doppler.base.progress import track
from doppler.placers.registry import make_placer
from doppler.policies.arrays.checkpoint import has_shipped_policy
from doppler.problem import Problem
from doppler.report.curves import read_untrained
from doppler.runs.run import Run
from doppler.runs.untrained import write_untrained
from doppler.sim.simulator import Simulator
from doppler.training.exercise_record import ExerciseRecord

ALL_S = 12.0  # seconds of all placers in total, about
MAX_S = 2.0  # seconds that one placer has for one exercise, at most
POLICY, SHIPPED, AUTO = "policy", "doppler", "auto"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Simulated makespans for one exercise; infinity where nothing that fits was found."""

    best_s: float  # of the best assignment of the run
    policy_s: float  # by the placer with the run's policy, as `dop place` runs it
    shipped_s: float | None  # by placer `doppler`, None where no policy is shipped
    auto_s: float  # by placer `auto`, with the shipped policy if there is one
    budget_s: float  # seconds that each placer had, at most


def compare(run: Run) -> list[Comparison]:
    """What placers get for each exercise with the policy that was saved last, and without it.

    All assignments are simulated as the run simulates them, on the recalibrated topology after
    Stage III. Placers that sample or search stop after about two seconds, or sooner where all
    exercises would take over twelve.
    """
    trainer, config = run.trainer, run.trainer.config
    names = {POLICY: f"{trainer.policy.kind}:{run.directory.path}", AUTO: AUTO}
    if has_shipped_policy():
        names[SHIPPED] = SHIPPED
    budget_s = min(MAX_S, ALL_S / (len(names) * len(trainer.records)))
    placers = {key: make_placer(name) for key, name in names.items()}
    problems = [
        Problem(record.exercise.graph, record.recalibrated() or record.exercise.topology)
        for record in trainer.records
    ]
    simulators = [
        Simulator(problem, record.sim_config)
        for record, problem in zip(trainer.records, problems, strict=True)
    ]
    cases = list(product(zip(trainer.records, problems, simulators, strict=True), placers))
    found_s: dict[str, list[float]] = {key: [] for key in placers}  # by exercise
    for (record, problem, simulator), key in track(cases, "comparing"):
        placed = placers[key].place(problem, seed=config.seed, budget_s=budget_s)
        found_s[key].append(record.exercise.mean_makespan_s(placed.devices, simulator))
    return [
        Comparison(
            best_s=_best_s(record, simulator),
            policy_s=found_s[POLICY][number],
            shipped_s=found_s[SHIPPED][number] if SHIPPED in found_s else None,
            auto_s=found_s[AUTO][number],
            budget_s=budget_s,
        )
        for number, (record, simulator) in enumerate(zip(trainer.records, simulators, strict=True))
    ]


def keep(run: Run, comparisons: Sequence[Comparison]) -> None:
    """Write what placers found without training beside the run, unless its costs were measured."""
    folder, records = run.directory.path, run.trainer.records
    known = {label: dict(rows) for label, rows in read_untrained(folder).items()}
    for record, compared in zip(records, comparisons, strict=True):
        if record.recalibrated() is not None:
            continue
        found = {SHIPPED: compared.shipped_s, AUTO: compared.auto_s}
        rows = known.setdefault(record.label, {})
        rows |= {name: found_s for name, found_s in found.items() if found_s is not None}
    write_untrained(folder, known)


def _best_s(record: ExerciseRecord, simulator: Simulator) -> float:
    """The simulated makespan of the best assignment of the run."""
    if not isfinite(record.best_s):
        return inf
    return record.exercise.mean_makespan_s(record.best_devices, simulator)
