"""`doppler.train`: training in one call."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from doppler.assignment import Assignment, read_assignment
from doppler.base.progress import report
from doppler.datasets.recipe import Recipe
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.opening import open_group
from doppler.errors import ConfigError, Interrupted
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.placers.learned.trained import Trained, placer_of
from doppler.policies.arrays.checkpoint import shipped_bytes, shipped_policy
from doppler.policies.checkpoint import load_any, to_torch
from doppler.policies.configs import RivalConfig, for_devices
from doppler.policies.trainable import TrainablePolicy
from doppler.resolve import as_graph, as_topology
from doppler.runs.directory import BEST, BEST_FILES
from doppler.runs.manifest import Manifest, distinct
from doppler.runs.run import (
    MakeExecutor,
    Run,
    check_device,
    follow,
    resume_run,
    start_run,
    stopping,
    warm_up,
)
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.topology.topology import Topology
from doppler.training.config import AUTO, TrainConfig
from doppler.training.real import faster_mode, mode_of, predicted_by_mode
from doppler.training.starting import NOTHING, PRETRAINED, policy_file, usual_start
from doppler.training.trainer import Trainer, TrainingProgress

log = logging.getLogger(__name__)

PATIENCE_S = 3600.0  # that ranks wait for one another: the first also validates the policy

Start = Trained | str | Path  # a trained placer, a run or a checkpoint; or PRETRAINED or NOTHING


def train(
    graph: Graph | str | Path | Sequence[Graph | str | Path],
    topology: Topology | str | Path | Sequence[Topology | str | Path],
    config: TrainConfig | None = None,
    *,
    out: str | Path | None = None,
    start: Start | None = None,
    executor: Executor | None = None,
) -> Trained:
    """A placer trained on every graph on every topology, given as such or by name.

    `out` is a new directory for the run: checkpoints, metrics and the best assignments. `start` is
    what training starts from: a trained placer, a run, a checkpoint, "pretrained" or "nothing";
    a policy's shape replaces the config's. Without one it is the policy that comes with doppler
    where the config allows that, otherwise nothing: see `usual_start`. Where the config names no
    stages, they are `sim`, and from nothing `imitation` before it. Stage `real` runs assignments
    on `executor`; without one, on an engine with the config's backend. Ctrl-C saves first.

    Where `torch.distributed` is initialised, every rank calls this alike: the problems of a step
    are shared out, Stage III runs on the devices of all, and the first rank writes the directory.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> placer = dp.train(graph, "p100x4", dp.TrainConfig(stages=("sim",), seconds=1))
    >>> dp.place(graph, "p100x4", placer).placer
    'doppler'
    """
    config = config or TrainConfig()
    if start is None:
        start = usual_start(config).start
    if start == NOTHING:
        start = None
    policy = None if start is None else starting_policy(start)
    starts = [] if start is None else starting_assignments(start)
    manifest = make_manifest(
        [as_graph(each) for each in _several(graph)],
        [as_topology(each) for each in _several(topology)],
        config,
        policy=policy,
        command="doppler.train",
        parent=None if start is None else describe(start),
        starts=starts,
        executor=executor,
    )
    with ExitStack() as stack:
        group = stack.enter_context(open_group(PATIENCE_S))
        make = executors(stack, executor, group)
        if out is not None and group is not None and group.rank:
            return placer_of(follow(group, make))
        given: dict[str, Any] = {"policy": policy, "starts": starts, "group": group}
        if out is not None:
            return finish(start_run(manifest, Path(out), make_executor=make, **given))
        check_device(manifest.config.device)
        warm_up(manifest)
        trainer = Trainer(manifest.pairs, manifest.config, executor=make(manifest), **given)
        for progress in trainer.run():
            _report(progress)
    return placer_of(trainer.policy)


def _several(values: Any) -> Sequence[Any]:
    """The values, or the only one."""
    several = isinstance(values, Sequence) and not isinstance(values, str)
    return values if several else [values]


def resume(
    out: str | Path,
    *,
    seconds: float | None = None,
    episodes: int | None = None,
    executor: Executor | None = None,
) -> Trained:
    """The placer of a run, trained to its end; or for more seconds or episodes.

    Those count from where the run was saved, also where it had come to its end. The schedules of
    the last stage are then stretched over the whole (see `Trainer.extend`).
    """
    with ExitStack() as stack:
        group = stack.enter_context(open_group(PATIENCE_S))
        make = executors(stack, executor, group)
        if group is not None and group.rank:
            return placer_of(follow(group, make))
        run = resume_run(
            Path(out),
            seconds=seconds,
            episodes=episodes,
            command="doppler.training.api.resume",
            make_executor=make,
            group=group,
        )
        return finish(run)


def finish(run: Run) -> Trained:
    """The placer of a run that is trained to its end."""
    try:
        with stopping(run.stop), run:
            for progress in run:
                _report(progress)
    except Interrupted:
        raise KeyboardInterrupt from None
    return placer_of(run.trainer.policy)


def _report(progress: TrainingProgress) -> None:
    report(f"training, stage {progress.stage}", int(1000 * min(progress.share, 1.0)), 1000)


def make_manifest(
    graphs: Sequence[Graph],
    topologies: Sequence[Topology],
    config: TrainConfig,
    *,
    policy: TrainablePolicy | None = None,
    command: str = "",
    parent: dict[str, Any] | None = None,
    starts: Sequence[Assignment] = (),
    executor: Executor | None = None,
) -> Manifest:
    """What a run is started with: names made distinct, stages, shape of the policy, mode of Stage
    III.

    Without a policy to start from, it starts from nothing. Without an executor Stage III has an
    engine, whose mode is predicted from `starts` if the config leaves it open.
    """
    config = config.with_stages(from_nothing=policy is None)
    if not graphs or not topologies:
        raise ConfigError("training needs at least one graph and one topology")
    if "real" in config.stages and len(topologies) > 1:
        raise ConfigError(
            f"stage `real` runs on one machine, not on {len(topologies)} topologies",
            hint="give it the topology of the machine it runs on",
        )
    if config.stages[0] == "real" and policy is None:
        raise ConfigError(
            "stage `real` begins with a policy that has learned something",
            hint="start from the policy that comes with doppler (--from pretrained) or of a run "
            "(--from runs/x), or put imitation and sim before it (--stages imitation,sim,real)",
        )
    shape = config.policy if policy is None else policy.config
    config = replace(config, policy=for_devices(shape, topologies[0].num_devices))
    if "real" in config.stages:
        mode = mode_of(executor, config.real)
        if executor is None and config.real.mode == AUTO:
            predicted_s = predicted_by_mode(graphs, topologies[0], starts, config)
            mode = faster_mode(predicted_s)
            log.info(
                "stage `real` runs in mode %s: predicted are %.4g s in mode dynamic, %.4g s in "
                "mode fixed",
                *(mode, predicted_s[DYNAMIC], predicted_s[FIXED]),
            )
        config = replace(config, real=replace(config.real, mode=mode))
    return Manifest(
        config=config,
        graphs=distinct(graphs),
        topologies=distinct(topologies),
        command=command,
        parent=parent,
    )


def pretraining(
    recipe: Recipe, config: TrainConfig, *, start: Start | None = None, command: str = ""
) -> Manifest:
    """What a pretraining is started with: the problems that the recipe draws.

    Without a `start`, it starts from nothing.
    """
    config = config.with_stages(from_nothing=start is None)
    if start is not None:
        config = replace(config, policy=starting_policy(start).config)
    if isinstance(config.policy, RivalConfig):
        raise ConfigError(
            f"policy `{config.policy.kind}` cannot be pretrained: it is for one number of devices",
            hint="train it on one machine: dop train",
        )
    recipe, drawn = recipe.draw()
    return Manifest(
        config=config,
        recipe=recipe,
        problems=drawn,
        command=command,
        parent=None if start is None else describe(start),
    )


def executors(
    stack: ExitStack, executor: Executor | None = None, group: Group | None = None
) -> MakeExecutor:
    """What gives a run its executor: this one, or an engine that is closed with the stack.

    The engine has the devices of this rank of the group, if there is one.
    """

    def make(manifest: Manifest) -> Executor | None:
        if executor is not None or "real" not in manifest.config.stages:
            return executor
        from doppler.engine.config import EngineConfig
        from doppler.engine.ranks.opening import make_engine

        config = manifest.config
        engine = make_engine(
            manifest.topologies[0],
            config.real.backend,
            EngineConfig(
                strategy=config.strategy,
                mode=mode_of(None, config.real),
                limit_memory=config.limit_memory,
                timeout_s=config.real.timeout_s,
            ),
            group,
        )
        stack.enter_context(engine)
        for graph in manifest.graphs:  # a graph that it cannot run is a mistake best known now
            engine.load(graph)
        return engine

    return make


def starting_assignments(start: Start) -> list[Assignment]:
    """The best assignments of a run to start from."""
    if not isinstance(start, (str, Path)) or start == PRETRAINED or not Path(start).is_dir():
        return []
    return [read_assignment(file) for file in sorted((Path(start) / BEST).glob(BEST_FILES))]


def starting_policy(start: Start) -> TrainablePolicy:
    """The policy to start from: a copy."""
    if start == PRETRAINED:
        return to_torch(shipped_policy())
    if isinstance(start, (str, Path)):
        return load_any(policy_file(start))
    return deepcopy(start.policy)


def describe(start: Start) -> dict[str, Any]:
    """JSON values: where a policy to start from is."""
    if not isinstance(start, (str, Path)):
        return {"path": None}
    if start == PRETRAINED:
        return {"path": PRETRAINED, "digest": _digest(shipped_bytes())}
    file = policy_file(start)
    return {"path": str(file.resolve()), "digest": _digest(file.read_bytes())}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
