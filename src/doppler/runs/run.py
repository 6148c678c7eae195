"""Run: training that is logged, saved, and can be stopped and resumed."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Self

import torch

from doppler.assignment import Assignment
from doppler.engine.ranks.group import Group
from doppler.errors import ConfigError, Interrupted
from doppler.executor import Executor
from doppler.graph.builder import GraphBuilder
from doppler.placers.bounds.lower import gap
from doppler.policies.configs import small
from doppler.policies.trainable import TrainablePolicy
from doppler.runs.directory import RunDir, Tally, explained, topology_file
from doppler.runs.manifest import Manifest
from doppler.runs.metrics import (
    MetricsFile,
    Plots,
    Thinned,
    WeightsAndBiases,
    require_wandb,
    scalars_of_gaps,
    tensorboard,
)
from doppler.runs.untrained import place_untrained, write_untrained
from doppler.runs.validation_set import FamilyGap, Pace, ValidationSet, make_validation
from doppler.serving.trials import TrialSummary
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig, check_extension
from doppler.training.config_io import config_to
from doppler.training.trainer import Trainer, TrainingProgress

SAVE_EVERY_S = 30.0
MakeExecutor = Callable[[Manifest], Executor | None]  # for a run's Stage III


@dataclass(frozen=True, slots=True)
class ExerciseResult:
    """The result of a run on one exercise."""

    exercise: str  # graph@topology
    graph: str
    topology: str
    makespan_s: float  # of the best assignment; infinity where none that runs was found
    lower_bound_s: float
    gap: float
    episodes: int  # in all stages
    seconds: float
    assignment: Path
    measured: TrialSummary | None = None  # in Stage III, where `makespan_s` is measured as well
    recalibrated: Path | None = None  # the topology as Stage III measured it


class Run:
    """Trains, and keeps what is learned in a directory.

    >>> with start_run(manifest, Path("runs/x")) as run:
    ...     for progress in run: ...

    When it is left, by the end of training, `stop`, an interrupt or an error between two updates,
    it is saved; if it is left during an update, the last checkpoint stands.
    """

    def __init__(
        self,
        manifest: Manifest,
        directory: RunDir,
        trainer: Trainer,
        tally: Tally,
        *,
        save_every_s: float,
        wandb: bool,
        validation: ValidationSet | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Made by `start_run` or `resume_run`; the directory is the run's from here on."""
        self._clock = clock
        self.manifest, self.directory, self.trainer = manifest, directory, trainer
        self.tally, self.save_every_s = tally, save_every_s
        recipe = manifest.recipe
        # Those that are shown one by one: without variants, or problems that were drawn.
        self.labels = [record.label for record in trainer.records] if recipe is None else []
        self.validation = validation
        self.gaps: tuple[FamilyGap, ...] = ()  # of the last validation
        self._pace = Pace(0.0 if recipe is None else recipe.validate_every_s)
        self.finished = False
        path = directory.path
        plots: list[Plots] = []
        if wandb:
            config = config_to(manifest.config)
            plots.append(WeightsAndBiases(path, manifest.run_id, config))
        with explained(path):
            self._metrics = MetricsFile(path, tally.steps)
            events = tensorboard(path, tally.steps)
        self.has_tensorboard = events is not None
        self._plots = Thinned(plots if events is None else [*plots, events], clock)
        self._stopping = False
        self._between = True  # two updates: what can be saved
        self._broken = False  # the directory cannot be written

    def __iter__(self) -> Iterator[TrainingProgress]:
        """Train; every update is logged and yielded, and a checkpoint is saved at intervals."""
        saved = self._clock()
        with closing(self.trainer.run()) as updates:
            while (progress := self._next(updates)) is not None:
                yield progress
                if self._stopping:
                    raise Interrupted
                if self._clock() - saved >= self.save_every_s:
                    self.save()
                    saved = self._clock()
        self.finished = True

    def _next(self, updates: Iterator[TrainingProgress]) -> TrainingProgress | None:
        """One more update, logged, or None at the end of training."""
        before_s = self.trainer.seconds
        self._between = False
        progress = next(updates, None)
        if progress is not None:
            self._log(progress, progress.seconds - before_s)
        self._between = True
        return progress

    def stop(self) -> None:
        """End training after the update under way, with `Interrupted`."""
        self._stopping = True

    def save(self) -> None:
        """Write a checkpoint."""
        self._broken = True  # unless it comes to the end
        self.directory.save(self.trainer, self.tally, self.manifest)
        self._broken = False

    def close(self) -> None:
        """Close all files as they are."""
        self._metrics.close()
        self._plots.close()
        self.directory.close()

    def results(self) -> list[ExerciseResult]:
        """The results so far, one per exercise."""
        records = self.trainer.records
        return [
            ExerciseResult(
                exercise=record.label,
                graph=record.exercise.graph.name,
                topology=record.exercise.topology.name,
                makespan_s=record.best_s,
                lower_bound_s=record.exercise.bound_s,
                gap=gap(record.best_s, record.exercise.bound_s),
                episodes=self.tally.episodes.get(record.label, 0),
                seconds=self.tally.seconds.get(record.label, 0.0),
                assignment=path,
                measured=record.measured(),
                recalibrated=topology_file(path) if record.is_traced else None,
            )
            for record, path in zip(records, self.directory.best_files(records), strict=True)
        ]

    def validate(self) -> tuple[FamilyGap, ...]:
        """How the policy does now on the validation problems, if there are any."""
        if self.validation is not None:
            self.gaps = self.validation.measure(self.trainer.policy)
        return self.gaps

    def _log(self, progress: TrainingProgress, seconds: float) -> None:
        tally, name = self.tally, progress.exercise
        # Of the problems of one step one is shown, in turn; it stands for all.
        batch: int = getattr(self.manifest.config, progress.stage).batch
        batch *= self.trainer.problems_per_step
        tally.steps += 1
        tally.episodes[name] = tally.episodes.get(name, 0) + batch
        tally.seconds[name] = tally.seconds.get(name, 0.0) + seconds
        gaps: tuple[FamilyGap, ...] = ()
        if self._pace.is_due(progress.seconds, at_the_end=self.trainer.is_finished):
            gaps = self.validate()
        self._broken = True
        with explained(self.directory.path):
            self._metrics.write(tally.steps, progress, gaps)
            if gaps:
                self._plots.send(tally.steps, scalars_of_gaps(gaps))
            if self.manifest.recipe is not None:
                self._plots.log(tally.steps, progress, as_one=True)
            elif name in self.labels:
                self._plots.log(tally.steps, progress)
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._between and not self._broken:
                self.save()
        finally:
            self.close()


