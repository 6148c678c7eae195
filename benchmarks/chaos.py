r"""Does serving keep its promises? Faults, hangs, bad requests, changes of the machine, restarts.

An `OnlinePlacer` serves requests of a machine in virtual time (`doppler.testing.VirtualServer`), of
which a few per cent are bad, runs fail at random, some candidates always fail or hang, devices and
links become slower and recover, and the process is stopped, or killed, and resumes from its state.
The second table says how many requests it takes to follow a change.

    python benchmarks/chaos.py run --results chaos.jsonl
    python benchmarks/chaos.py show chaos.jsonl
"""

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import doppler as dp
from doppler.base.arrays import IntArray
from doppler.errors import EngineError, GraphError
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.serving.incumbent import digest
from doppler.serving.online import OnlinePlacer
from doppler.testing import VirtualServer
from doppler.testing.servers import HANG, Fault

MACHINE = dp.Topology.preset("p100x4")
NOISE = dp.Noise(exec_sigma=0.03, transfer_sigma=0.03)
BAD, RANDOM, BROKEN, HANGING = 0.02, 0.02, 0.05, 0.05  # requests; runs; assignments, twice
CHANGE_EVERY, RESTART_EVERY = 1500, 2500  # requests
EVALUATIONS = 4000  # of search on the machine as it is
NEAR = 1.1  # times what search finds on the machine as it is
ERRORS = (EngineError("lost"), MemoryError("full"), ZeroDivisionError("odd"), KeyError("gone"))
CHANGES = {  # of the place that the incumbent uses most
    "device 2x slower": ("device", 2.0),
    "device 5x slower": ("device", 5.0),
    "link 3x slower": ("link", 3.0),
}
SETTLE, LONGEST = 300, 1500  # requests before a change, and at most after it
Row = dict[str, Any]


def work() -> dp.Graph:
    """A graph that four devices share."""
    return dp.shard(dp.programs.chainmm(size=4000, dtype="float32"), parts=4)


def slower(topology: dp.Topology, kind: str, number: int, factor: float) -> dp.Topology:
    """The machine with one device or link slowed down by a factor."""
    devices, links = list(topology.devices), list(topology.links)
    if kind == "device":
        rates = {name: rate / factor for name, rate in devices[number].flops_per_s.items()}
        speed = devices[number].memory_bytes_per_s / factor
        devices[number] = replace(devices[number], flops_per_s=rates, memory_bytes_per_s=speed)
    else:
        link = links[number]
        links[number] = replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
            latency_s=link.latency_s * factor,
        )
    return replace(topology, devices=tuple(devices), links=tuple(links))


class Truth:
    """The machine as it is, without noise: what assignments take, and what search finds."""

    def __init__(self, graph: dp.Graph, topology: dp.Topology) -> None:
        self.topology, self._graph = topology, graph
        self._simulator = dp.Simulator(topology)
        placer = AnnealingPlacer(SearchConfig(evaluations=EVALUATIONS, chains=1))
        self.best_s = self.seconds(placer.place(Problem(graph, topology), seed=0))

    def seconds(self, assignment: dp.Assignment) -> float:
        """The makespan of an assignment."""
        return self._simulator.run(self._graph, assignment).makespan_s


