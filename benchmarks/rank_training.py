"""Pretraining by two processes against one: updates per second, and that both learn the same.

    python benchmarks/rank_training.py run [--ranks 2] [--updates 24] [--problems-per-step 4]

Each process computes on one thread. Where other programs use the cores, the time of a process says
little; so seconds of the processor are compared as well: those that one process takes for an update
against those of the rank that takes longest, which is the time of an update on idle cores.
"""

import argparse
import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import tables
import torch
import torch.distributed as dist
from tables import Table

from doppler.base.arrays import FloatArray
from doppler.datasets.recipe import Recipe
from doppler.engine.ranks.group import Group
from doppler.runs.run import warm_up
from doppler.training.api import pretraining
from doppler.training.presets import PRESETS
from doppler.training.trainer import Trainer

PROBLEMS = 48


class Trained(NamedTuple):
    """What one rank saw."""

    wall_s: FloatArray  # (U,) of each update
    cpu_s: FloatArray
    weights: bytes


def train(args: argparse.Namespace, group: Group | None) -> Trained:
    """Make some updates of the second stage of a pretraining."""
    torch.set_num_threads(1)
    config = replace(
        PRESETS["pretrain"],
        stages=("sim",),
        threads=1,
        problems_per_step=args.problems_per_step,
    )
    manifest = pretraining(Recipe(problems=PROBLEMS, validation=0), config)
    warm_up(manifest)
    trainer = Trainer(manifest.pairs, manifest.config, group=group)
    times = [(perf_counter(), process_time())]
    for _ in islice(trainer.run(), args.updates):
        times.append((perf_counter(), process_time()))
    wall_s, cpu_s = np.diff(np.array(times), axis=0).T
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.policy.parameters())
    return Trained(wall_s, cpu_s, weights)


def ranks(count: int, args: argparse.Namespace) -> list[Trained]:
    """What each of `count` processes saw."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(count):
            if (pid := os.fork()) == 0:
                group = None
                if count > 1:
                    store = dist.FileStore(str(folder / "store"), count)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
                    group = Group(600.0)
                found = train(args, group)
                (folder / str(rank)).write_bytes(pickle.dumps(tuple(found)))
                if group is not None:
                    group.close()
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        return [Trained(*pickle.loads((folder / str(r)).read_bytes())) for r in range(count)]


def updates(args: argparse.Namespace) -> Iterator[Table]:
    """One process against several."""
    (one,) = ranks(1, args)
    several, rows = ranks(args.ranks, args), []
    slowest = np.max([each.cpu_s for each in several], axis=0)
    for what, alone, many in (
        ("seconds", one.wall_s.sum(), several[0].wall_s.sum()),
        ("seconds of the processor, of the slowest rank", one.cpu_s.sum(), slowest.sum()),
    ):
        rows.append([what, f"{alone:.2f}", f"{many:.2f}", f"{alone / many:.2f}×"])
    same = all(each.weights == one.weights for each in several)
    yield Table(
        f"{args.ranks} of {args.problems_per_step}",
        f"{args.updates} updates from {args.problems_per_step} problems each",
        ["", "one process", f"{args.ranks} processes", "speed-up"],
        rows,
        f"Weights after that: {'the same, bit for bit' if same else 'NOT the same'}.",
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--problems-per-step", type=int, default=4)


def main() -> None:
    tables.main(__doc__, {"updates": updates}, options)


if __name__ == "__main__":
    main()
