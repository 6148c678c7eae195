"""What of a machine makes the order of the paper's Table 2: DOPPLER, EnumOpt, critical path?

    python benchmarks/ordering.py run --results ordering.jsonl [VARIANT/GRAPH…]
    python benchmarks/ordering.py show ordering.jsonl

Every variant changes one thing of `p100x4` (or several). On it EnumOpt, four forms of the critical
path, a search and DOPPLER place the paper's graphs. DOPPLER is trained on the variant itself, as
the paper's Stage III is on the system: preset `default`, with the search of its expert and without,
best of the run.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np
from jobs import Job, Result, part_of, read, run_jobs

from doppler.base.arrays import IntArray
from doppler.placers import bounds_of, make_placer
from doppler.placers.lists.critical_path import CriticalPathPlacer
from doppler.placers.lists.rules import PlanArrays, flatten
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.problem import Problem
from doppler.reproduce.budgets import QUICK
from doppler.reproduce.findings import Spread, is_below, spread
from doppler.reproduce.paper_figures import FOUR, paper
from doppler.reproduce.placements import graph_of
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology
from doppler.topology.presets import read_topology
from doppler.training.presets import preset
from doppler.training.trainer import Trainer

MACHINE, RUNS = "p100x4", 50  # assignments of a critical path (Sec. 6.1)
MOVES = 20_000  # evaluations of the search
IMITATION, EPISODES = 512, 1024  # of a training
SEEDS, DRAWS = QUICK.seeds, QUICK.draws
LITTLE = 1e-6  # share of a transfer's time that decides ties only


@dataclass(frozen=True)
class Variant:
    """A machine like `p100x4` but for something."""

    text: str
    change: Callable[[Topology], Topology] = lambda topology: topology
    noise: Noise = field(default_factory=Noise)

    def problem(self, graph: str) -> Problem:
        """A graph on the changed machine."""
        topology = self.change(read_topology(MACHINE))
        return Problem(graph_of(graph, topology.num_devices), topology)


def links(topology: Topology, *, factor: float = 1.0, shared: bool = False) -> Topology:
    """Other bandwidth; if shared, one link for all pairs of devices."""
    route, every = topology.route.copy(), list(topology.links)
    for i in np.unique(route[route >= 0]).tolist():
        bandwidth = every[i].bandwidth_bytes_per_s * factor
        every[i] = replace(every[i], bandwidth_bytes_per_s=bandwidth)
    if shared:
        route[route >= 0] = route[0, 1]
    return replace(topology, links=tuple(every), route=route)


def host(topology: Topology, **values: float) -> Topology:
    return replace(topology, host=replace(topology.host, **values))


def streams(topology: Topology, count: int) -> Topology:
    """So many kernels at a time on a device, each at that share of its speed."""
    return speeds(topology, [1 / count] * topology.num_devices, slots=count)


def speeds(topology: Topology, factors: Sequence[float], slots: int = 1) -> Topology:
    """Devices whose kernels run at other speeds."""
    devices = tuple(
        replace(
            device,
            flops_per_s={key: rate * f for key, rate in device.flops_per_s.items()},
            memory_bytes_per_s=device.memory_bytes_per_s * f,
            slots=slots,
        )
        for device, f in zip(topology.devices, factors, strict=True)
    )
    return replace(topology, devices=devices)


VARIANTS = {
    "as-fitted": Variant("`p100x4` as it is fitted"),
    "noise": Variant("noise of 20 % on execs and transfers", noise=Noise(0.2, 0.2)),
    "two-streams": Variant("two kernels at a time, each half as fast", lambda t: streams(t, 2)),
    "host-late": Variant(
        "the host sees completions after three times as long",
        lambda t: host(t, completion_s=3 * t.host.completion_s),
    ),
    "host-slow": Variant(
        "the host takes ten times as long to start a task",
        lambda t: host(t, dispatch_s=10 * t.host.dispatch_s),
    ),
    "uneven": Variant(
        "one device at 85 % of its speed", lambda t: speeds(t, (1.0, 1.0, 1.0, 0.85))
    ),
    "slow-links": Variant(
        "links at a quarter of their bandwidth", lambda t: links(t, factor=1 / 4)
    ),
    "one-link": Variant("one link for all transfers", lambda t: links(t, shared=True)),
    "slow-link": Variant(
        "one link for all transfers, at half the bandwidth",
        lambda t: links(t, factor=1 / 2, shared=True),
    ),
}


class NearlyBlind(CriticalPathPlacer):
    """Critical path that is blind to transfers but for ties: those go where the inputs are."""

    def plan_arrays(self, problem: Problem) -> PlanArrays:
        """What plans are made from: transfers take next to no time."""
        arrays = flatten(problem)
        return arrays._replace(
            fixed_s=arrays.fixed_s * LITTLE,
            latency_s=arrays.latency_s * LITTLE,
            s_per_byte=arrays.s_per_byte * LITTLE,
        )


class EarliestAvailable:
    """Sec. 6.2, to the letter: the longest path first, on the device that is available earliest,
    even if others will be free as well when the vertex is ready. Ties go where most inputs are.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        graph = problem.graph
        self.reads: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_vertices)]
        self.readers: list[list[int]] = [[] for _ in range(graph.num_vertices)]
        producers = graph.tensor_producer[graph.edge_tensor].tolist()
        for tensor, source, reader in zip(
            graph.edge_tensor.tolist(), producers, graph.edge_reader.tolist(), strict=True
        ):
            if not graph.is_input[source]:
                self.reads[reader].append((source, tensor))
                self.readers[source].append(reader)

    def place(self, rng: np.random.Generator) -> IntArray:
        """(V,) devices; vertices that are equally urgent go in random order."""
        graph, exec_s = self.problem.graph, self.problem.costs.exec_s
        length_s = self.problem.bottom_levels.length_s
        free, end = np.zeros(exec_s.shape[1]), np.zeros(graph.num_vertices)
        devices = np.full(graph.num_vertices, -1, np.int64)
        missing = [len(reads) for reads in self.reads]
        ready = [(-length_s[v], rng.random(), v) for v in graph.assigned.tolist() if not missing[v]]
        heapify(ready)
        while ready:
            v = heappop(ready)[-1]
            local = np.zeros(len(free))
            for source, tensor in self.reads[v]:
                local[devices[source]] += graph.tensor_bytes[tensor]
            tied = np.flatnonzero(free == free.min())
            best = tied[local[tied] == local[tied].max()]
            d = devices[v] = int(rng.choice(best))
            begin = max([free[d], *(end[source] for source, _ in self.reads[v])])
            free[d] = end[v] = begin + exec_s[v, d]
            for reader in self.readers[v]:
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready, (-length_s[reader], rng.random(), reader))
        return devices


