"""Training that takes a moment."""

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from doppler.graph import Graph
from doppler.policies.dual import PolicyConfig
from doppler.programs import random_dag
from doppler.runs.manifest import Manifest
from doppler.runs.run import Run, resume_run, start_run
from doppler.topology import Topology
from doppler.training.api import make_manifest
from doppler.training.config import ExpertConfig, ImitationConfig, ReinforceConfig, TrainConfig

LABEL = "random-dag-12@p100x4"
CONFIG = TrainConfig(  # from nothing, three updates in each stage
    stages=("imitation", "sim"),
    policy=PolicyConfig(width=4, rounds=1),
    imitation=ImitationConfig(episodes=12, batch=4),
    sim=ReinforceConfig(
        episodes=12, batch=4, expert=ExpertConfig(samples=2, lessons=2, pool=4, moves=10)
    ),
    threads=1,
)


def graph(seed: int = 0) -> Graph:
    return random_dag(vertices=12, depth=4, seed=seed)


def manifest(config: TrainConfig = CONFIG) -> Manifest:
    return make_manifest([graph()], [Topology.preset("p100x4")], config)


def started(path: Path, config: TrainConfig = CONFIG, **options: Any) -> Run:
    return start_run(manifest(config), path, **options)


def trained(path: Path, config: TrainConfig = CONFIG, *, updates: int = 99) -> Path:
    """A directory with a run of a limited number of updates, which is trained once and copied."""
    shutil.copytree(_trained_once(config, updates), path)
    return path


@cache
def _trained_once(config: TrainConfig, updates: int) -> Path:
    path = Path(_FOLDER.name) / str(next(_numbers))
    with started(path, config) as run:
        take(run, updates)
    return path


_FOLDER = tempfile.TemporaryDirectory(prefix="doppler-tests-")
_numbers = itertools.count()


def resumed(path: Path, *, updates: int = 99) -> Path:
    """The same, going on."""
    with resume_run(path) as run:
        take(run, updates)
    return path


def take(run: Run, updates: int) -> None:
    for done, _ in enumerate(run, start=1):
        if done == updates:
            break


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics, but for how long things took."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    for name in ("state.safetensors", "policy.safetensors"):
        mine, theirs = load_file(one / name), load_file(other / name)
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            assert torch.equal(tensor, theirs[key]), key
    for kind in ("assignment", "trace"):
        name = f"best/{LABEL}.{kind}.json"
        assert (one / name).read_bytes() == (other / name).read_bytes()


def press(run: Run, when: Callable[[], None]) -> None:
    """Train, and do something after the second update."""
    for progress in run:
        if progress.update == 2:
            when()
