"""Ranks that are killed, stopped or restarted: what the others say, and whether the next run works.

    python benchmarks/rank_faults.py kill [--times 50] [--ranks 3]
    python benchmarks/rank_faults.py stop [--times 5] [--ranks 3]
    sudo python benchmarks/rank_faults.py cut
    python benchmarks/rank_faults.py restart

`kill` ends one rank by SIGKILL at a random moment, `stop` lets it hang by SIGSTOP; every other rank
must end with an error that names it, and a run after that must work. Printed are the number of
errors of each kind, and the longest time from the signal to the end of the last rank. `cut` takes
down the connection between two hosts that are network namespaces, each with one rank. `restart`
lets torchrun start all ranks again after one of them was killed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import numpy as np
import rank_hosts
import torch.distributed as dist

import doppler as dp
from doppler.engine.config import EngineConfig
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.opening import open_engine
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.errors import EngineError

TIMEOUT_S = 2.0


def problem(ranks: int) -> tuple[dp.Graph, dp.Topology, dp.Assignment]:
    """A graph whose vertices go round the ranks, so that nearly everything crosses."""
    graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=4)
    topology = dp.Topology.uniform(ranks, flops_per_s=1e9, bandwidth_bytes_per_s=1e9)
    return graph, topology, dp.place(graph, topology, "round-robin")


def rank_main(folder: Path, rank: int, ranks: int, repeats: int) -> None:
    """One rank: runs until it is ended, or another is."""
    store = dist.FileStore(str(folder / "store"), ranks)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    group, (graph, topology, assignment) = Group(TIMEOUT_S), problem(ranks)
    try:
        with RankEngine(topology, group, EngineConfig(timeout_s=TIMEOUT_S)) as engine:
            (folder / f"{rank}.began").touch()
            for _ in range(repeats):
                engine.execute(graph, assignment)
        said = "no error"
        group.close()
    except EngineError as error:
        said = error.message
    (folder / f"{rank}.said").write_text(said)
    os._exit(0)


def job(
    ranks: int, how: signal.Signals | None, rng: np.random.Generator
) -> tuple[list[str], float]:
    """What each rank said, and the seconds until all had ended after one got a signal."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(ranks):
            if (pid := os.fork()) == 0:
                rank_main(folder, rank, ranks, 1 if how is None else 1_000_000)
            children.append(pid)
        victim, at = int(rng.integers(ranks)), perf_counter()
        if how is not None:
            while not (folder / f"{victim}.began").exists():
                threading.Event().wait(0.01)
            threading.Event().wait(float(rng.uniform(0.0, 0.5)))
            at = perf_counter()
            os.kill(children[victim], how)
        for rank, pid in enumerate(children):
            if how is None or rank != victim:
                os.waitpid(pid, 0)
        took = perf_counter() - at
        if how is not None:
            os.kill(children[victim], signal.SIGKILL)
            os.waitpid(children[victim], 0)
        files = [folder / f"{rank}.said" for rank in range(ranks)]
        said = [file.read_text() if file.exists() else "" for file in files]
        named = f"rank {victim} on host"
        return [
            text if how is None else ("names it" if named in text else f"does not: {text}")
            for rank, text in enumerate(said)
            if how is None or rank != victim
        ], took


def signals(args: argparse.Namespace) -> None:
    """Send the signal many times, and print what came of it."""
    how = signal.SIGKILL if args.what == "kill" else signal.SIGSTOP
    rng, found, longest = np.random.default_rng(0), Counter[str](), 0.0
    for number in range(args.times):
        said, took = job(args.ranks, how, rng)
        found.update(said)
        longest = max(longest, took)
        if number % 10 == 9:
            found.update(f"next run: {text}" for text in job(args.ranks, None, rng)[0])
    print(f"{how.name} {args.times} times among {args.ranks} ranks, timeout {TIMEOUT_S:g} s:")
    for text, count in sorted(found.items()):
        print(f"  {count} × {text}")
    print(f"  all ended within {longest:.1f} s of the signal")


def cut() -> None:
    """Take down the connection between two hosts, and print what the rank of each says."""
    if reason := rank_hosts.why_not():
        sys.exit(reason)
    with rank_hosts.two_hosts(1000, 1.0), tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                rank_hosts.enter(rank)
                rank_main(folder, rank, 2, 1_000_000)
            children.append(pid)
        while len(list(folder.glob("*.began"))) < 2:
            threading.Event().wait(0.01)
        threading.Event().wait(0.5)
        inside, at = ("ip", "netns", "exec", rank_hosts.SPACES[1]), perf_counter()
        rank_hosts.run(*inside, "ip", "link", "set", "doppler1", "down")
        for pid in children:
            os.waitpid(pid, 0)
        print(f"cut off, timeout {TIMEOUT_S:g} s: both ended within {perf_counter() - at:.1f} s")
        for rank in range(2):
            print(f"  rank {rank}: {(folder / f'{rank}.said').read_text()}")


def restarted() -> None:
    """One rank of those that torchrun starts: the second dies in the first attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    graph, topology, assignment = problem(2)
    if attempt == 0 and os.environ["RANK"] == "1":
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    with open_engine(topology, "cpu", EngineConfig(timeout_s=TIMEOUT_S)) as engine:
        for _ in range(1_000_000 if attempt == 0 else 1):
            found = engine.execute(graph, assignment)
    if os.environ["RANK"] == "0":
        print(f"attempt {attempt} ended: {found.trace.makespan_s * 1e3:.2f} ms")


def restart() -> None:
    """Let torchrun start two ranks, and start them again."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run([*command, __file__, "restarted"], stderr=subprocess.DEVNULL, check=False)
    print(f"torchrun: exit status {done.returncode}")


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("kill", "stop", "cut", "restart", "restarted"))
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3)
    args = parser.parse_args()
    others = {"cut": cut, "restart": restart, "restarted": restarted}
    if args.what in others:
        others[args.what]()
    else:
        signals(args)


if __name__ == "__main__":
    main()
