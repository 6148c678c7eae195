"""Trainer: runs the stages, one update at a time; it can be stopped and resumed after any."""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.engine.ranks.group import Group
from doppler.errors import ConfigError, TrainingError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.placers.base import cores
from doppler.policies.configs import for_devices
from doppler.policies.kinds import make_any
from doppler.policies.threads import one_thread
from doppler.policies.trainable import TrainablePolicy
from doppler.serving.trials import TrialSummary
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.exercise import Exercise, vary
from doppler.training.exercise_record import ExerciseRecord, under
from doppler.training.lessons import Lesson, learn_together
from doppler.training.per_step import reinforce_by_steps
from doppler.training.real import conclude, fits, mode_of, refine, refine_unguarded
from doppler.training.reinforce import between, imitate, reinforce

Update = Callable[[Any, ExerciseRecord, TrainConfig, float, int], tuple[Tensor, FloatArray]]
UPDATES: dict[str, Update] = {"imitation": imitate, "sim": reinforce, "real": refine}
SHARES = {"imitation": 0.1, "sim": 0.5, "real": 1.0}  # of what is left of a budget, at most


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """One update, for logs."""

    stage: str
    update: int  # number of this update in its stage
    episodes: int  # of this stage so far, over all graphs
    share: float  # of this stage that is done
    seconds: float  # of training so far, in all stages
    exercise: str  # graph@topology
    mean_s: float  # makespans of this update's episodes
    least_s: float
    best_s: float  # of this graph so far, the expert's included
    bound_s: float  # lower bound of any assignment
    loss: float
    lr: float


@dataclass(frozen=True, slots=True)
class RealProgress(TrialSummary, TrainingProgress):
    """One update of Stage III: makespans are measured, `best_s` is the incumbent's mean."""


