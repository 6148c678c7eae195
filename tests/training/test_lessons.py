"""Ranks that share out the exercises of a step learn what one process does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training.tiny import CONFIG, graph  # noqa: E402

from doppler.policies.kinds import make_any  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.training.lessons import shared_out  # noqa: E402
from doppler.training.trainer import Trainer  # noqa: E402


class ThreadGroup:
    """The calls of a group that training makes, among threads of this process."""

    def __init__(self, rank: int, given: list[Any], barrier: Barrier) -> None:
        self.rank, self.size, self._given, self._barrier = rank, len(given), given, barrier

    def gather(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        return found

    def gather_tensor(self, value: Any) -> list[Any]:
        return [each.clone() for each in self.gather(value)]


def on_ranks(size: int, work: Callable[[Any], Any]) -> list[Any]:
    """What each rank returns."""
    given, barrier = [None] * size, Barrier(size)
    groups = [ThreadGroup(rank, given, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_learn_what_one_process_does(size: int) -> None:
    """Weights, best assignments and all else that a checkpoint has, bit for bit."""
    config = replace(CONFIG, problems_per_step=3, seconds=None)
    pairs = [(graph(seed), Topology.preset("p100x4")) for seed in range(4)]
    first = make_any(config.policy, 0)  # here, since threads share torch's random numbers

    def train(group: Any = None) -> Any:
        trainer = Trainer(pairs, config, policy=deepcopy(first), group=group)
        shown = [(p.exercise, p.mean_s, p.bound_s, p.loss) for p in trainer.run()]
        tensors, values = trainer.state()
        ignored = ("seconds", "stage_began_s")
        return shown, tensors, {k: v for k, v in values.items() if k not in ignored}

    shown, tensors, values = train()
    for other_shown, other_tensors, other_values in on_ranks(size, train):
        assert other_shown == shown
        assert other_values == values
        assert other_tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(other_tensors[name], tensor), name


def test_the_largest_exercises_go_to_different_ranks() -> None:
    assert shared_out([9, 8, 1, 1], 2) == [[0, 3], [1, 2]]
    assert shared_out([5], 3) == [[0], [], []]