def start_run(
    manifest: Manifest,
    path: Path,
    *,
    policy: TrainablePolicy | None = None,
    starts: Sequence[Assignment] = (),
    make_executor: MakeExecutor | None = None,
    save_every_s: float = SAVE_EVERY_S,
    wandb: bool = False,
    clock: Callable[[], float] = monotonic,
    group: Group | None = None,
) -> Run:
    """A new run in an empty directory, from a policy and assignments if there are any.

    The first rank of a `group` calls this, and all others `follow`.
    """
    check_device(manifest.config.device)
    if wandb:
        require_wandb()
    executor = None if make_executor is None else make_executor(manifest)
    directory = RunDir.create(path)
    try:
        warm_up(manifest)
        trainer = Trainer(
            *(manifest.pairs, manifest.config),
            policy=policy,
            executor=executor,
            starts=starts,
            lazy=manifest.recipe is not None,
            clock=clock,
            group=group,
        )
        tally, validation = Tally(), _validation(manifest, path)
        if manifest.recipe is None:
            found_s = place_untrained(trainer.records)
            with explained(path):
                write_untrained(path, found_s)
        directory.save(trainer, tally, manifest)
        directory.write_manifest(manifest)
        _lead(group, manifest, trainer)
        return Run(
            *(manifest, directory, trainer, tally),
            save_every_s=save_every_s,
            wandb=wandb,
            validation=validation,
            clock=clock,
        )
    except BaseException:
        directory.discard()
        raise