@dataclass
class Seen:
    """What happened in a run, as far as promises say something of it."""

    requests: int = 0
    bad: int = 0
    bad_that_ran: int = 0
    lost: int = 0
    lost_too_early: int = 0
    over_share: int = 0
    over_slowdown: int = 0
    forgotten: int = 0
    promoted: int = 0
    false: int = 0
    raced: int = 0
    near: int = 0
    longest_idle: int = 0
    changes: int = 0
    restarts: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Chaos:
    """One run: requests with all that may go wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.graph, self.seed, self.rng = work(), seed, np.random.default_rng(seed)
        self.truth, self.seen = Truth(self.graph, MACHINE), Seen()
        self.server = VirtualServer(MACHINE, NOISE, fault=self._fault, seed=seed)
        self.state, self.failed_runs = folder / f"chaos-{seed}.json", 0
        self.start = dp.place(self.graph, MACHINE, "critical-path")
        self.online, self._idle = self._serving(), 0

    def _serving(self) -> OnlinePlacer:
        config = dp.OnlineConfig(seed=self.seed, save_every=50)
        return OnlinePlacer(
            self.graph, self.server, self.start, config, state=self.state, clock=self.server.clock
        )

    def _fault(self, devices: IntArray) -> Fault:
        """Some assignments fail always, or hang; but never those that served at first."""
        lot = int(digest(devices), 16) % 1000 / 1000
        known = np.array_equal(devices, self.start.devices) or len(set(devices[devices >= 0])) == 1
        broken = not known and lot < BROKEN + HANGING
        if not broken and self.rng.random() >= RANDOM:
            return None
        self.failed_runs += 1
        if broken and lot < HANGING:
            return HANG
        return ERRORS[int(self.rng.integers(len(ERRORS)))]

    def run(self, requests: int) -> Seen:
        """Serve requests, and what was seen."""
        for number in range(1, requests + 1):
            if number % CHANGE_EVERY == 0:
                self._change()
            if number % RESTART_EVERY == 0:
                self._restart(kill=bool(self.rng.random() < 0.5))
            self._request(bad=bool(self.rng.random() < BAD))
        status = self.online.status()
        self.seen.raced += status.promoted + status.dropped
        self.seen.counts = {**status.faults, "noticed changes": status.changes}
        return self.seen

    def _request(self, *, bad: bool) -> None:
        seen, online, before = self.seen, self.online, self.online.incumbent
        runs, self.failed_runs = self.server.runs, 0
        explored, promoted = online.status().explored, online.status().promoted
        mean_s = online.status().incumbent_s
        seen.requests += 1
        try:
            online.serve({"bad": 1} if bad else None)
        except GraphError:
            seen.bad += 1
            seen.bad_that_ran += self.server.runs != runs or not bad
            seen.bad_that_ran += online.incumbent != before
            return
        except Exception:
            seen.lost += 1
            seen.lost_too_early += self.failed_runs < 3
            return
        self._check(mean_s)
        status = online.status()
        self._idle = 0 if status.explored > explored else self._idle + 1
        seen.longest_idle = max(seen.longest_idle, self._idle)
        now_s = self.truth.seconds(online.incumbent)
        seen.near += now_s <= NEAR * self.truth.best_s
        if status.promoted > promoted:
            seen.promoted += 1
            seen.false += now_s > self.truth.seconds(before)

    def _check(self, mean_s: float) -> None:
        exploration, config = self.online._exploration, self.online.config
        total = exploration.requests + exploration.lost
        self.seen.over_share += exploration.explored > config.explore * total + 1e-9
        longest_s = config.drop * max(mean_s, exploration.incumbent.mean_s) + config.grace_s
        over_s = exploration.extra_s - config.slowdown * exploration.served_s
        if over_s > 0 and self._over_s == 0:  # the one that exceeds it, by a deadline at most
            self.seen.over_slowdown += over_s > longest_s
        self._over_s = max(over_s, 0.0)

    _over_s = 0.0

    def _change(self) -> None:
        """Another machine: one place is slower, or all are as they were."""
        self.seen.changes += 1
        if self.truth.topology is not MACHINE and self.rng.random() < 0.5:
            self.truth = Truth(self.graph, MACHINE)
        else:
            kind = ("device", "link")[int(self.rng.integers(2))]
            count = MACHINE.num_devices if kind == "device" else MACHINE.num_links
            number, factor = int(self.rng.integers(count)), float(self.rng.uniform(1.5, 5.0))
            self.truth = Truth(self.graph, slower(MACHINE, kind, number, factor))
        self.server.truth = self.truth.topology

    def _restart(self, *, kill: bool) -> None:
        self.seen.restarts += 1
        status = self.online.status()
        self.seen.raced += status.promoted + status.dropped
        if kill and self.state.exists():
            saved = json.loads(self.state.read_text())["exploration"]
            expected = dp.Assignment(np.array(saved["incumbent"])).devices
            raced = saved["promoted"] + saved["dropped"]
        else:
            self.online.close()
            expected, raced = self.online.incumbent.devices, status.promoted + status.dropped
        self.online = self._serving()
        self.seen.raced -= raced  # they are in the state, and counted at the end
        self.seen.forgotten += not np.array_equal(self.online.incumbent.devices, expected)


def chaos(seed: int, requests: int) -> Row:
    """One run, as a row of results."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Chaos(seed, Path(folder)).run(requests)
    return {"table": "chaos", "seed": seed} | vars(seen)


def drift(name: str, seed: int) -> Row:
    """Requests until serving is near what search finds, after a change and after its end."""
    graph = work()
    server = VirtualServer(MACHINE, NOISE, seed=seed)
    start, config = dp.place(graph, MACHINE, "critical-path"), dp.OnlineConfig(seed=seed)
    online = OnlinePlacer(graph, server, start, config, clock=server.clock)
    for _ in range(SETTLE):
        trace = online.serve().trace
    kind, factor = CHANGES[name]
    used = trace.busy_s() if kind == "device" else np.bincount(trace.link[trace.link >= 0])
    slow = Truth(graph, slower(MACHINE, kind, int(np.argmax(used)), factor))
    before = slow.seconds(online.incumbent) / slow.best_s
    there = _until_near(online, server, slow)
    for _ in range(SETTLE):
        online.serve()
    status = online.status()
    back = _until_near(online, server, Truth(graph, MACHINE))
    row = {"table": "drift", "change": name, "seed": seed, "before": before, "there": there}
    return row | {"back": back, "noticed": status.changes, "extra": status.extra}


