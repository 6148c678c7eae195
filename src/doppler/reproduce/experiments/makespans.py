"""Tables of makespans: `placement`, `ablation`, `memory-8gb`, `eight-gpus`, and App. G.2 to G.4."""

from collections.abc import Sequence

from doppler.reproduce.budgets import Settings
from doppler.reproduce.findings import (
    Chart,
    Claim,
    FigureTable,
    Inequality,
    Spread,
    cannot_test,
    check,
    claim,
    spread,
)
from doppler.reproduce.job_rows import (
    JobMaker,
    beside,
    noisy,
    of_greedy,
    of_placed,
    of_run,
    plain,
    protocol_table,
)
from doppler.reproduce.jobs import PaperJob, Results
from doppler.reproduce.paper_figures import FOUR, ONE_GPU, Figure, paper
from doppler.reproduce.placements import ON_ONE

HEURISTICS = ("critical-path", "critical-path:blind", "enumerative")
RIVALS = ("placeto", "gdp")
MORE_RIVALS = ("seq2seq",)  # not in the paper
NEGLIGIBLE = 0.01  # share of a makespan
PARTS = {"both": "", "only-sel": "only-sel", "only-plc": "only-plc"}  # rows and variants
Rows = dict[str, dict[str, list[PaperJob]]]  # by row and graph
Found = tuple[Sequence[FigureTable], Sequence[Claim], Sequence[Chart]]


def _compare(
    less: dict[str, Spread], more: dict[str, Spread], graphs: Sequence[str] = FOUR
) -> list[Inequality]:
    return [Inequality(g, less[g], more[g]) for g in graphs if g in less and g in more]


class PlacementTable:
    """Rows of placers and learned methods on one machine, and claims about them."""

    def __init__(
        self,
        settings: Settings,
        machine: str,
        table: str,
        *,
        placers: Sequence[str],
        rivals: Sequence[str] = (),
        variants: bool = False,
    ) -> None:
        self.settings, self.table = settings, table
        jobs = JobMaker(settings.budgets, machine)
        self.placed: Rows = {p: {g: jobs.placed_by(g, p) for g in FOUR} for p in placers}
        self.learned: Rows = {
            method: {g: jobs.seeds(g, method) for g in FOUR} for method in ("doppler", *rivals)
        }
        self.extra: Rows = {}
        if variants:
            self.extra = {
                "doppler, preset `default`": {g: jobs.seeds(g, preset="default") for g in FOUR},
                "doppler, `default` without expert": {
                    g: jobs.seeds(g, preset="default", variant="no-expert") for g in FOUR
                },
                "doppler, `default` with the paper's features": {
                    g: jobs.seeds(g, preset="default", variant="paper-features") for g in FOUR
                },
            }
            self.nothing = {g: jobs.untrained(g) for g in FOUR}

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        rows = [self.placed, self.learned, self.extra]
        found = [
            job for some in rows for row in some.values() for jobs in row.values() for job in jobs
        ]
        if self.extra:
            found += [job for jobs in self.nothing.values() for job in jobs]
        return found

    def best(self, results: Results, row: str) -> dict[str, Spread]:
        """A row: makespans of a placer, or the best of the run of a learned method."""
        if row in self.placed:
            return {g: of_placed(results, jobs) for g, jobs in self.placed[row].items()}
        return {g: of_run(results, jobs) for g, jobs in {**self.learned, **self.extra}[row].items()}

    def tables(self, results: Results) -> list[FigureTable]:
        """Ours beside the paper's; with noise; and the protocol of each graph."""
        theirs: dict[str, dict[str, Figure]] = paper(self.table)
        named = {"doppler": theirs.get("doppler-sim", theirs.get("doppler-sys", {}))}
        rows = []
        for row in (*self.placed, *self.learned, *self.extra):
            ours = self.best(results, row)
            label = row if row in self.placed else f"{row}, best of the run"
            figures = named.get(row, theirs.get(row, theirs.get(row.partition(":")[0], {})))
            rows.append((label, [ours[g] for g in FOUR], figures))
        found = [beside("Makespans without noise, ms", FOUR, rows)]
        every = {**self.placed, **self.learned}
        cells = [(row, *(noisy(results, every[row][g]) for g in FOUR)) for row in every]
        sigma = self.settings.budgets.noise
        found.append(
            plain(f"The same in runs with {sigma:.0%} of noise, ms", ("method", *FOUR), cells)
        )
        for g in FOUR:
            learned = [(name, jobs[g]) for name, jobs in {**self.learned, **self.extra}.items()]
            made = protocol_table(results, self.settings.budgets, learned)
            found.append(FigureTable(f"`{g}`. {made.title}", made.heads, made.rows))
        if self.extra:
            cells = [
                (
                    g,
                    spread(r["greedy"]["ms"] for r in found_),
                    spread(r["placer_ms"] for r in found_),
                )
                for g, found_ in ((g, results.all(jobs)) for g, jobs in self.nothing.items())
            ]
            heads = ("graph", "greedy", "in placer `doppler`")
            found.append(plain("A policy that has learned nothing, ms", heads, cells))
        return found


