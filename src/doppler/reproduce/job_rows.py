"""The jobs behind the rows of a table, and their cells."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from doppler.reproduce.budgets import Budgets
from doppler.reproduce.findings import FigureTable, Spread, spread
from doppler.reproduce.jobs import PaperJob, Result, Results
from doppler.reproduce.paper_figures import Figure

# CPU seconds of one episode in preset `paper` on ChainMM, and of others as multiples of that.
EPISODE_S = 0.012
METHOD_COST = {"doppler": 1.0, "placeto": 1.2, "placeto-pretrain": 1.2, "gdp": 1.0, "seq2seq": 0.8}
GRAPH_COST = {"chainmm": 1.0, "ffnn": 1.6, "llama-block": 1.6, "llama-layer": 2.0}
PLACETO_GROWTH = 1.5  # it passes messages at every step: more on larger graphs
BATCHED = 0.2  # an episode of preset `default`, which has batches
STEP_COST = 140.0  # message passing at every step, in batches
REAL, SIMULATED = "real", ("imitation", "sim")  # stages
REAL_COST = 2  # a run that is measured, in episodes of Stage II
SEARCHING = ("auto", "annealing", "genetic", "local-search")


@dataclass(frozen=True, slots=True)
class JobMaker:
    """Makes the jobs of one machine, with the budgets of a reproduction."""

    budgets: Budgets
    machine: str = "p100x4"

    @property
    def common(self) -> Result:
        """The parameters of every job."""
        b = self.budgets
        return {"machine": self.machine, "draws": b.draws, "noise": b.noise, "samples": b.samples}

    def placed(self, graph: str, placer: str, seed: int = 0) -> PaperJob:
        """What a placer makes of a graph."""
        search_s = self.budgets.search_s
        parameters = {"graph": graph, "placer": placer, "seed": seed, "search_s": search_s}
        cost = search_s + 1.0 if placer in SEARCHING else 1.0
        return PaperJob("place", self.common | parameters, cost)

    def placed_by(self, graph: str, placer: str) -> list[PaperJob]:
        """The same, with all seeds where the placer is random enough to need them."""
        seeds = self.budgets.seeds if placer in SEARCHING else 1
        return [self.placed(graph, placer, seed) for seed in range(seeds)]

    def parameters(
        self, graph: str, method: str, preset: str, variant: str, seed: int, episodes: int | None
    ) -> Result:
        """Those of a training; `episodes` instead of the graph's."""
        b = self.budgets
        return self.common | {
            "graph": graph,
            "method": method,
            "preset": preset,
            "variant": variant,
            "seed": seed,
            "episodes": b.episodes[graph] if episodes is None else episodes,
            "imitation": b.imitation,
        }

    def trained(
        self,
        graph: str,
        method: str = "doppler",
        *,
        preset: str = "paper",
        variant: str = "",
        seed: int = 0,
        episodes: int | None = None,
        start: PaperJob | None = None,
    ) -> PaperJob:
        """A policy that is trained on a graph."""
        values = self.parameters(graph, method, preset, variant, seed, episodes)
        if start is not None:
            values["start"] = start.key
        return PaperJob("train", values, _cost_s(values), needs=() if start is None else (start,))

    def seeds(
        self,
        graph: str,
        method: str = "doppler",
        *,
        preset: str = "paper",
        variant: str = "",
        count: int | None = None,
        episodes: int | None = None,
    ) -> list[PaperJob]:
        """The same with every seed."""
        return [
            self.trained(
                graph, method, preset=preset, variant=variant, seed=seed, episodes=episodes
            )
            for seed in range(self.budgets.seeds if count is None else count)
        ]

    def judged(self, graph: str, start: PaperJob) -> PaperJob:
        """The policy of a training on another problem, as it is."""
        values = self.common | {"graph": graph, "start": start.key}
        return PaperJob("judge", values, 2.0, needs=(start,))

    def untrained(self, graph: str) -> list[PaperJob]:
        """Policies that have learned nothing."""
        b = self.budgets
        return [
            PaperJob("untrained", self.parameters(graph, "doppler", "default", "", seed, 0), 2.0)
            for seed in range(b.seeds)
        ]

    def staged(self, graph: str, stages: Sequence[str], seed: int) -> PaperJob:
        """A training in some of the three stages; Stage III starts from the job of the others."""
        first = [stage for stage in stages if stage != REAL]
        before = self._simulated(graph, first, seed) if first else None
        if REAL not in stages:
            assert before is not None
            return before
        values = self.parameters(graph, "doppler", "paper", "", seed, 0)
        values |= {"stages": [REAL], "real": self.budgets.real}
        if before is not None:
            values["start"] = before.key
        cost = _cost_s(values | {"episodes": self.budgets.real * REAL_COST, "imitation": 0})
        return PaperJob("real", values, cost, needs=() if before is None else (before,))

    def _simulated(self, graph: str, stages: Sequence[str], seed: int) -> PaperJob:
        """A training in one or both stages that are simulated; both: that of Table 2."""
        job = self.trained(graph, seed=seed)
        if len(stages) == len(SIMULATED):
            return job
        values = dict(job.parameters) | {"stages": list(stages)}
        counts = {"episodes": "sim", "imitation": "imitation"}
        spent = {key: values[key] * (stage in stages) for key, stage in counts.items()}
        return PaperJob(job.kind, values, _cost_s(values | spent))


