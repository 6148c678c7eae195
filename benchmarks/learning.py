"""What does training on one graph give? Quality, ablations and transfer, over several seeds.

Every measurement is a job, `table/case/seed`, that appends a line to a file of results:

    python benchmarks/learning.py run 'quality/*' --seconds 300 --results results.jsonl
    python benchmarks/learning.py show results.jsonl

`known` in a file of results is a makespan that was found on the way, by a run that is in no table.

`run` takes patterns and does the jobs one after the other, each on one core, so several processes
may run side by side on the same file; `list` names all jobs. `show` prints the tables from the
lines of one or more files. `benchmarks/results/learning.jsonl` is what we measured.

Makespans are simulated milliseconds. `greedy` is one greedy episode of the policy, `run` the best
that training found, the expert's search included. `policy` is the best that placer `doppler` finds
with a policy, in about a second.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from jobs import Job, Result, read, run_jobs
from placers import P100, V100, WORKLOADS, instant, problem

from doppler.graph import Graph
from doppler.mdp import make_instance
from doppler.mdp.rollout import Sampling
from doppler.placers import lower_bounds
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.policies.acting import Actor
from doppler.policies.dual import DualPolicy, PolicyConfig, make_policy
from doppler.problem import Problem
from doppler.sim import Simulator
from doppler.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.presets import PRESETS
from doppler.training.trainer import Trainer

FOUR = tuple(f"{P100}/{name}" for name in WORKLOADS)
SIX = (*FOUR, f"{V100}/llama-block", f"{V100}/llama-layer")
SEEDS = 3
LAYER, CHAIN = f"{P100}/llama-layer", f"{P100}/chainmm"
TRANSFERS = [(s, t) for t in ("llama-block", "llama-layer") for s in ("ffnn", "chainmm")]
MOVED = ("chainmm", "ffnn")  # to another machine
MESSAGES = ("episode", "step")  # how often they are passed
SHOTS = (0, 2048, 4096)


def variants() -> dict[str, TrainConfig]:
    """The departures from the paper's algorithm one by one, and Table 3's parts."""
    base = PRESETS["default"]
    sim = base.sim
    return {
        "default": base,
        "only PLC (critical path selects)": replace(base, policy=PolicyConfig(select=False)),
        "only SEL (critical path places)": replace(base, policy=PolicyConfig(place=False)),
        "no Stage I": replace(base, stages=("sim",)),
        "paper's device features": replace(base, policy=PolicyConfig(features="paper")),
        "no expert": replace(base, sim=replace(sim, expert=None)),
        "REINFORCE counts as much as lessons": replace(base, sim=replace(sim, reinforce=1.0)),
        "no REINFORCE": replace(base, sim=replace(sim, reinforce=0.0)),
        "an update after every episode": replace(base, sim=replace(sim, batch=1)),
        "devices alike are several choices": replace(base, sim=replace(sim, alike=False)),
        "SEL imitates in Stage I only": replace(base, sim=replace(sim, anchor=0.0)),
        "paper preset": PRESETS["paper"],
    }


def jobs() -> list[Job]:
    """All measurements."""
    default = PRESETS["default"]
    found = [Job(f"heuristics/{label}/0", _heuristics(label), 0) for label in SIX]
    found += [Job(f"rule/{label}/0", _rule(label), 0) for label in SIX]
    for seed in range(SEEDS):
        found += [Job(f"quality/{label}/{seed}", _trained(label, default), seed) for label in SIX]
        found += [Job(f"untrained/{label}/{seed}", _untrained(label), seed) for label in SIX]
        for label in (CHAIN, LAYER):
            found += [
                Job(f"ablation/{label} {name}/{seed}", _trained(label, config), seed)
                for name, config in variants().items()
            ]
        found += [Job(f"transfer/{s} to {t}/{seed}", _transfer(s, t), seed) for s, t in TRANSFERS]
        found += [Job(f"machine/{name}/{seed}", _machine(name), seed) for name in MOVED]
        found += [Job(f"messages/{how}/{seed}", _messages(how), seed) for how in MESSAGES]
    found += [Job(f"quality/{CHAIN}/{seed}", _trained(CHAIN, default), seed) for seed in (3, 4)]
    return found


def train(
    labels: list[str] | tuple[str, ...],
    config: TrainConfig,
    seconds: float | None,
    seed: int,
    start: DualPolicy | None = None,
) -> tuple[Trainer, Result]:
    """A trainer that has trained on one core, from nothing or a policy, and what that took."""
    pairs = [problem(label) for label in labels]
    config = replace(config, seconds=seconds, seed=seed, threads=1)
    config = config.with_stages(from_nothing=start is None)
    # Budgets are CPU time: other work does not count.
    trainer = Trainer(pairs, config, policy=start, clock=process_time)
    began, episodes, best_at = process_time(), 0, 0
    best_s = np.inf
    for progress in trainer.run():
        stage = getattr(config, progress.stage)
        episodes += stage.batch
        if progress.stage == "sim" and progress.best_s < best_s:
            best_s, best_at = progress.best_s, progress.episodes
    took = {"episodes": episodes, "seconds": process_time() - began, "best_at": best_at}
    return trainer, took


def greedy_ms(policy: DualPolicy, label: str) -> float:
    """The makespan of the policy's greedy episode on a problem."""
    instance = make_instance(Problem(*problem(label)))
    return float(DopplerPlacer(policy, samples=0).propose(instance)[2][0]) * 1e3


