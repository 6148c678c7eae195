"""What runs assignments: labels `blocking` (Table 1), `stages` (Q3), `sim-vs-real` (App. G.1)."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import Found
from doppler.reproduce.experiments.real_jobs import RealJobs
from doppler.reproduce.findings import (
    Claim,
    Inequality,
    LineChart,
    Spread,
    cannot_test,
    check,
    claim,
    spread,
)
from doppler.reproduce.job_rows import JobMaker, cell, of_greedy, of_run, plain
from doppler.reproduce.jobs import PaperJob, Result, Results
from doppler.reproduce.paper_figures import paper

TWO = ("chainmm", "ffnn")
ENUM_OPT = "enumerative"
STAGES = ("imitation", "sim", "real")
SHORT = {"imitation": "I", "sim": "II", "real": "III"}


class Blocking:
    """Table 1: work conservation against bulk-synchronous execution."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.is_simulated:
            self.runs = {
                g: [PaperJob("barriers", {"machine": "p100x4", "graph": g, "placer": ENUM_OPT})]
                for g in TWO
            }
        else:
            jobs = RealJobs.of(settings)
            rows = {g: [(ENUM_OPT, jobs.placed(g, ENUM_OPT), "best")] for g in TWO}
            self.runs = {
                g: [jobs.measured(g, rows[g], synchronous=s) for s in (False, True)] for g in TWO
            }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return [job for jobs in self.runs.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Ours beside the paper's; the same engine, with barriers and without."""
        theirs = paper("blocking")
        rows, compared, saved = [], [], []
        for g, jobs in self.runs.items():
            free, barred = self._pair(results.all(jobs))
            shares = 1 - free.mean / barred.mean, barred.mean / free.mean - 1
            saved.append(
                f"{g} {shares[0]:.1%} of the time with barriers, {shares[1]:.1%} of that without"
            )
            first, second = theirs["work-conserving"][g], theirs["synchronous"][g]
            rows.append(
                (
                    g,
                    *cell(free, first),
                    *cell(barred, second),
                    f"{shares[0]:.1%}",
                    f"{1 - first.mean / second.mean:.1%}",
                )
            )
            compared.append(Inequality(g, free, barred))
        claims = [
            claim("Work-conserving execution is faster than bulk-synchronous", compared),
            cannot_test(
                "It saves 33 and 53 % of its own time (25 and 35 % of the other's)",
                "the paper compares with other systems, ScaLAPACK and PyTorch Lightning; here the "
                "same engine has barriers: " + "; ".join(saved),
            ),
        ]
        heads = ["graph", "work-conserving, ms", "*paper*", "ratio", "with barriers", "*paper*"]
        heads += ["ratio", "saved", "*paper*"]
        return [plain("EnumOpt's assignment", heads, rows)], claims, []

    def _pair(self, found: list[Result]) -> tuple[Spread, Spread]:
        if self.settings.is_simulated:
            return Spread(found[0]["ms"]), Spread(found[0]["barriers_ms"])
        free, barred = (spread(result["ms"][ENUM_OPT]) for result in found)
        return free, barred


class Stages:
    """Sec. 6, Q3: combinations of the three stages on Llama-layer."""

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, JobMaker(settings.budgets)
        every = [c for n in (1, 2, 3) for c in combinations(STAGES, n)]
        self.runs = {
            "+".join(SHORT[s] for s in stages): [
                jobs.staged("llama-layer", stages, seed) for seed in range(settings.budgets.seeds)
            ]
            for stages in every
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figure."""
        return [job for jobs in self.runs.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """What each combination ends with, and how Stage III goes."""
        greedy = {name: of_greedy(results, jobs) for name, jobs in self.runs.items()}
        best = {name: of_run(results, jobs) for name, jobs in self.runs.items()}
        rows = [(name, greedy[name], best[name], *_ends(results, self.runs, name)) for name in best]
        begins = {name: _first(results, self.runs[name]) for name in ("I+II+III", "III")}
        claims = [
            *stage_claims(greedy, begins),
            cannot_test(
                "Stage III improves on Stages I and II",
                "in the simulator the system differs from its model by noise alone: greedy "
                f"{greedy['I+II']} before and {greedy['I+II+III']} after",
            ),
        ]
        lines = {
            name: [[float(p[1]) for p in curve], [round(float(p[2]), 2) for p in curve]]
            for name, jobs in self.runs.items()
            if name.endswith(SHORT["real"]) and (curve := results[jobs[0]]["curve"])
        }
        heads = (
            "stages",
            "greedy, ms",
            "best of the run",
            "first runs of III",
            "last runs",
            "seeds",
        )
        title = f"Llama-layer; Stage III has {self.settings.budgets.real:,} runs with noise"
        chart = LineChart("Stage III, seed 0", "executions", "ms", lines)
        return [plain(title, heads, rows)], claims, [chart]


def stage_claims(greedy: Mapping[str, Spread], begins: Mapping[str, Spread]) -> list[Claim]:
    """What the paper says about training on the system, from combinations of stages."""
    return [
        claim(
            "Training on the system alone is worse than after the other stages (greedy)",
            [
                Inequality(name, greedy[name], greedy["III"])
                for name in ("I+II+III", "I+III", "II+III")
            ],
        ),
        claim(
            "Stage III begins lower after Stages I and II than without them",
            [Inequality("first runs", begins["I+II+III"], begins["III"])],
        ),
    ]


def _ends(results: Results, runs: dict[str, list[PaperJob]], name: str) -> tuple[object, ...]:
    """The first and the last runs of Stage III, if a combination has it, and its seeds."""
    jobs = runs[name]
    if not name.endswith(SHORT["real"]):
        return "–", "–", len(jobs)
    return _first(results, jobs), _last(results, jobs), len(jobs)


def _first(results: Results, jobs: list[PaperJob]) -> Spread:
    """Means of the first tenth of Stage III's runs."""
    return _part(results, jobs, slice(None, 10))


def _last(results: Results, jobs: list[PaperJob]) -> Spread:
    return _part(results, jobs, slice(-10, None))


def _part(results: Results, jobs: list[PaperJob], part: slice) -> Spread:
    curves = [r["curve"][part] for r in results.all(jobs) if r["curve"]]
    return spread(float(np.mean([p[2] for p in curve])) for curve in curves)


class SimVersusReal:
    """App. G.1: the simulator against the system."""

    graphs = ("chainmm", "llama-block")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        graphs = () if settings.is_simulated else self.graphs
        self.runs = {g: RealJobs.of(settings).validated(g) for g in graphs}

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figure."""
        return list(self.runs.values())

    def find(self, results: Results) -> Found:
        """Correlations over diverse assignments, and over those of Stage I."""
        text = "The simulator follows the system: Pearson 0.79, Spearman 0.69 on ChainMM, Stage I"
        if self.settings.is_simulated:
            reason = "there is no system beside the simulator; run it with --executor cpu or cuda"
            return [], [cannot_test(text, reason)], []
        rows, charts, claims = [], [], []
        for g, job in self.runs.items():
            found, panel = results[job]["validation"], np.array(results[job]["panel"]["rows"])
            rows.append(
                (
                    g,
                    "diverse",
                    f"{found['pearson']:.3f}",
                    f"{found['spearman']:.3f}",
                    f"{found['mape']:.1%}",
                    len(found["measured_ms"]),
                )
            )
            error = np.abs(panel[:, 1] / panel[:, 2] - 1).mean()
            rows.append((g, "Stage I", *_correlations(panel), f"{error:.1%}", len(panel)))
            points = {g: [found["measured_ms"], found["predicted_ms"]]}
            charts.append(
                LineChart(
                    f"{g}: diverse assignments", "measured ms", "simulated ms", points, points=True
                )
            )
            lines = {
                "simulated": [panel[:, 0].tolist(), panel[:, 1].tolist()],
                "measured": [panel[:, 0].tolist(), panel[:, 2].tolist()],
            }
            charts.append(LineChart(f"{g}: during Stage I", "episodes", "ms", lines))
            claims.append(
                check(
                    f"{text}: diverse assignments of {g}",
                    found["pearson"] >= 0.79 and found["spearman"] >= 0.69,
                    f"Pearson {found['pearson']:.3f}, Spearman {found['spearman']:.3f}",
                )
            )
        heads = ("graph", "assignments", "Pearson", "Spearman", "mean error", "number")
        return [plain("Simulated against measured", heads, rows)], claims, charts


def _correlations(panel: np.ndarray) -> tuple[str, str]:
    from scipy.stats import pearsonr, spearmanr

    if np.ptp(panel[:, 1]) == 0 or np.ptp(panel[:, 2]) == 0:
        return "–", "–"
    return (
        f"{pearsonr(panel[:, 1], panel[:, 2])[0]:.3f}",
        f"{spearmanr(panel[:, 1], panel[:, 2])[0]:.3f}",
    )
