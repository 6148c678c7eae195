"""What does training cost?

Run it as `python benchmarks/training.py run`; it takes two minutes of one core:

- `episodes`: CPU time of an episode, where it goes, against other ways to train;
- `sizes`: how that grows with the graph;
- `inference`: how greedy inference does.

What else runs on the machine only adds to these numbers, so the best of some rounds counts.
"""

import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import tables
import torch
from tables import Table
from workloads import graph_of

from doppler.graph import Graph
from doppler.placers import Placer
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.lists.critical_path import CriticalPathPlacer
from doppler.policies.dual import make_policy
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology, read_topology
from doppler.training.config import TrainConfig
from doppler.training.per_step import reinforce_by_steps
from doppler.training.presets import preset
from doppler.training.trainer import UPDATES, Trainer, Update

Pair = tuple[Graph, Topology]
Parts = dict[str, float]  # seconds of CPU, or milliseconds per episode, by what they were spent on

# CPU seconds per episode of the authors' code on these graphs with its debugging off: reported for
# it, not measured here.
AUTHORS_S = {"chainmm@p100x4": 1.3, "llama-layer@p100x4": 3.8}
WARM_UP = 5  # updates before the clock starts
UPDATES_TIMED = 20  # in a round
ROUNDS = 3  # of which the best counts
SIZES = (100, 1_000, 10_000)
WIDE_DEPTH = 5  # layers of a wide graph
SIZES_BATCH = 4  # episodes per update, the same for all sizes so that they compare
PER_STEP = {"expert": None, "batch": 1, "messages": "step"}
PARTS = ("encode", "rollout", "simulate", "search", "gradient")


def problem(label: str) -> Pair:
    """The graph and the machine of `workload@topology`."""
    name, _, machine = label.partition("@")
    topology = read_topology(machine)
    return graph_of(name, topology.num_devices), topology