class Placement(PlacementTable):
    """Table 2."""

    def __init__(self, settings: Settings) -> None:
        placers = (*HEURISTICS, "auto")
        super().__init__(
            settings,
            "p100x4",
            "placement",
            placers=placers,
            rivals=(*RIVALS, *MORE_RIVALS),
            variants=True,
        )

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        doppler = self.best(results, "doppler")
        claims = [
            claim(
                f"DOPPLER is below {row} on every graph",
                _compare(doppler, self.best(results, row)),
            )
            for row in ("critical-path", "critical-path:blind", *RIVALS, "enumerative")
        ]
        claims.append(
            claim(
                "DOPPLER is 5.6 to 13.8 % below EnumOpt: in the best of our runs, preset `default`",
                _compare(
                    self.best(results, "doppler, preset `default`"),
                    self.best(results, "enumerative"),
                ),
            )
        )
        claims.append(
            cannot_test(
                "Stage III improves on Stages I and II (SYS against SIM) on 3 of 4 graphs",
                "in the simulator the system and its model are the same; see `stages`",
            )
        )
        search = _compare(self.best(results, "auto"), doppler)
        claims.append(
            check(
                "(not in the paper) on a known graph, learning ends below search",
                not any(c.holds for c in search),
                "`auto` against the best of the run: " + "; ".join(map(str, search)),
            )
        )
        return self.tables(results), claims, []


class MemoryEightGb(PlacementTable):
    """App. H.1."""

    def __init__(self, settings: Settings) -> None:
        placers = (ON_ONE, "critical-path", "enumerative", "auto")
        super().__init__(settings, "p100x4-8gb", "memory-8gb", placers=placers, rivals=("placeto",))

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        doppler = self.best(results, "doppler")
        claims = [
            claim(f"DOPPLER is below {row} with 8 GB", _compare(doppler, self.best(results, row)))
            for row in (ONE_GPU, "critical-path", "placeto", "enumerative")
        ]
        return self.tables(results), claims, []


class EightGpus(PlacementTable):
    """App. H.2."""

    def __init__(self, settings: Settings) -> None:
        placers = (ON_ONE, "critical-path", "enumerative", "auto")
        super().__init__(settings, "v100x8", "eight-gpus", placers=placers)

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        doppler = self.best(results, "doppler")
        claims = [
            claim(
                "DOPPLER is below the critical path",
                _compare(doppler, self.best(results, "critical-path")),
            ),
            claim(
                "DOPPLER is below EnumOpt on 3 of 4 graphs",
                _compare(doppler, self.best(results, "enumerative")),
                least=3,
            ),
            claim(
                "All of eight GPUs are below one, but for Llama-layer",
                _compare(doppler, self.best(results, ONE_GPU)),
                least=3,
            ),
        ]
        return self.tables(results), claims, []


class Ablation:
    """Table 3: SEL or PLC replaced by the critical path."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        jobs = JobMaker(settings.budgets)
        self.learned: Rows = {
            row: {g: jobs.seeds(g, variant=variant) for g in FOUR} for row, variant in PARTS.items()
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return [job for row in self.learned.values() for jobs in row.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        best = {
            row: {g: of_run(results, jobs) for g, jobs in by_graph.items()}
            for row, by_graph in self.learned.items()
        }
        greedy = {
            row: {g: of_greedy(results, jobs) for g, jobs in by_graph.items()}
            for row, by_graph in self.learned.items()
        }
        rows = [(row, [best[row][g] for g in FOUR], paper("ablation")[row]) for row in best]
        more = [(row, *(greedy[row][g] for g in FOUR)) for row in greedy]
        claims = [
            claim(
                f"Both policies are below {row}, but for ChainMM",
                _compare(values["both"], values[row], FOUR[1:]),
            )
            for values, row in ((best, "only-sel"), (best, "only-plc"))
        ]
        claims += [
            claim(
                f"The same of greedy assignments, against {row}",
                _compare(greedy["both"], greedy[row], FOUR[1:]),
            )
            for row in ("only-sel", "only-plc")
        ]
        tables = [
            beside("Best of the run, ms", FOUR, rows),
            plain("Greedy, ms", ("method", *FOUR), more),
        ]
        return tables, claims, []


class Seeds:
    """App. G.2: one training with several seeds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        b = settings.budgets
        self.budget = (
            f"Budget `{b.name}`: preset `paper`, {b.episodes['chainmm']:,} episodes of Stage II "
            f"after {b.imitation:,} of Stage I; {b.more_seeds} seeds."
        )
        self.learned = JobMaker(b).seeds("chainmm", count=b.more_seeds)

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return list(self.learned)

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        theirs = [figures["chainmm"] for figures in paper("seeds").values()]
        their = spread(figure.mean for figure in theirs)
        ours = of_run(results, self.learned)
        rows = []
        for i, result in enumerate(results.all(self.learned)):
            told = str(theirs[i].mean) if i < len(theirs) else ""
            greedy = Spread(result["greedy"]["ms"])
            rows.append(
                (i, Spread(result["run"]["ms"]), spread(result["run"]["noisy_ms"]), greedy, told)
            )
        limit = their.std / their.mean
        share = ours.std / ours.mean
        claims = [
            check(
                "The best assignment is consistent over seeds: the paper's five differ by "
                f"{100 * limit:.1f} % (standard deviation over mean)",
                share <= limit,
                f"ours by {100 * share:.1f} %: {ours} against {their}",
            )
        ]
        heads = ("seed", "best of the run, ms", "with noise", "greedy", "*paper*")
        return [plain("ChainMM, five trainings", heads, rows)], claims, []