def resume_run(
    path: Path,
    *,
    seconds: float | None = None,
    episodes: int | None = None,
    command: str = "",
    make_executor: MakeExecutor | None = None,
    save_every_s: float = SAVE_EVERY_S,
    wandb: bool = False,
    clock: Callable[[], float] = monotonic,
    group: Group | None = None,
) -> Run:
    """The run in a directory, where its checkpoint was taken.

    With `seconds` or `episodes` it trains for that much longer, also where it had come to its end
    (see `Trainer.extend`); its manifest then records that, and the `command`. The first rank of a
    `group` calls this, and all others `follow`.
    """
    check_extension(seconds, episodes)
    if wandb:
        require_wandb()
    directory = RunDir.open(path)
    try:
        manifest = directory.read_manifest()
        check_device(manifest.config.device)
        executor = None if make_executor is None else make_executor(manifest)
        warm_up(manifest)
        lazy = manifest.recipe is not None
        trainer = Trainer(
            *(manifest.pairs, manifest.config),
            executor=executor,
            lazy=lazy,
            clock=clock,
            group=group,
        )
        tally = directory.load(trainer)
        if seconds is not None or episodes is not None:
            trainer.extend(seconds=seconds, episodes=episodes)
            manifest = manifest.extended(trainer.config, steps=tally.steps, command=command)
            directory.write_manifest(manifest)
        _lead(group, manifest, trainer)
        return Run(
            *(manifest, directory, trainer, tally),
            save_every_s=save_every_s,
            wandb=wandb,
            validation=_validation(manifest, path),
            clock=clock,
        )
    except BaseException:
        directory.close()
        raise


def follow(group: Group, make_executor: MakeExecutor | None = None) -> TrainablePolicy:
    """The policy of the run that the first rank has; this one takes part, and writes nothing."""
    manifest, state = group.gather(None)[0]
    executor = None if make_executor is None else make_executor(manifest)
    warm_up(manifest)
    trainer = Trainer(manifest.pairs, manifest.config, executor=executor, lazy=True, group=group)
    trainer.load_state(*state)
    for _ in trainer.run():
        pass
    return trainer.policy


def _lead(group: Group | None, manifest: Manifest, trainer: Trainer) -> None:
    """Give all other ranks what they need to take part."""
    if group is not None:
        group.gather((manifest, trainer.state()))


def _validation(manifest: Manifest, path: Path) -> ValidationSet | None:
    return None if manifest.recipe is None else make_validation(manifest.recipe, path)


def warm_up(manifest: Manifest) -> None:
    """Compile all that a run needs, or load it from the cache, so that no budget pays for it."""
    config, expert = manifest.config, manifest.config.sim.expert
    short = replace(
        config,
        stages=tuple(stage for stage in config.stages if stage != "real") or ("sim",),
        policy=small(config.policy),
        imitation=replace(config.imitation, episodes=1, batch=1),
        sim=replace(
            config.sim,
            episodes=1,
            batch=1,
            expert=None if expert is None else replace(expert, moves=min(expert.moves, 1)),
        ),
        seconds=None,
        seed=0,
        variants=0,
    )
    _train_briefly(short, manifest.pairs[0][1])


@cache
def _train_briefly(config: TrainConfig, topology: Topology) -> None:
    """Train on two vertices, the first time in this process."""
    builder = GraphBuilder("pair")
    for name in ("a", "b"):
        builder.op(name, "matmul", reads=[], output_bytes=1, exec_s=1.0, transfer_s=1.0)
    for _ in Trainer([(builder.build(), topology)], config).run():
        pass


def check_device(name: str) -> None:
    """Raise unless torch can compute on the device of that name."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"torch cannot compute on device `{name}`: {reason}", hint="cpu is always there"
        ) from None


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C inside call `stop`, and those that follow do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