LEARNED = {"doppler_ms": True, "alone_ms": False}  # and whether an expert searches
FORMS = {
    "critical-path": "knows transfers",
    "critical-path:blind": "blind, ties at random",
    "nearly-blind": "blind, ties where inputs are",
    "earliest-available": "earliest-available device",
}


def candidates(form: str, problem: Problem) -> IntArray:
    """(K, V) what a form of the critical path makes; the best of them counts."""
    if form == "earliest-available":
        rng, placer = np.random.default_rng(0), EarliestAvailable(problem)
        return np.array([placer.place(rng) for _ in range(RUNS)])
    made = NearlyBlind(RUNS) if form == "nearly-blind" else make_placer(form)
    return made.place(problem).devices[None]


def measure(variant: Variant, graph: str, episodes: int) -> Result:
    """Milliseconds of every method on a variant."""
    problem = variant.problem(graph)
    config = SimConfig(noise=variant.noise, limit_memory=False)
    simulator, draws = Simulator(problem, config), DRAWS if variant.noise.is_random else 1

    def best_ms(devices: IntArray) -> float:
        runs = [simulator.makespans(problem.graph, devices, seed=s) for s in range(draws)]
        return float(np.mean(runs, axis=0).min()) * 1e3

    searched = search(
        problem, starting_points(problem, 0), SearchConfig(evaluations=MOVES, chains=1), seed=0
    )
    found: Result = {
        "bound_ms": bounds_of(problem).best_s * 1e3,
        "search_ms": best_ms(searched.devices[None]),
        "enumerative_ms": best_ms(make_placer("enumerative").place(problem).devices[None]),
        "forms_ms": {form: best_ms(candidates(form, problem)) for form in FORMS},
        "episodes": [min(IMITATION, episodes), episodes],
    }
    for name, expert in LEARNED.items():
        found[name] = [
            best_ms(trained(problem, variant.noise, found["episodes"], seed, expert=expert)[None])
            for seed in range(SEEDS if episodes else 0)
        ]
    return found


