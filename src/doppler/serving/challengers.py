"""Challengers: assignments that may be better than the incumbent."""

import numpy as np

from doppler.base.arrays import IntArray
from doppler.placers.search.annealing import INSTANT
from doppler.serving.config import OnlineConfig
from doppler.serving.exploration import Exploration
from doppler.serving.incumbent import digest
from doppler.serving.prediction import Predictor
from doppler.serving.proposer import Proposer

SAME = 1e-6  # share by which makespans that are the same may differ
MAX_TOLERANCE = 1.0  # however far off the simulator is


class Challengers:
    """Finds challengers: by searches on the simulator, heuristics, a policy, and from before.

    Every heuristic is heard once, and once more after a change: where the simulator is wrong, one
    of them may be better than what a search there finds. While predictions are far off, heuristics
    come first, the simplest before all others, however slow they are predicted to be.
    """

    def __init__(
        self,
        exploration: Exploration,
        predictor: Predictor,
        proposer: Proposer | None,
        config: OnlineConfig,
    ) -> None:
        self.proposer = proposer
        self._exploration, self._predictor, self._config = exploration, predictor, config
        self._searches = 0
        self._unheard: list[IntArray] | None = None  # (V,) of heuristics; None: not yet asked

    def again(self) -> None:
        """Hear all heuristics once more."""
        self._unheard = None

    def find(self) -> list[IntArray]:
        """(V,) assignments to try, in that order; every other one is a first hearing."""
        heard, found = self._hearings(), self._promising()
        self._searches += 1
        if self._is_far_off and heard:
            return [*heard, *found]
        rows = [row for pair in zip(found, heard, strict=False) for row in pair]
        rest = max(found, heard, key=len)[len(rows) // 2 :]
        return [*rows, *rest]

    @property
    def _is_far_off(self) -> bool:
        error = self._predictor.error
        return error is None or error > self._config.far_off

    def _promising(self) -> list[IntArray]:
        """(V,) assignments that are predicted to be about as good as the incumbent, or better.

        Those predicted to be exactly as good are mostly the same but for the names of devices.
        """
        exploration, config, predictor = self._exploration, self._config, self._predictor
        seed = config.seed + self._searches
        raw = predictor.heuristic(self._searches)
        starts = np.stack([row for row in (exploration.devices, raw) if row is not None])
        found = [predictor.improve(starts, config.moves, seed=seed)[0], starts[1:]]
        if exploration.former:
            found.append(np.stack(exploration.former))
        if self.proposer is not None and config.samples:
            self.proposer.see(predictor.calibrated)
            found.append(self.proposer.propose(config.samples, seed))
        rows = np.concatenate(found)
        costs = predictor.costs_s(rows)
        tolerance = max(config.tolerance, min(predictor.error or 0.0, MAX_TOLERANCE))
        now_s = predictor.cost_s(exploration.devices)
        others = (costs <= now_s * (1.0 + tolerance)) & (np.abs(costs - now_s) > SAME * now_s)
        return [rows[i] for i in np.argsort(costs, kind="stable") if others[i]]

    def _hearings(self) -> list[IntArray]:
        """(V,) assignments of heuristics that were not heard yet, of which the first now are."""
        exploration, config, predictor = self._exploration, self._config, self._predictor
        if self._unheard is None:
            made = [predictor.heuristic(number) for number in range(len(INSTANT))]
            rows = list({digest(row): row for row in made[::-1] if row is not None}.values())
            costs, limit_s = predictor.costs_s(np.stack(rows)), np.inf
            ranked = list(range(len(rows)))  # the simplest first
            if not self._is_far_off:
                limit_s = config.drop * predictor.cost_s(exploration.devices)
                ranked = np.argsort(costs, kind="stable").tolist()
            self._unheard = [rows[i] for i in ranked if costs[i] <= limit_s]
        count = config.queue if self._is_far_off else max(1, config.queue // 2)
        heard, self._unheard = self._unheard[:count], self._unheard[count:]
        return heard
