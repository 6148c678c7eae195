"""The jobs of a real machine: what is timed runs alone, placing and training beside one another.

A job probes the machine with a graph. Placers, and policies trained on the simulator of the probed
machine, place it, in as many processes as there are cores. Stage III and all measurements run on
the engine, one job at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from doppler.reproduce.budgets import Budgets, Settings
from doppler.reproduce.experiments.engines import sizes_of
from doppler.reproduce.jobs import PaperJob, Result
from doppler.scheduler.choose import DYNAMIC

GUARDED, PLAIN = "guarded", "plain"  # forms of Stage III: with an incumbent, and as in the paper
Row = tuple[str, PaperJob, str]  # a name, and the field of a job's result that has the assignment


@dataclass(frozen=True, slots=True)
class RealJobs:
    """Makes the jobs of one real machine, with the budgets of a reproduction."""

    budgets: Budgets
    executor: str

    @classmethod
    def of(cls, settings: Settings) -> "RealJobs":
        """Those of a reproduction."""
        return cls(settings.budgets, settings.executor)

    def _common(self, graph: str) -> Result:
        return {"workload": graph, "executor": self.executor, "small": self.budgets.small}

    def probed(self, graph: str) -> PaperJob:
        """The machine as runs of a graph show it."""
        b = self.budgets
        values = self._common(graph) | {"probe_s": b.probe_s, "good": b.good}
        values |= {"sizes": sizes_of(graph, self.executor, small=b.small)}
        return PaperJob("probe", values, 2 * b.probe_s + 10, alone=True)

    def placed(self, graph: str, placer: str) -> PaperJob:
        """What a placer makes of a graph on the probed machine."""
        values = self._common(graph) | {"placer": placer, "search_s": self.budgets.search_s}
        cost = self.budgets.search_s if placer == "auto" else 1.0
        return PaperJob("real-place", values, cost, needs=(self.probed(graph),))

    def trained(
        self, graph: str, method: str = "doppler", *, seed: int, stages: Sequence[str] = ()
    ) -> PaperJob:
        """A policy trained on the simulator of the probed machine, in these or the usual stages."""
        b = self.budgets
        seconds = None if tuple(stages) == ("imitation",) else b.train_s.get(graph)
        values = self._common(graph) | {
            "method": method,
            "preset": b.recipe,
            "stages": list(stages),
            "seed": seed,
            "episodes": b.episodes[graph],
            "imitation": b.imitation,
            "seconds": seconds,
            "samples": b.samples,
        }
        cost = seconds or 0.08 * (b.episodes[graph] + b.imitation)
        return PaperJob("real-train", values, cost, needs=(self.probed(graph),))

    def refined(
        self, graph: str, start: PaperJob | None, *, seed: int, form: str = GUARDED
    ) -> PaperJob:
        """Stage III on the engine, from a training or from nothing."""
        b = self.budgets
        values = self._common(graph) | {
            "preset": b.recipe,
            "form": form,
            "seed": seed,
            "real": b.real,
            "real_s": b.real_s,
            "mode": DYNAMIC,
            "start": start.key if start else None,
        }
        needs = (self.probed(graph), *((start,) if start else ()))
        return PaperJob("real-refine", values, b.real_s or 0.5 * b.real, needs, alone=True)

    def measured(
        self, graph: str, rows: Iterable[Row], *, mode: str = DYNAMIC, synchronous: bool = False
    ) -> PaperJob:
        """Runs of the assignments that other jobs made."""
        b, rows = self.budgets, list(rows)
        values = self._common(graph) | {
            "mode": mode,
            "synchronous": synchronous,
            "draws": b.draws,
            "measure_s": b.measure_s,
            "rows": [[name, job.key, field] for name, job, field in rows],
        }
        needs = {job.key: job for job in (self.probed(graph), *(job for _, job, _ in rows))}
        cost = b.measure_s or 0.3 * b.draws * len(rows)
        return PaperJob("real-measure", values, cost, tuple(needs.values()), alone=True)

    def validated(self, graph: str) -> PaperJob:
        """How well the simulator predicts diverse assignments, and those of Stage I."""
        b = self.budgets
        values = self._common(graph) | {"assignments": b.assignments, "imitation": b.imitation}
        cost = 2.0 * b.assignments + 10
        return PaperJob("real-validate", values, cost, needs=(self.probed(graph),), alone=True)