class Messages:
    """App. G.3: message passing per episode or per step."""

    def __init__(self, settings: Settings) -> None:
        b = settings.budgets
        self.settings, jobs = settings, JobMaker(b)
        self.budget = (
            f"Budget `{b.name}`: preset `default` without expert, {b.step_episodes:,} episodes of "
            f"Stage II (batches of 32) after {b.imitation:,} of Stage I; {b.seeds} seeds."
        )
        self.learned = {
            how: jobs.seeds("chainmm", preset="default", variant=how, episodes=b.step_episodes)
            for how in ("per-episode", "per-step")
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return [job for jobs in self.learned.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        rows, seconds = [], {}
        best = {how: of_run(results, jobs) for how, jobs in self.learned.items()}
        for how, jobs in self.learned.items():
            found = results.all(jobs)
            seconds[how] = spread(r["seconds"] for r in found)
            at = spread(float(r["episodes_to_best"]) for r in found)
            theirs = paper("messages")
            told = theirs[how]["chainmm"].mean, theirs["episodes-to-best"][how].mean
            rows.append((how, best[how], of_greedy(results, jobs), at, seconds[how], *told))
        gap = best["per-step"].mean / best["per-episode"].mean - 1
        ratio = seconds["per-step"].mean / seconds["per-episode"].mean
        text = (
            f"Passing messages once per episode changes the best assignment by less than "
            f"{NEGLIGIBLE:.0%} (the paper's differ by 0.7 %)"
        )
        reason = f"{best['per-step']} per step against {best['per-episode']} ({100 * gap:+.1f} %)"
        chance = max(one.std / one.mean for one in best.values())
        claims = [
            check(text, abs(gap) < NEGLIGIBLE, reason)
            if chance < NEGLIGIBLE
            else cannot_test(text, f"seeds differ by more than that: {reason}"),
            check(
                "It takes far less time",
                ratio > 2,
                f"per step takes {ratio:.0f} times as long for the same number of episodes",
            ),
        ]
        heads = ["messages", "best of the run, ms", "greedy", "episodes to best", "CPU s"]
        heads += ["*paper*", "*paper's episodes to best*"]
        return [plain("ChainMM, REINFORCE without expert", heads, rows)], claims, []


class PlacetoPretrain:
    """App. G.4: Placeto after Stage I."""

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, JobMaker(settings.budgets)
        methods = ("placeto", "placeto-pretrain", "doppler")
        self.learned = {method: jobs.seeds("ffnn", method) for method in methods}

    def jobs(self) -> list[PaperJob]:
        """All jobs of the table."""
        return [job for jobs in self.learned.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Tables and claims."""
        best = {method: {"ffnn": of_run(results, jobs)} for method, jobs in self.learned.items()}
        theirs = paper("placeto-pretrain")
        named = {"doppler": "doppler-sim"}
        rows = [(m, [best[m]["ffnn"]], theirs[named.get(m, m)]) for m in best]
        claims = [
            claim(
                "Placeto with Stage I is below Placeto without",
                _compare(best["placeto-pretrain"], best["placeto"]),
            ),
            claim(
                "DOPPLER is below Placeto with Stage I",
                _compare(best["doppler"], best["placeto-pretrain"]),
            ),
        ]
        tables = [beside("FFNN, best of the run, ms", ("ffnn",), rows)]
        tables.append(protocol_table(results, self.settings.budgets, list(self.learned.items())))
        return tables, claims, []