def trained(
    problem: Problem, noise: Noise, episodes: Sequence[int], seed: int, *, expert: bool
) -> IntArray:
    """The best assignment of a training."""
    config = preset("default")
    sim = replace(config.sim, episodes=episodes[1])
    config = replace(
        config,
        stages=("imitation", "sim"),
        imitation=replace(config.imitation, episodes=episodes[0]),
        sim=sim if expert else replace(sim, expert=None),
        noise=noise,
        limit_memory=False,
        seed=seed,
        threads=1,
    )
    trainer = Trainer([(problem.graph, problem.topology)], config)
    for _ in trainer.run():
        pass
    return trainer.records[0].best_devices


def show(paths: list[Path]) -> None:
    """Everything relative to EnumOpt, and on how many graphs the order is there."""
    results, theirs = read(paths), paper("placement")
    base = {g: theirs["enumerative"][g].mean for g in FOUR}
    learned = ", ".join(_change(theirs["doppler-sys"][g].mean, base[g]) for g in FOUR)
    path = ", ".join(f"{theirs['critical-path'][g].mean / base[g]:.2f}" for g in FOUR)
    ms = ", ".join(f"{base[g]:.0f}" for g in FOUR)
    rows = [("*the paper*", ms, learned, learned, "", *[path] * len(FORMS))]
    for name, variant in VARIANTS.items():
        found = [results.get(f"{name}/{g}") for g in FOUR]
        kept = [row for row in found if row is not None]
        if len(kept) == len(FOUR):
            rows.append(_row(variant, kept))
    print("\nIn each cell: ChainMM, FFNN, Llama-block, Llama-layer.\n")
    heads = ["the simulator", "EnumOpt, ms", "DOPPLER", "without expert", "search"]
    heads += FORMS.values()
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    some = next(row for row in results.values() if row["doppler_ms"])
    print(
        "\nDOPPLER and search: percent from EnumOpt. Critical path, in four forms: times EnumOpt, "
        f"best of {RUNS}; in brackets on how many graphs DOPPLER is below EnumOpt and EnumOpt "
        "below that form, by the rule of verdicts; – where DOPPLER was not trained. It has preset "
        f"`default`: best of the run, mean of {len(some['doppler_ms'])} seeds, "
        f"{some['episodes'][1]:,} episodes of Stage II after {some['episodes'][0]:,} of Stage I. "
        f"Search: {MOVES:,} evaluations."
    )


def _row(variant: Variant, kept: list[Result]) -> tuple[str, ...]:
    base = [row["enumerative_ms"] for row in kept]
    pairs = list(zip(kept, base, strict=True))
    is_trained = all(row["doppler_ms"] for row in kept)
    ahead = [is_below(spread(row["doppler_ms"]), Spread(ms)) for row, ms in pairs]
    forms = []
    for form in FORMS:
        ratios = ", ".join(f"{row['forms_ms'][form] / ms:.2f}" for row, ms in pairs)
        last = [is_below(Spread(ms), Spread(row["forms_ms"][form])) for row, ms in pairs]
        count = sum(map(all, zip(ahead, last, strict=True)))
        forms.append(f"{ratios} ({count if is_trained else '–'})")
    changes = [
        ", ".join(_change(float(np.mean(row[key])), ms) for row, ms in pairs) if has else "–"
        for key, has in (*((name, is_trained) for name in LEARNED), ("search_ms", True))
    ]
    return variant.text, ", ".join(f"{ms:.0f}" for ms in base), *changes, *forms


def _change(ms: float, base: float) -> str:
    return f"{100 * (ms / base - 1):+.1f}".replace("-", "−")


def main() -> None:
    """Run jobs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("jobs", nargs="*", default=["*"], metavar="VARIANT/GRAPH", help="patterns")
    new.add_argument(
        "--episodes", type=int, default=EPISODES, help="of Stage II; 0: none is trained"
    )
    new.add_argument("--part", type=part_of, default=(0, 1), help="which of how many: 0/2")
    results = Path(tempfile.gettempdir()) / "ordering.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.results)
        return
    jobs = [Job(f"{name}/{graph}", measure) for name in VARIANTS for graph in FOUR]

    def do(job: Job) -> Result:
        name, _, graph = job.name.partition("/")
        return measure(VARIANTS[name], graph, args.episodes)

    run_jobs(jobs, args.jobs, do, args.results, args.part)


if __name__ == "__main__":
    main()
