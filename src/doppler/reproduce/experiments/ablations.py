"""Ablations: `ablation` (Table 3), `seeds`, `messages` and `placeto-pretrain` (App. G.2 to G.4)."""

from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import Found, Rows, compare
from doppler.reproduce.findings import Spread, cannot_test, check, claim, spread
from doppler.reproduce.job_rows import (
    JobMaker,
    beside,
    of_greedy,
    of_run,
    plain,
    protocol_table,
)
from doppler.reproduce.jobs import PaperJob, Results
from doppler.reproduce.paper_figures import FOUR, paper

NEGLIGIBLE = 0.01  # share of a makespan
PARTS = {"both": "", "only-sel": "only-sel", "only-plc": "only-plc"}  # rows and variants


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
                compare(values["both"], values[row], FOUR[1:]),
            )
            for values, row in ((best, "only-sel"), (best, "only-plc"))
        ]
        claims += [
            claim(
                f"The same of greedy assignments, against {row}",
                compare(greedy["both"], greedy[row], FOUR[1:]),
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
                compare(best["placeto-pretrain"], best["placeto"]),
            ),
            claim(
                "DOPPLER is below Placeto with Stage I",
                compare(best["doppler"], best["placeto-pretrain"]),
            ),
        ]
        tables = [beside("FFNN, best of the run, ms", ("ffnn",), rows)]
        tables.append(protocol_table(results, self.settings.budgets, list(self.learned.items())))
        return tables, claims, []
