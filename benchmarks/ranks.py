"""Two processes against one with two devices: what a tensor that crosses costs beyond its copy.

    python benchmarks/ranks.py [--hops N] [--bytes B …] [--repeats R] [--mode dynamic|fixed]

A chain of additions goes to and fro between two CPU devices, so that every result crosses and
nothing else runs meanwhile. The same chain runs in one process with two devices, and in two
processes over gloo; a second chain stays on one device, and shows what a local task costs in each.
Printed are microseconds per hop and their difference.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch.distributed as dist

import doppler as dp
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.programs import ProgramBuilder
from doppler.scheduler.choose import MODES

SIZES = (1 << 10, 1 << 16, 1 << 20)


def chain(hops: int, size: int) -> dp.Graph:
    """`hops` additions in a row, of `size` bytes each."""
    builder = ProgramBuilder("chain")
    value = builder.input("x", (size // 4,), dtype="float32")
    one = builder.input("one", (size // 4,), dtype="float32")
    for _ in range(hops):
        value = value + one
    return dp.shard(builder.build(value), parts=1)


def per_hop_us(engine: Engine, graph: dp.Graph, devices: list[int], repeats: int) -> float:
    """The median run, by vertex."""
    assigned = np.full(graph.num_vertices, -1)
    assigned[graph.assigned] = np.resize(devices, len(graph.assigned))
    seconds = engine.makespans(graph, dp.Assignment(assigned), repeats=repeats, warm_up=3)
    return float(np.median(seconds)) / len(graph.assigned) * 1e6


def rank_main(folder: Path, rank: int, args: argparse.Namespace) -> None:
    """One of the two processes."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group, config = Group(), EngineConfig(mode=args.mode)
    found = []
    for size in args.bytes:
        graph = chain(args.hops, size)
        engine = RankEngine("cpu2", group, config)
        found.append([per_hop_us(engine, graph, each, args.repeats) for each in ([0, 1], [0])])
        Engine.close(engine)
    if rank == 0:
        np.save(folder / "found.npy", np.array(found))
    group.close()
    os._exit(0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hops", type=int, default=200)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--mode", choices=MODES, default="dynamic")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                rank_main(folder, rank, args)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        ranks = np.load(folder / "found.npy")
    print("µs per hop, mode", args.mode)
    print("| bytes | | one process | two processes | more |")
    print("|---|---|---|---|---|")
    for row, size in enumerate(args.bytes):
        graph = chain(args.hops, size)
        with Engine("cpu2", "cpu", EngineConfig(mode=args.mode)) as engine:
            for column, (what, devices) in enumerate({"crosses": [0, 1], "stays": [0]}.items()):
                one, two = per_hop_us(engine, graph, devices, args.repeats), ranks[row, column]
                print(f"| {size:,} | {what} | {one:.1f} | {two:.1f} | {two - one:.1f} |")


if __name__ == "__main__":
    main()