def random_problem(vertices: int, depth: int | None = None) -> Pair:
    """A random graph on four devices; by default 50 vertices to a level."""
    depth = depth or max(vertices // 50, 5)
    graph = random_dag(vertices=vertices, depth=depth, bytes_per_flop=2e-6, seed=0)
    return graph, read_topology("p100x4")


def one_core(name: str = "default", **changes: Any) -> TrainConfig:
    """A preset on one core, with other values for Stage II."""
    config = preset(name).with_stages(from_nothing=True)
    return replace(config, threads=1, sim=replace(config.sim, **changes))


class Meter:
    """CPU time of a trainer, by part; what no part accounts for is the gradient and the step."""

    def __init__(self, trainer: Trainer) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.began = process_time()
        (record,) = trainer.records
        self._watch(trainer.policy, "forward", "encode")
        self._watch(record.view(trainer.policy), "play", "rollout")
        self._watch(record, "measure", "simulate")
        if record.exercise.expert is not None:
            self._watch(record.exercise.expert, "lessons", "search")

    def _watch(self, owner: object, method: str, part: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            began = process_time()
            result = inner(*args, **options)
            self.parts[part] += process_time() - began
            return result

        setattr(owner, method, timed)

    def take(self) -> Parts:
        """Seconds since the last time."""
        total = process_time() - self.began
        taken = self.parts | {"gradient": total - sum(self.parts.values()), "total": total}
        self.parts, self.began = dict.fromkeys(PARTS, 0.0), process_time()
        return taken


def costs_ms(
    pair: Pair,
    config: TrainConfig,
    *,
    rounds: int = ROUNDS,
    updates: int = UPDATES_TIMED,
    warm_up: int = WARM_UP,
    updated_by: Mapping[str, Update] = UPDATES,
) -> dict[str, Parts]:
    """CPU milliseconds per episode of each stage, in the best of some rounds of updates."""
    number = warm_up + rounds * updates
    for stage in config.stages:
        old = getattr(config, stage)
        config = replace(config, **{stage: replace(old, episodes=number * old.batch)})
    trainer = Trainer([pair], config, updates=updated_by)
    meter, seen = Meter(trainer), {stage: list[Parts]() for stage in config.stages}
    for progress in trainer.run():
        seen[progress.stage].append(meter.take())
    return {
        stage: best_round(rows[warm_up:], updates, getattr(config, stage).batch)
        for stage, rows in seen.items()
    }


def best_round(rows: list[Parts], updates: int, batch: int) -> Parts:
    """Milliseconds per episode in the round that took the least."""
    rounds = [rows[at : at + updates] for at in range(0, len(rows), updates)]
    least = min(rounds, key=lambda one: sum(row["total"] for row in one))
    return {key: 1e3 * sum(row[key] for row in least) / updates / batch for key in least[0]}


def episodes(_: object) -> Iterator[Table]:
    """CPU time per episode by stage and part, then against alternatives."""
    rows, ours_ms = [], {}
    for label in AUTHORS_S:
        pair = problem(label)
        alone, both = costs_ms(pair, one_core(expert=None)), costs_ms(pair, one_core())
        ours_ms[label] = alone["sim"]["total"]
        for name, costs in (
            ("Stage I", alone["imitation"]),
            ("Stage II without expert", alone["sim"]),
            ("Stage II", both["sim"]),
        ):
            cells = [f"{costs[part]:.2f}" if costs[part] else "" for part in (*PARTS, "total")]
            rows.append([f"`{label}`", name, *cells])
    yield Table(
        "episodes",
        "ms of CPU per episode on one core, default preset",
        ["problem", "", *PARTS, "all"],
        rows,
        f"The best of {ROUNDS} rounds of {UPDATES_TIMED} updates; the optimizer's step is part of "
        "the gradient.",
    )
    head = ["", *(f"`{label}`" for label in ours_ms)]
    title = "Other ways to reinforce: ms of CPU per episode, and times ours"
    yield Table("alternatives", title, head, alternatives(ours_ms))


def alternatives(ours_ms: dict[str, float]) -> list[list[str]]:
    """Rows of other ways to reinforce, against the default preset without its expert."""

    def row(name: str, times_ms: dict[str, float]) -> list[str]:
        cells = (f"{ms:,.2f} ({ms / ours_ms[label]:,.0f}×)" for label, ms in times_ms.items())
        return [name, *cells]

    def timed(
        config: TrainConfig, updates: int, by: Mapping[str, Update] = UPDATES
    ) -> dict[str, float]:
        config = replace(config, stages=("sim",))
        options: dict[str, Any] = {"rounds": 1, "updates": updates, "warm_up": 1, "updated_by": by}
        found = {label: costs_ms(problem(label), config, **options) for label in ours_ms}
        return {label: costs["sim"]["total"] for label, costs in found.items()}

    one, by_steps = one_core(expert=None, batch=1), UPDATES | {"sim": reinforce_by_steps}
    reported = {label: 1e3 * seconds for label, seconds in AUTHORS_S.items()}
    return [
        row(f"{preset('default').sim.batch} episodes per update", ours_ms),
        row("an update per episode", timed(one, 100)),
        row("paper preset, an update per episode", timed(one_core("paper"), 100)),
        row("readable episode and torch at every step", timed(one, 3, by_steps)),
        row("the same, message passing at every step", timed(one_core(**PER_STEP), 2)),
        row("authors' code, as reported, not measured here", reported),
    ]


def sizes(_: object) -> Iterator[Table]:
    """Training by the size of the graph, of those that grow longer and of those that grow wider."""
    config = replace(one_core(expert=None, batch=SIZES_BATCH), stages=("sim",))
    kept, rows = [part for part in PARTS if part != "search"], []
    for size in SIZES:
        for shape, depth in (("long", None), ("wide", WIDE_DEPTH)):
            updates, pair = max(20_000 // size, 3), random_problem(size, depth)
            costs = costs_ms(pair, config, updates=updates, warm_up=2)["sim"]
            cells = [f"{costs[part]:.2f}" for part in (*kept, "total")]
            per_vertex = f"{1e3 * costs['total'] / size:.1f}"
            rows.append([f"{size:,}", shape, *cells, per_vertex, f"{peak_memory_mb():.0f}"])
    yield Table(
        "sizes",
        f"Stage II by size: ms of CPU per episode, {SIZES_BATCH} episodes per update",
        ["vertices", "shape", *kept, "all", "µs per vertex", "MB so far"],
        rows,
        f"Random graphs on `p100x4`. Wide graphs have {WIDE_DEPTH} layers, so that candidates are "
        "many. Memory is the most that was in use.",
    )


def peak_memory_mb() -> float:
    """Megabytes of memory that this process had in use when it had most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def inference(_: object) -> Iterator[Table]:
    """A greedy assignment, from graph to makespan, against one list schedule of critical-path."""
    placer, rows = DopplerPlacer(make_policy(preset("default").policy, 0), samples=0), []
    pairs = [problem(label) for label in AUTHORS_S] + [random_problem(size) for size in SIZES]
    for pair in pairs:
        size, name = len(pair[0].assigned), pair[0].name
        ms, other_ms = placing_ms(placer, pair), placing_ms(CriticalPathPlacer(runs=1), pair)
        cells = [f"{ms:.1f}", f"{ms / other_ms:.2f}", f"{1e3 * ms / size:.1f}"]
        rows.append([f"`{name}`", f"{size:,}", *cells])
    yield Table(
        "inference",
        "Greedy inference on `p100x4`, one core, ms of CPU end to end",
        ["graph", "vertices", "ms", "times critical path", "µs per vertex"],
        rows,
    )


def placing_ms(placer: Placer, pair: Pair) -> float:
    """Milliseconds of CPU to place a graph once compiled, the best of some rounds."""
    times = []
    for _ in range(1 + ROUNDS):
        began = process_time()
        placer.place(Problem(*pair))
        times.append(process_time() - began)
    return 1e3 * min(times[1:])


ALL = {"episodes": episodes, "sizes": sizes, "inference": inference}


def main() -> None:
    torch.set_num_threads(1)
    tables.main(__doc__, ALL)


if __name__ == "__main__":
    main()