def _until_near(online: OnlinePlacer, server: VirtualServer, truth: Truth) -> int | None:
    server.truth = truth.topology
    for number in range(LONGEST):
        if truth.seconds(online.incumbent) <= NEAR * truth.best_s:
            return number
        online.serve()
    return None


def promises(rows: list[Row]) -> Iterator[tuple[str, str, bool]]:
    """A promise, what was seen, and whether it was kept; over all runs."""
    total = {key: sum(row[key] for row in rows) for key, x in rows[0].items() if type(x) is int}
    yield (
        "a bad request is the caller's error: nothing runs, the incumbent stays",
        f"{total['bad_that_ran']} of {total['bad']}",
        total["bad_that_ran"] == 0,
    )
    yield (
        "a request fails only after three runs of it failed",
        f"{total['lost_too_early']} of {total['requests']}, {total['lost']} lost",
        total["lost_too_early"] == 0,
    )
    yield (
        "candidates serve at most `explore` of the requests",
        f"exceeded {total['over_share']} times",
        total["over_share"] == 0,
    )
    yield (
        "exploring adds at most `slowdown`, and one deadline",
        f"exceeded {total['over_slowdown']} times",
        total["over_slowdown"] == 0,
    )
    rate = total["false"] / max(total["raced"], 1)
    yield (
        "at most 5 % of races are won by a slower one",
        f"{total['false']} of {total['raced']} ({100 * rate:.1f} %)",
        rate <= 0.05,
    )
    idle = max(row["longest_idle"] for row in rows)
    yield "exploring goes on: a candidate in every 1,000 requests", f"{idle} without", idle <= 1000
    yield (
        "a restart, or a kill, resumes from the state",
        f"{total['forgotten']} of {total['restarts']} forgot",
        total["forgotten"] == 0,
    )


def show(paths: list[Path]) -> None:
    """Print the tables."""
    rows = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    runs = [row for row in rows if row["table"] == "chaos"]
    if runs:
        count, seeds = sum(row["requests"] for row in runs), len(runs)
        print(f"\nPromises, over {count:,} requests with {seeds} seeds\n")
        print("| promise | seen | kept |\n|---|---|---|")
        for promise, seen, kept in promises(runs):
            print(f"| {promise} | {seen} | {'yes' if kept else '**no**'} |")
        near = sum(row["near"] for row in runs) / max(
            sum(r["requests"] - r["bad"] for r in runs), 1
        )
        changes = sum(row["changes"] for row in runs)
        print(f"\nThe machine changed {changes} times; {100 * near:.0f} % of the requests ", end="")
        print("were served within 10 % of what search finds on the machine as it is.")
    changed = [row for row in rows if row["table"] == "drift"]
    if changed:
        print("\nRequests until within 10 % of what search finds on the machine as it is\n")
        print("| change | seeds | at first | there: median | most | back: median | most |")
        print("|---|--:|--:|--:|--:|--:|--:|")
    for name in dict.fromkeys(row["change"] for row in changed):
        own = [row for row in changed if row["change"] == name]
        first = np.median([row["before"] for row in own])
        cells = [f"{x:.0f}" for key in ("there", "back") for x in _median_and_most(own, key)]
        print(f"| {name} | {len(own)} | {first:.2f} × | {' | '.join(cells)} |")


def _median_and_most(rows: list[Row], key: str) -> tuple[float, float]:
    found = [LONGEST if row[key] is None else row[key] for row in rows]
    return float(np.median(found)), max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("tables", nargs="*", default=["chaos", "drift"], help="chaos, drift")
    new.add_argument("--requests", type=int, default=5000, help="of each seed")
    new.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    new.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "chaos.jsonl")
    shown = verbs.add_parser("show")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        warm_up_search()
        logging.getLogger("doppler").setLevel(logging.CRITICAL)
        with args.results.open("a") as file:
            for seed in args.seeds:
                if "chaos" in args.tables:
                    file.write(json.dumps(chaos(seed, args.requests), default=int) + "\n")
                for name in CHANGES if "drift" in args.tables else ():
                    file.write(json.dumps(drift(name, seed), default=float) + "\n")
                file.flush()
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
