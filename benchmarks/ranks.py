"""Two processes against one with two devices: what a tensor that crosses costs beyond its copy.

    python benchmarks/ranks.py run [--hops N] [--bytes B …] [--rounds R] [--mode dynamic|fixed]

A chain of additions goes to and fro between two CPU devices, so that every result crosses and
nothing else runs meanwhile. The same chain runs in one process with two devices, and in two
processes over gloo; a second chain stays on one device, and shows what a local task costs in each.
Beside them, the copy alone: tensors go to and fro between the same processes by gloo's own send and
receive, with receives posted before, as the engine has them. Rounds of all of these take turns.

Measured are microseconds per hop, the 10th percentile of all runs, which other programs disturb
least; what two processes take more than one; and how much of that is beyond gloo's copy.
"""

import argparse
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import tables
import torch
import torch.distributed as dist
from tables import Table

import doppler as dp
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.programs import ProgramBuilder
from doppler.scheduler.choose import MODES

SIZES = (1 << 10, 1 << 16, 1 << 20)
CHAINS = {"crosses": [0, 1], "stays": [0]}
RUNS = 10  # of each chain in a round


def chain(hops: int, size: int) -> dp.Graph:
    """`hops` additions in a row, of `size` bytes each."""
    builder = ProgramBuilder("chain")
    value = builder.input("x", (size // 4,), dtype="float32")
    one = builder.input("one", (size // 4,), dtype="float32")
    for _ in range(hops):
        value = value + one
    return dp.shard(builder.build(value), parts=1)


def runs_us(engine: Engine, graph: dp.Graph, devices: list[int], repeats: int) -> list[float]:
    """Microseconds per vertex of each run."""
    assigned = np.full(graph.num_vertices, -1)
    assigned[graph.assigned] = np.resize(devices, len(graph.assigned))
    seconds = engine.makespans(graph, dp.Assignment(assigned), repeats=repeats, warm_up=2)
    return [each / len(graph.assigned) * 1e6 for each in seconds.tolist()]


def copies_us(rank: int, hops: int, size: int, repeats: int) -> list[float]:
    """Microseconds per copy of each run of as many copies to and fro, by gloo alone."""
    found, peer = [], 1 - rank
    value = torch.zeros(size, dtype=torch.uint8)
    rooms = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    for _ in range(repeats + 2):
        works: list[Any] = [
            dist.irecv(rooms[hop // 2 % 2], src=peer, tag=hop)
            for hop in range(hops)
            if hop % 2 != rank
        ]
        works.reverse()
        dist.barrier()
        began = perf_counter()
        for hop in range(hops):
            if hop % 2 == rank:
                dist.send(value, dst=peer, tag=hop)
            else:
                works.pop().wait()
        found.append((perf_counter() - began) / hops * 1e6)
    return found[2:]


def rank_main(folder: Path, rank: int, args: argparse.Namespace) -> None:
    """One of the two processes; the first also runs the chains by itself."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group, config = Group(), EngineConfig(mode=args.mode)
    found: dict[str, dict[str, list[float]]] = {}
    for size in args.bytes:
        graph, rows = chain(args.hops, size), found.setdefault(str(size), defaultdict(list))
        ranks = RankEngine("cpu2", group, config)
        for _ in range(args.rounds):
            rows["copy"] += copies_us(rank, args.hops, size, RUNS)
            for what, devices in CHAINS.items():
                rows[f"two {what}"] += runs_us(ranks, graph, devices, RUNS)
                if rank == 0:
                    with Engine("cpu2", "cpu", config) as alone:
                        rows[f"one {what}"] += runs_us(alone, graph, devices, RUNS)
                group.wait_for_all()
        ranks.close()
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    group.close()
    os._exit(0)


def hops(args: argparse.Namespace) -> Iterator[Table]:
    """What a hop costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                rank_main(folder, rank, args)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        found = json.loads((folder / "found.json").read_text())
    rows = []
    for size in args.bytes:
        least = {what: np.percentile(runs, 10) for what, runs in found[str(size)].items()}
        for what in CHAINS:
            one, two = least[f"one {what}"], least[f"two {what}"]
            copy = least["copy"] if what == "crosses" else 0.0
            values = (one, two, two - one, copy, two - one - copy)
            rows.append([f"{size:,}", what, *(f"{value:.1f}" for value in values)])
    yield Table(
        f"hops, {args.mode}",
        f"µs per hop, mode {args.mode}, 10th percentile of {args.rounds * RUNS} runs",
        ["bytes", "", "one process", "two processes", "more", "copy by gloo", "beyond it"],
        rows,
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hops", type=int, default=200)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mode", choices=MODES, default="dynamic")


def main() -> None:
    tables.main(__doc__, {"hops": hops}, options)


if __name__ == "__main__":
    main()
