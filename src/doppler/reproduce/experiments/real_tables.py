"""Tables of a real machine: `placement` (Table 2) and `stages` (Sec. 6, Q3).

Where jobs were left undone, for want of time, a table has the rows and columns that are there.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from doppler.reproduce.budgets import Budgets, Settings
from doppler.reproduce.experiments.makespans import Found, compare
from doppler.reproduce.experiments.real_jobs import GUARDED, PLAIN, RealJobs, Row
from doppler.reproduce.experiments.systems import stage_claims
from doppler.reproduce.findings import (
    Claim,
    FigureTable,
    Inequality,
    LineChart,
    Spread,
    claim,
    spread,
)
from doppler.reproduce.job_rows import plain
from doppler.reproduce.jobs import PaperJob, Result, Results
from doppler.reproduce.paper_figures import FOUR
from doppler.scheduler.choose import MODES

PLACERS = ("single", "critical-path", "critical-path:blind", "enumerative", "auto")
RIVALS = ("placeto", "gdp")
OWN = {"greedy": "doppler, greedy", "samples": "doppler, best of samples", "best": "doppler-sim"}
SYS = "doppler-sys"
STAGES = ("imitation", "sim", "real")
SHORT = {"imitation": "I", "sim": "II", "real": "III"}
LAYER = "llama-layer"
Cells = dict[str, dict[str, Spread]]  # by row and graph


class RealPlacement:
    """Table 2 on a real machine, in both modes of the engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.columns = {g: _Column(RealJobs.of(settings), g) for g in FOUR}
        self.budget = budget_text(settings.budgets, FOUR)

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return [job for column in self.columns.values() for job in column.measured.values()]

    def find(self, results: Results) -> Found:
        """Measured ms of every method; learned ones over seeds."""
        tables: list[FigureTable] = []
        claims: list[Claim] = []
        for mode in MODES:
            cells = self._cells(results, mode)
            graphs = [g for g in FOUR if any(g in row for row in cells.values())]
            if not graphs:
                continue
            where = f"`{self.settings.executor}`, mode `{mode}`"
            rows = [
                (name, *(str(row.get(g, "–")) for g in graphs), _against(row, cells["enumerative"]))
                for name, row in cells.items()
            ]
            heads = ("method", *graphs, "against EnumOpt")
            tables.append(plain(f"Measured ms on {where}", heads, rows))
            claims += [
                claim(
                    f"DOPPLER-SYS is below {other} on every graph, mode `{mode}`",
                    compare(cells[SYS], cells[other], graphs),
                )
                for other in ("critical-path", *RIVALS, "enumerative", OWN["best"])
            ]
        tables += self._origins(results)
        return tables, claims, []

    def _cells(self, results: Results, mode: str) -> Cells:
        names = (*PLACERS, *RIVALS, *OWN.values(), SYS)
        cells: Cells = {name: {} for name in names}
        for graph, column in self.columns.items():
            found = results.get(column.measured[mode]) or {"ms": {}}
            for name in names:
                if (cell := _over_seeds(found["ms"], name)).count:
                    cells[name][graph] = cell
        return cells

    def _origins(self, results: Results) -> list[FigureTable]:
        """What training and executions rows took, and how well the machine is known."""
        rows = []
        for graph, column in self.columns.items():
            probed = results.get(column.probed)
            if probed is None:
                continue
            off = probed["makespans_off"].get("after", float("nan"))
            cells = [graph, probed["vertices"], f"{probed['seconds']:.0f}", f"{off:.1%}"]
            for method in ("doppler", *RIVALS):
                cells.append(_mean(results, column.trained[method], "episodes"))
            cells.append(_mean(results, column.refined, "executions"))
            rows.append(cells)
        if not rows:
            return []
        heads = ["graph", "vertices", "probe, s", "predictions off by"]
        heads += [f"episodes of {method}" for method in ("doppler", *RIVALS)]
        return [plain("What the rows took", [*heads, "executions of Stage III"], rows)]


class _Column:
    """The jobs of one graph."""

    def __init__(self, jobs: RealJobs, graph: str) -> None:
        seeds = range(jobs.budgets.seeds)
        self.probed = jobs.probed(graph)
        self.trained = {
            method: [jobs.trained(graph, method, seed=seed) for seed in seeds]
            for method in ("doppler", *RIVALS)
        }
        self.refined = [
            jobs.refined(graph, self.trained["doppler"][seed], seed=seed, form=GUARDED)
            for seed in seeds
        ]
        rows: list[Row] = [(name, jobs.placed(graph, name), "best") for name in PLACERS]
        for seed in seeds:
            own = self.trained["doppler"][seed]
            rows += [(f"{name}/{seed}", own, field) for field, name in OWN.items()]
            rows += [(f"{m}/{seed}", self.trained[m][seed], "best") for m in RIVALS]
            rows.append((f"{SYS}/{seed}", self.refined[seed], "best"))
        self.measured = {mode: jobs.measured(graph, rows, mode=mode) for mode in MODES}


