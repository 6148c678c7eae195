"""Transfer between graphs (`transfer`, Table 4) and between machines (`machines`, App. J)."""

import numpy as np

from doppler.problem import Problem
from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import Found
from doppler.reproduce.findings import (
    FigureTable,
    Inequality,
    Spread,
    check,
    claim,
    spread,
)
from doppler.reproduce.job_rows import JobMaker, cell, of_placed, of_run, plain
from doppler.reproduce.jobs import PaperJob, Results
from doppler.reproduce.paper_figures import TO, paper
from doppler.reproduce.placements import problem_of

PAIRS = tuple(
    (source, target) for target in ("llama-block", "llama-layer") for source in ("ffnn", "chainmm")
)
MOVED = ("chainmm", "ffnn")
READS = ("device", "group", "across")


def of_samples(results: Results, jobs: list[PaperJob]) -> Spread:
    """The best of plain samples, over seeds."""
    return spread(r["samples_ms"] for r in results.all(jobs))


class Transfer:
    """Table 4."""

    def __init__(self, settings: Settings) -> None:
        self.settings, b, jobs = settings, settings.budgets, JobMaker(settings.budgets)
        sources = {g: jobs.seeds(g) for g in MOVED}
        self.zero = {(s, t): [jobs.judged(t, job) for job in sources[s]] for s, t in PAIRS}
        self.shots = {
            (s, t, n): [
                jobs.trained(t, seed=i, episodes=n, start=job) for i, job in enumerate(sources[s])
            ]
            for s, t in PAIRS
            for n in b.shots
        }
        targets = ("llama-block", "llama-layer")
        self.full = {t: jobs.seeds(t) for t in targets}
        self.nothing = {t: jobs.untrained(t) for t in targets}
        self.enumerative = {t: jobs.placed_by(t, "enumerative") for t in targets}

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        rows = (self.zero, self.shots, self.full, self.nothing, self.enumerative)
        return [job for row in rows for jobs in row.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Ours beside the paper's, and claims."""
        theirs, b = paper("transfer"), self.settings.budgets
        named = dict(zip(b.shots, ("2k-shot", "4k-shot"), strict=True))
        rows, near = [], []
        for s, t in PAIRS:
            column = f"{s}{TO}{t}"
            zero = of_samples(results, self.zero[s, t])
            cells = [*cell(zero, theirs["zero-shot"][column])]
            for n, key in named.items():
                cells += cell(of_run(results, self.shots[s, t, n]), theirs[key][column])
            full, nothing = of_run(results, self.full[t]), of_samples(results, self.nothing[t])
            rows.append((column, *cells, full, nothing))
            tuned = of_run(results, self.shots[s, t, b.shots[-1]])
            near.append(Inequality(column, tuned, Spread(full.mean * 1.10, full.std)))
        first, last = b.shots[0], b.shots[-1]
        claims = [
            claim(
                "Zero-shot, a policy of another graph is below one that has learned nothing "
                "(the paper does not compare with that)",
                [
                    Inequality(
                        f"{s}{TO}{t}",
                        of_samples(results, self.zero[s, t]),
                        of_samples(results, self.nothing[t]),
                    )
                    for s, t in PAIRS
                ],
            ),
            claim(
                f"{first:,} episodes on the target (the paper: 2,000) improve on zero-shot",
                [
                    Inequality(
                        f"{s}{TO}{t}",
                        of_run(results, self.shots[s, t, first]),
                        of_samples(results, self.zero[s, t]),
                    )
                    for s, t in PAIRS
                ],
            ),
            claim(f"{last:,} episodes (the paper: 4,000) come within 10 % of full training", near),
            claim(
                f"After {last:,} episodes it is below EnumOpt (in the paper on 3 of 4)",
                [
                    Inequality(
                        f"{s}{TO}{t}",
                        of_run(results, self.shots[s, t, last]),
                        of_placed(results, self.enumerative[t]),
                    )
                    for s, t in PAIRS
                ],
                least=3,
            ),
        ]
        heads = ["from, to", "zero-shot", "*paper*", "ratio"]
        heads += [h for n in b.shots for h in (f"{n:,} episodes", "*paper*", "ratio")]
        heads += ["full training", "untrained"]
        title = f"ms: best of {b.samples} samples zero-shot, best of the run after episodes"
        return [plain(title, heads, rows)], claims, []


class MachineTransfer:
    """App. J: from four P100 to eight V100."""

    def __init__(self, settings: Settings) -> None:
        self.settings, b = settings, settings.budgets
        here, there = JobMaker(b), JobMaker(b, "v100x8")
        sources = {g: here.seeds(g) for g in MOVED}
        self.zero = {g: [there.judged(g, job) for job in sources[g]] for g in MOVED}
        self.tuned = {
            g: [
                there.trained(g, seed=i, episodes=b.machine_shots, start=job)
                for i, job in enumerate(sources[g])
            ]
            for g in MOVED
        }
        self.full = {g: there.seeds(g) for g in MOVED}

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        rows = (self.zero, self.tuned, self.full)
        return [job for row in rows for jobs in row.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Makespans and where reads come from, beside the paper's."""
        theirs, shots = paper("machines"), self.settings.budgets.machine_shots
        zero = {g: of_samples(results, self.zero[g]) for g in MOVED}
        tuned = {g: of_run(results, self.tuned[g]) for g in MOVED}
        full = {g: of_run(results, self.full[g]) for g in MOVED}
        rows = [
            (
                g,
                *cell(zero[g], theirs["zero-shot"][g]),
                *cell(tuned[g], theirs["2k-shot"][g]),
                full[g],
            )
            for g in MOVED
        ]
        heads = ["graph", "zero-shot", "*paper*", "ratio", f"{shots:,} episodes", "*paper*"]
        heads += ["ratio", "trained on v100x8"]
        kept = {
            "zero-shot": self._reads(results, self.zero["ffnn"], "greedy"),
            f"{shots:,} episodes": self._reads(results, self.tuned["ffnn"], "run"),
        }
        before, after = (values["device"] for values in kept.values())
        claims = [
            claim(
                f"{shots:,} episodes on the new machine (the paper: 2,000) improve on zero-shot",
                [Inequality(g, tuned[g], zero[g]) for g in MOVED],
            ),
            claim(
                "After them it is below training on the new machine alone",
                [Inequality(g, tuned[g], full[g]) for g in MOVED],
            ),
            check(
                "Tuning moves reads of FFNN into devices (the paper: 82.7 to 94.7 %)",
                after.mean - before.mean > max(after.std, before.std, 0.01),
                f"{100 * before.mean:.1f} % before, {100 * after.mean:.1f} % after",
            ),
        ]
        return [plain("ms", heads, rows), self._read_table(kept)], claims, []

    def _read_table(self, kept: dict[str, dict[str, Spread]]) -> FigureTable:
        rows = []
        for name, values in kept.items():
            theirs = paper("reads")["zero-shot" if name == "zero-shot" else "2k-shot"]
            cells = [c for key in READS for c in (_share(values[key]), f"{theirs[key].mean:.1%}")]
            rows.append((name, *cells))
        heads = ["reads of FFNN"]
        heads += [
            h for key in READS for h in (f"same {key}" if key != "across" else key, "*paper*")
        ]
        return plain("Where reads come from", heads, rows)

    def _reads(self, results: Results, jobs: list[PaperJob], figure: str) -> dict[str, Spread]:
        problem = problem_of("v100x8", "ffnn")
        found = [reads(problem, r[figure]["devices"]) for r in results.all(jobs)]
        return {key: spread(one[key] for one in found) for key in READS}


def _share(value: Spread) -> str:
    return f"{100 * value.mean:.1f} ± {100 * value.std:.1f} %"


def reads(problem: Problem, devices: list[int]) -> dict[str, float]:
    """The shares of reads within a device, within a group of devices and across groups."""
    graph, at = problem.graph, np.array(devices)
    producer = graph.tensor_producer[graph.edge_tensor]
    kept = ~graph.is_input[producer]
    a, b = at[producer[kept]], at[graph.edge_reader[kept]]
    groups = np.array([device.group for device in problem.topology.devices])
    same, near = a == b, groups[a] == groups[b]
    shares = {"device": same, "group": near & ~same, "across": ~near}
    return {key: float(value.mean()) for key, value in shares.items()}
