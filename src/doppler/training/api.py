"""`doppler.train`: training in one call."""

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from doppler.errors import ConfigError, Interrupted
from doppler.graph.graph import Graph
from doppler.placers.doppler import POLICY_FILE, DopplerPlacer
from doppler.policies.checkpoint import load_policy
from doppler.policies.dual import DualPolicy
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.manifest import Manifest, distinct
from doppler.training.run import Run, check_device, resume_run, start_run, stopping, warm_up
from doppler.training.trainer import Trainer

Start = DopplerPlacer | str | Path  # a trained placer, a run or a checkpoint


def train(
    graph: Graph | Sequence[Graph],
    topology: Topology | Sequence[Topology],
    config: TrainConfig | None = None,
    *,
    out: str | Path | None = None,
    start: Start | None = None,
) -> DopplerPlacer:
    """A placer trained on every graph on every topology.

    `out` is a new directory for the run: checkpoints, metrics and the best assignments. `start` is
    what to go on from; its policy's shape replaces the config's. Ctrl-C saves first.
    """
    policy = None if start is None else starting_policy(start)
    manifest = make_manifest(
        [graph] if isinstance(graph, Graph) else graph,
        [topology] if isinstance(topology, Topology) else topology,
        config or TrainConfig(),
        policy=policy,
        command="doppler.train",
        parent=None if start is None else describe(start),
    )
    if out is not None:
        return finish(start_run(manifest, Path(out), policy=policy))
    check_device(manifest.config.device)
    warm_up(manifest)
    trainer = Trainer(manifest.pairs, manifest.config, policy=policy)
    for _ in trainer.run():
        pass
    return DopplerPlacer(trainer.policy)


def resume(out: str | Path) -> DopplerPlacer:
    """The placer of a run, trained to its end."""
    return finish(resume_run(Path(out)))


def finish(run: Run) -> DopplerPlacer:
    """The placer of a run that is trained to its end."""
    try:
        with stopping(run.stop), run:
            for _ in run:
                pass
    except Interrupted:
        raise KeyboardInterrupt from None
    return DopplerPlacer(run.trainer.policy)


def make_manifest(
    graphs: Sequence[Graph],
    topologies: Sequence[Topology],
    config: TrainConfig,
    *,
    policy: DualPolicy | None = None,
    command: str = "",
    parent: dict[str, Any] | None = None,
) -> Manifest:
    """What a run is started with: names made distinct, and the shape of a policy to go on from."""
    if not graphs or not topologies:
        raise ConfigError("training needs at least one graph and one topology")
    return Manifest(
        config=config if policy is None else replace(config, policy=policy.config),
        graphs=distinct(graphs),
        topologies=distinct(topologies),
        command=command,
        parent=parent,
    )


def starting_policy(start: Start) -> DualPolicy:
    """The policy to go on from: a copy."""
    return deepcopy(start.policy) if isinstance(start, DopplerPlacer) else load_policy(_file(start))


def describe(start: Start) -> dict[str, Any]:
    """JSON values: where a policy to go on from is."""
    if isinstance(start, DopplerPlacer):
        return {"path": None}
    file = _file(start)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"path": str(file.resolve()), "digest": f"sha256:{digest}"}


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path / POLICY_FILE if path.is_dir() else path