def placed_ms(policy: DualPolicy, label: str) -> float:
    """The best makespan that placer `doppler` finds with the policy."""
    instance = make_instance(Problem(*problem(label)))
    return float(DopplerPlacer(policy).propose(instance, seed=1)[2].min()) * 1e3


def _heuristics(label: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        graph, topology = problem(label)
        found = instant(graph, topology)
        best = min(found, key=lambda name: found[name])
        bound = lower_bounds(graph, topology).best_s * 1e3
        return {"best": found[best], "name": best, "bound": bound, **found}

    return work


def _rule(label: str) -> Callable[[float, int], Result]:
    """The critical-path rule by the plan that features are made of, best of 50, as the placer."""

    def work(seconds: float, seed: int) -> Result:
        graph, topology = problem(label)
        instance = make_instance(Problem(graph, topology))
        policy = make_policy(PolicyConfig(select=False), seed)
        actor = Actor(instance)
        scores, by_rule = policy.scores(actor.inputs), Sampling(place_early=True)
        played = actor.play(policy, scores, by_rule, np.arange(50), record=False)
        makespans = Simulator(topology).makespans(graph, instance.expand(played.devices))
        return {"best": makespans.min() * 1e3}

    return work


def _untrained(label: str) -> Callable[[float, int], Result]:
    """What a policy makes that has learned nothing."""

    def work(seconds: float, seed: int) -> Result:
        policy = make_policy(PolicyConfig(), seed)
        return {"greedy": greedy_ms(policy, label), "policy": placed_ms(policy, label)}

    return work


def _trained(label: str, config: TrainConfig) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        trainer, took = train([label], config, seconds, seed)
        run = trainer.records[0].best_s * 1e3
        return took | {"greedy": greedy_ms(trainer.policy, label), "run": run}

    return work


def _transfer(source: str, target: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        trainer, _ = train([f"{P100}/{source}"], PRESETS["default"], seconds, seed)
        found: Result = {}
        state = {k: v.clone() for k, v in trainer.policy.state_dict().items()}
        for shots in SHOTS:
            trainer.policy.load_state_dict(state)
            policy = trainer.policy
            if shots:
                base = PRESETS["default"]
                config = replace(base, stages=("sim",), sim=replace(base.sim, episodes=shots))
                policy = train([f"{P100}/{target}"], config, None, seed, policy)[0].policy
            found[f"after_{shots}"] = placed_ms(policy, f"{P100}/{target}")
        return found

    return work


def _machine(name: str) -> Callable[[float, int], Result]:
    """Trained on p100x4, then used on v100x8 as it is and after some episodes (App. J)."""

    def work(seconds: float, seed: int) -> Result:
        trainer, _ = train([f"{P100}/{name}"], PRESETS["default"], seconds, seed)
        graph, topology = problem(f"{V100}/{name}")
        base = PRESETS["default"]
        config = replace(base, stages=("sim",), sim=replace(base.sim, episodes=SHOTS[-1]))
        found: Result = {"zero": _on(trainer.policy, graph, topology)}
        tuned, _ = train([f"{V100}/{name}"], config, None, seed, trainer.policy)
        return found | {"tuned": _on(tuned.policy, graph, topology)}

    return work


def _on(policy: DualPolicy, graph: Graph, topology: Topology) -> Result:
    """Makespan and the share of reads within a device, within a group and across groups."""
    assignment = DopplerPlacer(policy).place(Problem(graph, topology))
    trace = Simulator(topology).run(graph, assignment)
    producer = graph.tensor_producer[graph.edge_tensor]
    kept = ~graph.is_input[producer]
    a, b = assignment.devices[producer[kept]], assignment.devices[graph.edge_reader[kept]]
    groups = np.array([device.group for device in topology.devices])
    same, near = a == b, groups[a] == groups[b]
    shares = {"device": same, "group": near & ~same, "across": ~near}
    return {"ms": trace.makespan_s * 1e3} | {k: float(v.mean()) for k, v in shares.items()}


def _messages(how: str) -> Callable[[float, int], Result]:
    """REINFORCE on ChainMM with message passing once per episode, or at every step (App. G.3)."""

    def work(seconds: float, seed: int) -> Result:
        base = PRESETS["default"]
        sim = replace(base.sim, expert=None, reinforce=1.0, messages=how, batch=16)
        trainer, took = train([CHAIN], replace(base, sim=sim), seconds, seed)
        record = trainer.records[0]
        passes = record.message_passes * took["best_at"] // record.episodes
        return took | {"run": record.best_s * 1e3, "passes_to_best": passes}

    return work


def tables_of(paths: list[Path]) -> dict[str, dict[str, list[Result]]]:
    """Results by table and case."""
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for name, result in sorted(read(paths).items()):
        table, _, rest = name.partition("/")
        found[table][rest.rpartition("/")[0]].append(result)
    return found


def spread(results: list[Result], key: str, best: float | None = None) -> str:
    """Mean ± standard deviation over seeds; as percent above `best` where that is given."""
    values = np.array([r[key] for r in results if r.get(key) is not None], float)
    if not len(values):
        return "–"
    if best is not None:
        values = 100 * (values / best - 1)
        return f"{values.mean():+.2f} ± {values.std():.2f} %"
    return f"{values.mean():.2f} ± {values.std():.2f}"


def best_known(tables: dict[str, dict[str, list[Result]]], label: str) -> float:
    """The least makespan that any job found."""
    cases = [tables[name].get(label, []) for name in ("known", "heuristics", "quality")]
    cases += [r for case, r in tables["ablation"].items() if case.startswith(label)]
    values = [r[key] for results in cases for r in results for key in ("best", "run") if key in r]
    return min(values, default=float("nan"))


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    tables = tables_of(paths)
    known = {
        label: best_known(tables, label) for label in (*SIX, f"{V100}/chainmm", f"{V100}/ffnn")
    }
    shown = {
        "rule": show_rule,
        "quality": show_quality,
        "ablation": show_ablation,
        "messages": show_messages,
        "transfer": show_transfer,
        "machine": show_machines,
    }
    for name, function in shown.items():
        if tables[name]:
            function(tables, known)


def show_rule(tables: Any, known: dict[str, float]) -> None:
    print("\n### The critical-path rule, best of 50, by two plans (ms)\n")
    print("| problem | links and host are free | as the features see it |\n|---|---|---|")
    for label, rows in tables["rule"].items():
        plain = tables["heuristics"].get(label, [{"critical-path": float("nan")}])[0]
        print(f"| `{label}` | {plain['critical-path']:.1f} | {rows[0]['best']:.1f} |")


def show_quality(tables: Any, known: dict[str, float]) -> None:
    print("\n### Quality: one policy per graph\n")
    heads = ("run", "greedy", "seeds", "untrained, greedy")
    print(f"| problem | best known, ms | best heuristic | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    for label in SIX:
        rows = tables["quality"].get(label, [])
        heuristic = tables["heuristics"].get(label, [{}])[0]
        name = f" (`{heuristic['name']}`)" if heuristic else ""
        above = spread([heuristic], "best", known[label]).split(" ±")[0] + " %" + name
        cells = [spread(rows, key, known[label]) for key in ("run", "greedy")]
        nothing = tables["untrained"].get(label, [])
        cells += [f"{len(rows)}", spread(nothing, "greedy", known[label])]
        print(f"| `{label}` | {known[label]:.2f} | {above} | {' | '.join(cells)} |")


def show_ablation(tables: Any, known: dict[str, float]) -> None:
    print("\n### What each part buys: above the best known, the same seconds each\n")
    print("| problem | variant | greedy | run | episodes |\n|---|---|---|---|---|")
    for label in (CHAIN, LAYER):
        for name in variants():
            rows = tables["ablation"].get(f"{label} {name}", [])
            if not rows:
                continue
            cells = [spread(rows, key, known[label]) for key in ("greedy", "run")]
            episodes = np.mean([r["episodes"] for r in rows])
            print(f"| `{label}` | {name} | {' | '.join(cells)} | {episodes:,.0f} |")


def show_messages(tables: Any, known: dict[str, float]) -> None:
    print("\n### Message passing once per episode, or at every step (ChainMM, REINFORCE)\n")
    print("| | best, ms | episodes to best | passes to best | episodes |\n|---|---|---|---|---|")
    for how in MESSAGES:
        rows = tables["messages"].get(how, [])
        keys = ("run", "best_at", "passes_to_best", "episodes")
        print(f"| once per {how} | " + " | ".join(spread(rows, key) for key in keys) + " |")


def show_transfer(tables: Any, known: dict[str, float]) -> None:
    heads = ["untrained", *("zero-shot" if n == 0 else f"{n:,} episodes" for n in SHOTS)]
    print(f"\n### Transfer between graphs\n\n| from, to | {' | '.join(heads)} |")
    print("|---|" + "---|" * len(heads))
    for source, target in TRANSFERS:
        rows = tables["transfer"].get(f"{source} to {target}", [])
        best = known[f"{P100}/{target}"]
        cells = [spread(tables["untrained"].get(f"{P100}/{target}", []), "policy", best)]
        cells += [spread(rows, f"after_{shots}", best) for shots in SHOTS]
        print(f"| `{source}` to `{target}` | {' | '.join(cells)} |")


def show_machines(tables: Any, known: dict[str, float]) -> None:
    print(f"\n### From {P100} to {V100}\n")
    print("| graph | | ms | same device | same group | across |\n|---|---|---|---|---|---|")
    for name, rows in sorted(tables["machine"].items()):
        for how in ("zero", "tuned"):
            values = [r[how] for r in rows]
            keys = ("ms", "device", "group", "across")
            print(f"| `{name}` | {how} | " + " | ".join(spread(values, k) for k in keys) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("patterns", nargs="+")
    one.add_argument("--seconds", type=float, default=300.0)
    one.add_argument("--results", type=Path, default=Path("learning.jsonl"))
    commands.add_parser("list")
    commands.add_parser("show").add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        budget = {"budget_s": options.seconds}
        run_jobs(
            *(jobs(), options.patterns),
            lambda job: budget | job.work(options.seconds, job.seed),
            options.results,
        )
    elif options.command == "list":
        print("\n".join(job.name for job in jobs()))
    else:
        show(options.files)


if __name__ == "__main__":
    main()
