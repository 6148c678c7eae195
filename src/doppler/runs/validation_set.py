"""ValidationSet: problems of held-out families, and the gap of a policy on each family."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.files import parse_json, read_text
from doppler.base.progress import track
from doppler.base.writing import write_text
from doppler.datasets import DrawnProblem
from doppler.datasets.recipe import Recipe, digest_of
from doppler.errors import DopplerError, FormatError
from doppler.mdp.instance import Instance
from doppler.placers.bounds.lower import ROUNDING, bounds_of, gap
from doppler.placers.learned.trained import placer_of
from doppler.placers.lists.guides import instance_for
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

FILE = "validation.json"
ALL = "all"  # the row of all families together
LIST_SCHEDULERS = ("max-min", "min-min", "peft", "heft", "cpop", "etf", "m-etf", "m-sct")
WORST = 10.0  # the gap of a family of which it can place no problem


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a problem without a policy."""

    best_s: float  # by search from the heuristics, or by a list scheduler
    bound_s: float  # lower bound of any assignment
    listed_s: float  # by the best of the list schedulers; infinity where none can run


@dataclass(frozen=True, slots=True)
class FamilyGap:
    """How the policy alone does on the problems of a family."""

    family: str
    problems: int
    failures: int  # those for which nothing that it made can run; they have no gap
    mean_gap: float  # above the best known, on average; below 0 where the policy is better
    p95_gap: float  # the gap that 95 % of the problems do not exceed
    bound_gap: float  # above the lower bound, on average
    wins: float  # share of the problems on which it is faster than the best list scheduler


def find_known(problem: Problem, evaluations: int, seed: int) -> Known:
    """What search on one core with a budget of evaluations, bounds and list schedulers say."""
    starts = starting_points(problem, seed)
    config = SearchConfig(evaluations=evaluations, chains=1)
    found_s = search(problem, starts, config, seed=seed).cost_s
    lists_s = listed_s(problem, seed)
    # One of the list schedulers may be all that fits into memory, and search has not all of them.
    return Known(min(found_s, lists_s), bounds_of(problem).best_s, lists_s)


def listed_s(problem: Problem, seed: int = 0) -> float:
    """The makespan of the best list scheduler; infinity where none can run."""
    simulator, found = Simulator(problem), [inf]
    for name in LIST_SCHEDULERS:
        try:
            placed = make_placer(name).place(problem, seed=seed)
        except DopplerError:
            continue
        found.append(float(simulator.makespans(problem.graph, [placed])[0]))
    return min(found)


class ValidationSet:
    """Problems of other families than a policy is trained on, and what is known of them."""

    def __init__(self, drawn: Sequence[DrawnProblem], known: Sequence[Known], samples: int) -> None:
        self.problems, self.known, self.samples = tuple(drawn), tuple(known), samples
        self._instances: list[Instance] | None = None

    def makespans_s(self, policy: TrainablePolicy) -> list[float]:
        """What the policy alone makes of each problem: the best of a greedy and some samples."""
        placer = placer_of(policy, samples=self.samples)
        if self._instances is None:
            self._instances = [instance_for(policy.config, p.problem) for p in self.problems]
        return [float(placer.propose(instance)[2].min()) for instance in self._instances]

    def measure(self, policy: TrainablePolicy) -> tuple[FamilyGap, ...]:
        """How the policy does on every family, and at last on all of them."""
        made = self.makespans_s(policy)
        names = [problem.family for problem in self.problems]
        rows = list(zip(names, made, self.known, strict=True))
        gaps = [
            family_gap(name, [row[1:] for row in rows if row[0] == name])
            for name in sorted(set(names))
        ]
        return (*gaps, family_gap(ALL, [row[1:] for row in rows]))


def family_gap(name: str, rows: Sequence[tuple[float, Known]]) -> FamilyGap:
    """How makespans, infinite where nothing can run, compare with what is known."""
    runs = [(made_s, known) for made_s, known in rows if isfinite(made_s)]
    gaps = [made_s / known.best_s - 1 for made_s, known in runs] or [WORST]
    above = [gap(made_s, known.bound_s) for made_s, known in runs] or [WORST]
    return FamilyGap(
        family=name,
        problems=len(rows),
        failures=len(rows) - len(runs),
        mean_gap=float(np.mean(gaps)),
        p95_gap=float(np.percentile(gaps, 95)),
        bound_gap=float(np.mean(above)),
        wins=sum(s < known.listed_s * (1 - ROUNDING) for s, known in runs) / len(rows),
    )


def make_validation(recipe: Recipe, folder: Path) -> ValidationSet | None:
    """The validation of a run; what is known is found once, then read from the run's folder."""
    if not recipe.validation:
        return None
    drawn = recipe.draw_validation()
    known = _read(folder / FILE, drawn, recipe)
    if known is None:
        known = [
            find_known(one.problem, recipe.evaluations, recipe.seed)
            for one in track(drawn, "searching the validation problems")
        ]
        _write(folder / FILE, drawn, known, recipe)
    return ValidationSet(drawn, known, recipe.samples)


def _header(drawn: Sequence[DrawnProblem], recipe: Recipe) -> dict[str, Any]:
    return {"digest": digest_of(drawn), "evaluations": recipe.evaluations, "seed": recipe.seed}


def _write(
    path: Path, drawn: Sequence[DrawnProblem], known: Sequence[Known], recipe: Recipe
) -> None:
    rows = []
    for problem, one in zip(drawn, known, strict=True):
        row = {"graph": problem.graph.name, "topology": problem.topology.name} | asdict(one)
        rows.append({k: None if v == inf else v for k, v in row.items()})
    write_text(path, json.dumps(_header(drawn, recipe) | {"problems": rows}, indent=1) + "\n")


def _read(path: Path, drawn: Sequence[DrawnProblem], recipe: Recipe) -> list[Known] | None:
    """What a file says is known; None where there is none, or one for something else."""
    if not path.is_file():
        return None
    document = parse_json(read_text(path), f"`{path}`")
    if not isinstance(document, dict):
        raise FormatError(f"`{path}` must be an object", hint="remove it, and it is made again")
    if any(document.get(key) != value for key, value in _header(drawn, recipe).items()):
        return None
    names = ("best_s", "bound_s", "listed_s")
    try:
        rows = [[row[name] for name in names] for row in document["problems"]]
        known = [Known(*(inf if v is None else float(v) for v in row)) for row in rows]
    except (LookupError, TypeError, ValueError):
        known = []
    if len(known) != len(drawn):
        raise FormatError(f"`{path}` is broken", hint="remove it, and it is made again")
    return known


class Pace:
    """When to measure: at once, then after every pause of training, and at the end."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s, self._last_s = pause_s, -inf

    def is_due(self, trained_s: float, *, at_the_end: bool) -> bool:
        """Whether it is time to; then the next time is a pause away."""
        due = at_the_end or trained_s - self._last_s >= self.pause_s
        if due:
            self._last_s = trained_s
        return due