class Trainer:
    """Trains a policy on exercises, in stages.

    >>> trainer = Trainer([(graph, topology)], TrainConfig())
    >>> for progress in trainer.run(): ...
    >>> trainer.records[0].best()
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Graph, Topology]],
        config: TrainConfig,
        *,
        policy: TrainablePolicy | None = None,
        executor: Executor | None = None,
        starts: Sequence[Assignment] = (),
        lazy: bool = False,
        updates: Mapping[str, Update] = UPDATES,
        clock: Callable[[], float] = monotonic,
        group: Group | None = None,
    ) -> None:
        """`policy` is one to start from; its shape replaces the config's. Without one, training
        starts from nothing.

        What an exercise needs is made at once; where it is `lazy`, when its first turn comes.

        Stage III runs assignments on `executor`, first of all those `starts` that are for the
        graph at hand. `updates` make the loss of an update of each stage; budgets in seconds are by
        the `clock`.

        Where every rank of a `group` makes the same trainer, the exercises of a step are shared
        out among them, and all learn from all; the result is the same as that of one process.
        """
        config = _complete(config, pairs, policy, executor)
        self.config = config
        self.policy: TrainablePolicy = policy or make_any(config.policy, config.seed)
        self.policy.to(config.device)
        for _, topology in pairs:
            self.policy.check_machine(topology.num_devices, topology.name)
        self._parameters = list(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self._parameters, fused=True)
        self._updates, self._group = updates, group
        self._clock = clock if group is None else lambda: float(group.gather(clock())[0])
        self.records = [  # of the exercises
            ExerciseRecord(
                Exercise(graph, topology, config),
                executor=executor,
                starts=[start for start in starts if fits(start, graph, topology)],
            )
            for graph, topology in pairs
        ]
        self.variants = [
            ExerciseRecord(Exercise(vary(graph, 1 + number, config.variation), topology, config))
            for number in range(config.variants)
            for graph, topology in pairs
        ]
        if not lazy:
            for record in self.all_records:
                record.prepare(self.policy)
        self.stage = 0  # index of the stage under way
        self.update = 0  # updates done in it
        self.seconds = 0.0  # of training so far
        self.stage_began_s = 0.0  # the same, when the stage began

    def run(self) -> Generator[TrainingProgress, None, None]:
        """Train to the end; every update is yielded when it is done and can be saved."""
        threads = min(self.config.threads or len(cores()) or 1, self.config.problems_per_step)
        with one_thread(), ThreadPoolExecutor(threads) as pool:
            yield from self._run(pool if threads > 1 else None)

    def _run(self, pool: ThreadPoolExecutor | None) -> Generator[TrainingProgress, None, None]:
        while not self.is_finished:
            name = self.config.stages[self.stage]
            update = self._update_of(name)
            records = self.records if name == "real" else self.all_records
            while (share := self.share()) < 1.0:
                began = self._clock()
                lessons = self._learn(update, records, share, pool)
                lr = between(getattr(self.config, name).lr, share)
                self._step(lessons, lr)
                shown = lessons[self._shown(records)]
                self.update += 1
                self.seconds += self._clock() - began
                if name == "real" and self.share() >= 1.0:
                    self._conclude()
                yield self._progress(name, shown, lr)
            if self.stage < self._last:  # the last stays as it ended, to be extended
                self.stage, self.update, self.stage_began_s = self.stage + 1, 0, self.seconds

    def _learn(
        self,
        update: Update,
        records: list[ExerciseRecord],
        share: float,
        pool: ThreadPoolExecutor | None,
    ) -> list[Lesson]:
        """What one step is to be made from: the gradients of those whose turn it is."""
        count, shown = self.problems_per_step, self._shown(records)
        parameters = self._parameters

        def learn(place: int) -> Lesson:
            number = self.update * count + place
            record = records[number % len(records)]
            loss, makespans = update(self.policy, record, self.config, share, number)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            norm = torch.nn.utils.get_total_norm([g for g in gradients if g is not None])
            scale = (self.config.clip / (norm + 1e-6)).clamp(max=1.0)
            clipped = [None if g is None else g * scale for g in gradients]
            bound_s = record.exercise.bound_s if place == shown else nan
            return Lesson(record, makespans, float(loss.detach()), float(norm), bound_s, clipped)

        def learn_all(places: Sequence[int]) -> list[Lesson]:
            return list(map(learn, places) if pool is None else pool.map(learn, places))

        if self._group is None or self.config.stages[self.stage] == "real":
            return learn_all(range(count))  # on the real system, all ranks take part in each run
        turn = [records[(self.update * count + place) % len(records)] for place in range(count)]
        return learn_together(self._group, turn, learn_all, parameters)

    def _shown(self, records: Sequence[ExerciseRecord]) -> int:
        """Which of the lessons of this update is shown."""
        count = self.problems_per_step
        return self.update * count // len(records) % count

    def _conclude(self) -> None:
        """Choose what Stage III comes to; the time that takes is that of training, too."""
        began = self._clock()
        for record in self.records:
            conclude(self.policy, record, self.config)
        self.seconds += self._clock() - began

    def _update_of(self, stage: str) -> Update:
        """What makes an update of a stage."""
        if stage == "sim" and self.config.sim.messages == "step":
            return reinforce_by_steps
        if stage == "real" and not self.config.real.guarded:
            return refine_unguarded
        return self._updates[stage]

    @property
    def is_finished(self) -> bool:
        """Whether no update is left."""
        return self.stage > self._last or (self.stage == self._last and self.share() >= 1.0)

    @property
    def _last(self) -> int:
        """Index of the last stage."""
        return len(self.config.stages) - 1

    @property
    def problems_per_step(self) -> int:
        """Exercises that one step learns from; on the real system, one has it for itself."""
        real = self.config.stages[self.stage] == "real"
        return 1 if real else min(self.config.problems_per_step, len(self.records))

    @property
    def all_records(self) -> list[ExerciseRecord]:
        """Those of the exercises and of their variants."""
        return [*self.records, *self.variants]

    def share(self) -> float:
        """The share of the stage under way that is done, by episodes or by seconds.

        With a budget in seconds the last stage takes all that is left of it.
        """
        name, seconds = self.config.stages[self.stage], self.config.seconds
        stage, last = getattr(self.config, name), self.stage == self._last
        episodes = stage.episodes * len(self.records)
        share = self.update * stage.batch * self.problems_per_step / episodes if episodes else 1.0
        if seconds is None:
            return share
        left = (seconds - self.stage_began_s) * (1.0 if last else SHARES[name])
        spent = (self.seconds - self.stage_began_s) / left if left > 0 else 1.0
        return spent if last else max(share, spent)

    def extend(self, *, seconds: float | None = None, episodes: int | None = None) -> None:
        """Let training end after more seconds, or more episodes of the last stage per exercise.

        They count from here, whatever was left to do. The schedules of the last stage, such as its
        learning rate, are stretched: the share that is done becomes one of the new whole. (Where a
        checkpoint does not record how its last stage ended, that stage starts again.)
        """
        name = self.config.stages[-1]
        self.stage = min(self.stage, self._last)
        if seconds is not None:
            self.config = replace(self.config, seconds=self.seconds + seconds)
        if episodes is not None:
            stage = getattr(self.config, name)
            batch = stage.batch * self.problems_per_step
            done = self.update * batch if self.stage == self._last else 0
            total = -(-done // len(self.records)) + episodes
            changed: dict[str, Any] = {name: replace(stage, episodes=total)}
            self.config = replace(self.config, seconds=None, **changed)

    def _step(self, lessons: Sequence[Lesson], lr: float) -> None:
        """One step of the optimizer; an error, and nothing changed, where a loss is no number."""
        for lesson in lessons:
            loss, label = lesson.loss, lesson.record.label
            if not (isfinite(loss) and isfinite(lesson.norm)):
                raise TrainingError(
                    f"the loss on `{label}` is {loss} at update {self.update}",
                    hint="start from the last checkpoint, with a lower lr: dop train --from",
                )
        columns = zip(*(lesson.gradients for lesson in lessons), strict=True)
        for parameter, column in zip(self._parameters, columns, strict=True):
            known = [gradient for gradient in column if gradient is not None]
            parameter.grad = _mean(known, len(lessons))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.policy.after_step()

    def _progress(self, stage: str, lesson: Lesson, lr: float) -> TrainingProgress:
        record, makespans = lesson.record, lesson.makespans
        values: dict[str, Any] = {
            "stage": stage,
            "update": self.update,
            "episodes": self.update * self.problems_per_step * getattr(self.config, stage).batch,
            "share": min(self.share(), 1.0),
            "seconds": self.seconds,
            "exercise": record.label,
            "mean_s": float(makespans.mean()),
            "least_s": float(makespans.min()),
            "best_s": record.best_s,
            "bound_s": lesson.bound_s,
            "loss": lesson.loss,
            "lr": lr,
        }
        measured = record.measured() if stage == "real" else None
        if measured is None:
            return TrainingProgress(**values)
        return RealProgress(**values, **asdict(measured))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that changes in training, as named tensors and JSON values."""
        tensors = {f"policy.{k}": v.detach().cpu() for k, v in self.policy.state_dict().items()}
        for i, entry in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v.detach().cpu() for k, v in entry.items()}
        values: dict[str, Any] = {
            "stage": self.stage,
            "update": self.update,
            "seconds": self.seconds,
            "stage_began_s": self.stage_began_s,
            "exercises": [],
        }
        for i, record in enumerate(self.all_records):
            arrays, numbers = record.state()
            tensors |= {f"exercise.{i}.{k}": torch.tensor(v) for k, v in arrays.items()}
            values["exercises"].append(numbers)
        return {k: v.contiguous().clone() for k, v in tensors.items()}, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Resume where `state` was taken: bit for bit, where no budget in seconds is set."""
        self.policy.load_state_dict(under("policy.", tensors))
        self.policy.to(self.config.device)
        kept = self.optimizer.state_dict()
        for name, tensor in under("optimizer.", tensors).items():
            number, _, key = name.partition(".")
            kept["state"].setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict(kept)
        self.stage, self.update = values["stage"], values["update"]
        if not (isinstance(self.stage, int) and 0 <= self.stage <= self._last + 1):
            raise ValueError(f"`stage` is {self.stage!r}, there are {self._last + 1}")
        if not (isinstance(self.update, int) and self.update >= 0):
            raise ValueError(f"`update` is {self.update!r}")
        self.seconds, self.stage_began_s = values["seconds"], values["stage_began_s"]
        for i, (record, numbers) in enumerate(
            zip(self.all_records, values["exercises"], strict=True)
        ):
            arrays = under(f"exercise.{i}.", tensors)
            record.load_state({k: v.numpy() for k, v in arrays.items()}, numbers)


def _complete(
    config: TrainConfig,
    pairs: Sequence[tuple[Graph, Topology]],
    policy: TrainablePolicy | None,
    executor: Executor | None,
) -> TrainConfig:
    """The config with all that graphs, policy and executor decide; an error if it cannot be."""
    if not pairs:
        raise ConfigError("there is no graph to train on")
    for graph, _ in pairs:
        if not len(graph.assigned):
            raise ConfigError(f"graph `{graph.name}` has no vertices to place")
    config = config.with_stages(from_nothing=policy is None)
    if "real" in config.stages and executor is None:
        raise ConfigError("stage `real` needs an executor", hint="such as doppler.Engine")
    if policy is not None:
        config = replace(config, policy=policy.config)
    config = replace(config, policy=for_devices(config.policy, pairs[0][1].num_devices))
    if "real" not in config.stages:
        return config
    return replace(config, real=replace(config.real, mode=mode_of(executor, config.real)))


def _mean(gradients: Sequence[Tensor], count: int) -> Tensor | None:
    """The sum of the gradients that there are, over the number of lessons."""
    if len(gradients) <= 1:
        return gradients[0] / count if gradients else None
    return torch.stack(list(gradients)).sum(dim=0) / count