class RealStages:
    """Sec. 6, Q3: combinations of the three stages on Llama-layer, Stage III on the engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, RealJobs.of(settings)
        self.runs = {
            "+".join(SHORT[s] for s in stages): [
                self._job(jobs, stages, seed) for seed in range(settings.budgets.seeds)
            ]
            for n in (1, 2, 3)
            for stages in combinations(STAGES, n)
        }
        rows: list[Row] = [
            (f"{name}, {field}/{seed}", job, field)
            for name, some in self.runs.items()
            for seed, job in enumerate(some)
            for field in ("greedy", "best")
        ]
        self.measured = jobs.measured(LAYER, rows)
        self.budget = budget_text(settings.budgets, (LAYER,))

    def _job(self, jobs: RealJobs, stages: Sequence[str], seed: int) -> PaperJob:
        before = [stage for stage in stages if stage != "real"]
        usual = before == ["imitation", "sim"]  # shared with Table 2
        start = None
        if before:
            start = jobs.trained(LAYER, seed=seed, stages=() if usual else before)
        if "real" not in stages:
            assert start is not None
            return start
        return jobs.refined(LAYER, start, seed=seed, form=PLAIN)

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figure."""
        return [self.measured]

    def find(self, results: Results) -> Found:
        """What each combination ends with, and how Stage III goes."""
        found = results.get(self.measured)
        ms: dict[str, list[float]] = found["ms"] if found else {}
        greedy = {name: _over_seeds(ms, f"{name}, greedy") for name in self.runs}
        best = {name: _over_seeds(ms, f"{name}, best") for name in self.runs}
        curves = {name: _curves(results, jobs) for name, jobs in self.runs.items()}
        begins = {n: spread(curve[0][1] for curve in some) for n, some in curves.items()}
        ends = {n: spread(curve[-1][1] for curve in some) for n, some in curves.items()}
        claims = _claims(greedy, best, begins)
        rows = [
            (
                *(name, greedy[name], best[name], begins[name], ends[name]),
                _mean(results, jobs, "executions"),
                len([job for job in jobs if results.get(job)]),
            )
            for name, jobs in self.runs.items()
        ]
        if not any(row[-1] for row in rows):
            return [], claims, []
        heads = ("stages", "greedy, ms", "best of the run", "first runs of III", "last runs")
        title = f"Llama-layer, measured on `{self.settings.executor}`"
        tables = [plain(title, (*heads, "executions", "seeds"), rows)]
        if any(curves.values()):
            tables.append(_curve_table(curves))
        lines = {
            name: [list(map(float, x)) for x in zip(*some[0], strict=True)]
            for name, some in curves.items()
            if some
        }
        charts = [LineChart("Stage III, seed 0", "executions", "ms", lines)] if lines else []
        return tables, claims, charts


def _claims(
    greedy: Mapping[str, Spread], best: Mapping[str, Spread], begins: Mapping[str, Spread]
) -> list[Claim]:
    """What the paper says about the stages."""
    return [
        *stage_claims(greedy, begins),
        claim(
            "Stage III improves on Stages I and II",
            [
                Inequality("greedy", greedy["I+II+III"], greedy["I+II"]),
                Inequality("best of the run", best["I+II+III"], best["I+II"]),
            ],
        ),
    ]


def _curves(results: Results, jobs: Iterable[PaperJob]) -> list[list[list[float]]]:
    """Episodes of Stage III and mean ms of updates, of each seed that has them."""
    found = [results.get(job) for job in jobs]
    return [r["curve"] for r in found if r and r.get("curve")]


def _curve_table(curves: Mapping[str, list[list[list[float]]]]) -> FigureTable:
    """Mean ms of the executions of each update, over seeds."""
    points = sorted({int(x) for some in curves.values() for curve in some for x, _ in curve})
    step = max(-(-len(points) // 10), 1)
    kept = points[step - 1 :: step]
    rows = [
        (
            name,
            *(spread(y for curve in some for x, y in curve if x == point) for point in kept),
        )
        for name, some in curves.items()
        if some
    ]
    return plain(
        "Stage III: mean ms of an update, by the number of executions until then",
        ("stages", *map(str, kept)),
        rows,
    )


def _over_seeds(rows: Mapping[str, list[float]], name: str) -> Spread:
    """Of a row: over its runs, or over the means of its seeds."""
    if name in rows:
        return spread(rows[name])
    return spread(float(np.mean(ms)) for key, ms in rows.items() if key.startswith(f"{name}/"))


def _against(row: Mapping[str, Spread], other: Mapping[str, Spread]) -> str:
    """The mean ratio of two rows, over graphs that both have."""
    ratios = [row[g].mean / other[g].mean for g in row if g in other]
    return f"{100 * (np.exp(np.mean(np.log(ratios))) - 1):+.1f} %" if ratios else "–"


def _mean(results: Results, jobs: Iterable[PaperJob], field: str) -> str:
    found: list[Result | None] = [results.get(job) for job in jobs]
    values = [r[field] for r in found if r and field in r]
    return f"{np.mean(values):,.0f}" if values else "–"


def budget_text(budgets: Budgets, graphs: Iterable[str]) -> str:
    """What training has, in words."""
    recipe = f"preset `{budgets.recipe}`" + (
        " without an expert" if budgets.recipe == "default" else ""
    )
    each = {
        g: f"{budgets.train_s[g]:.0f} s" if g in budgets.train_s else f"{budgets.episodes[g]:,}"
        for g in graphs
    }
    counts = ", ".join(f"{g} {text}" for g, text in each.items())
    unit = "training" if budgets.train_s else "episodes of Stage II"
    real = f"{budgets.real:,} executions"
    if budgets.real_s is not None:
        real += f" or {budgets.real_s:.0f} s"
    return (
        f"Budget `{budgets.name}`: {recipe}, {unit}: {counts}; of Stage I {budgets.imitation:,} "
        f"episodes; Stage III has {real}; {budgets.seeds} seeds."
    )