def _cost_s(values: Result) -> float:
    """About how long a training takes on one core."""
    graph, method = values["graph"], values["method"]
    cost = EPISODE_S * GRAPH_COST.get(graph, 1.0) * METHOD_COST[method]
    if method.startswith("placeto") and graph != "chainmm":
        cost *= PLACETO_GROWTH
    if values["preset"] == "default":
        cost *= BATCHED
    step = STEP_COST if values["variant"] == "per-step" else 1.0
    return float(2.0 + cost * (values["episodes"] * step + values["imitation"]))


def of_run(results: Results, jobs: Iterable[PaperJob]) -> Spread:
    """The best of the run, over seeds: what the paper reports."""
    return spread(r["run"]["ms"] for r in results.all(jobs) if "run" in r)


def of_greedy(results: Results, jobs: Iterable[PaperJob]) -> Spread:
    """What the policy makes greedily, over seeds."""
    return spread(r["greedy"]["ms"] for r in results.all(jobs))


def of_placed(results: Results, jobs: Iterable[PaperJob]) -> Spread:
    """The makespan of placers, over seeds; nothing where they fail."""
    return spread(r["ms"] for r in results.all(jobs) if "ms" in r)


def noisy(results: Results, jobs: Iterable[PaperJob]) -> Spread:
    """The mean and the deviation of runs with noise, of all seeds together."""
    found = results.all(jobs)
    rows = [r.get("run", r) for r in found]
    return spread(ms for r in rows if "noisy_ms" in r for ms in r["noisy_ms"])


def cell(ours: Spread, theirs: Figure | None) -> tuple[str, str, str]:
    """Ours, the paper's and the ratio, as texts."""
    if theirs is None:
        return str(ours), "", ""
    told = f"{theirs.mean:g}" + (f" ± {theirs.std:g}" if theirs.std is not None else "")
    ratio = ours.mean / theirs.mean if ours.count else float("nan")
    return str(ours), told, f"{ratio:.2f}" if ours.count else "–"


def beside(
    title: str,
    names: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Spread], dict[str, Figure]]],
) -> FigureTable:
    """A table with, for each column, ours, the paper's and the ratio."""
    heads = ["method"] + [h for name in names for h in (name, "*paper*", "ratio")]
    made = []
    for label, ours, theirs in rows:
        cells = [
            c for name, one in zip(names, ours, strict=True) for c in cell(one, theirs.get(name))
        ]
        made.append((label, *cells))
    return FigureTable(title, tuple(heads), tuple(made))


def plain(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> FigureTable:
    """A table of texts and spreads."""
    return FigureTable(title, tuple(heads), tuple(tuple(map(str, row)) for row in rows))


def protocol_table(
    results: Results, budgets: Budgets, rows: Sequence[tuple[str, Sequence[PaperJob]]]
) -> FigureTable:
    """Of learned methods all that the protocol measures, with budgets."""
    heads = ["method", "greedy", f"best of {budgets.samples} samples", "best of the run"]
    heads += ("in placer `doppler`", "episodes", "simulated runs", "CPU s", "seeds")
    made = []
    for label, jobs in rows:
        found = results.all(jobs)
        placer = spread(r["placer_ms"] for r in found if "placer_ms" in r)
        episodes = _episodes(found[0]["parameters"])
        made.append(
            (
                label,
                spread(r["greedy"]["ms"] for r in found),
                spread(r["samples_ms"] for r in found),
                spread(r["run"]["ms"] for r in found),
                placer if placer.count else "",
                episodes,
                f"{spread(r['evaluations'] for r in found).mean:,.0f}",
                f"{spread(r['seconds'] for r in found).mean:,.0f}",
                len(found),
            )
        )
    return plain("The protocol: ms, episodes of Stage II + Stage I", heads, made)


def _episodes(parameters: Result) -> str:
    """Episodes of Stage II and, where the method has it, Stage I."""
    from doppler.reproduce.learning import config_of

    config = config_of(parameters)
    stages = config.with_stages(from_nothing="start" not in parameters).stages
    counts = {"sim": parameters["episodes"], "imitation": parameters["imitation"]}
    return " + ".join(f"{count if stage in stages else 0:,}" for stage, count in counts.items())


def budget_text(budgets: Budgets, graphs: Iterable[str]) -> str:
    """The budgets of learned rows, in words."""
    counts = ", ".join(f"{g} {budgets.episodes[g]:,}" for g in graphs)
    return (
        f"Budget `{budgets.name}`: preset `paper`, episodes of Stage II: {counts}; of Stage I "
        f"{budgets.imitation:,}; {budgets.seeds} seeds."
    )
