"""Training of the model of moves: which of the moves of a search make the makespan shorter."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from doppler.base.arrays import FloatArray, unbox_fields
from doppler.base.progress import report
from doppler.datasets.draw import problems
from doppler.errors import ConfigError
from doppler.placers.base import cores
from doppler.placers.search.annealing import SearchConfig, starting_points
from doppler.placers.search.improver import make_chain, make_judge, make_neighbourhood
from doppler.placers.search.judging import MOVE_FEATURES
from doppler.placers.search.move_model import MoveModel, blank_model
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

STARTS_S = 1.0  # for the heuristics that a search begins from
LEAST_GAIN = 1e-9  # less is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTrainingConfig:
    """What moves are observed, and how the model is fitted to them."""

    # Searches of which moves are observed.
    problems: int = 100  # of split `train`, in each round
    rounds: int = 3  # in the first the moves are random, then the model before chooses them
    min_vertices: int = 150
    max_vertices: int = 1000
    max_devices: int = 64
    ratios: tuple[float, float] = (0.01, 100.0)  # of communication to computation
    phases: int = 6  # of a search, between which the temperature falls
    moves: int = 2000  # that are observed in each of them
    # Moves of a phase in all: a uniform logarithm, so searches are observed early and late.
    fewest: int = 2000
    most: int = 20_000
    random_moves: float = 0.3  # of those that a model chooses

    # The model.
    units: int = 16
    steps: int = 8000
    batch: int = 4096
    lr: float = 3e-3  # falls to 0
    seed: int = 0

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("problems", "rounds", "phases", "moves", "units", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        if not 1 <= self.fewest <= self.most:
            raise ConfigError("fewest must be at least 1 and at most most")


class Observed(NamedTuple):
    """Moves of searches."""

    features: FloatArray  # (N, F)
    gains: FloatArray  # (N,) by how much each made the makespan shorter, relative


def train_moves(config: MoveTrainingConfig) -> MoveModel:
    """A model fitted to the moves of searches on problems of split `train`.

    The same config gives the same model, if nothing but seconds differs that heuristics take.
    """
    model, observed = blank_model(), list[Observed]()
    for number in range(config.rounds):
        observed += observe_round(config, model, number)
        features, gains = (np.concatenate(each) for each in zip(*observed, strict=True))
        model = fit(config, Observed(features, gains))
    return model


def observe_round(config: MoveTrainingConfig, model: MoveModel, number: int) -> list[Observed]:
    """Moves of searches that the model takes part in, on the problems of a round."""
    drawn = problems(
        "train",
        config.problems,
        config.seed + number,
        min_vertices=config.min_vertices,
        max_vertices=config.max_vertices,
        max_devices=config.max_devices,
        ratios=config.ratios,
    )
    every, text = list[Observed](), f"observing moves, round {number + 1}"
    with ThreadPoolExecutor(len(cores()) or 1) as pool:

        def work(i: int, problem: Problem) -> Observed:
            return observe_search(config, model, problem, [config.seed, number, i])

        jobs = [pool.submit(work, i, one.problem) for i, one in enumerate(drawn)]
        for job in jobs:
            every.append(job.result())
            report(text, len(every), config.problems)
    return every


def observe_search(
    config: MoveTrainingConfig, model: MoveModel, problem: Problem, seed: Sequence[int]
) -> Observed:
    """Some moves of each phase of a search, which begins from one of the best heuristics."""
    from doppler.placers.search.kernel import improve, observe
    from doppler.sim.state_kernel import make_scratch

    rng, search = np.random.default_rng(seed), SearchConfig()
    simulator = Simulator(problem)
    arrays, priority = simulator.arrays(problem.graph, [0]), simulator.priority(problem.graph, 0)
    scratch, neighbourhood = make_scratch(arrays), make_neighbourhood(problem)
    starts = [
        make_chain(arrays, priority, scratch, start)
        for start in starting_points(problem, 0, STARTS_S)
    ]
    chain = sorted(starts, key=lambda one: float(one.cost[0]))[: int(rng.integers(1, 4))][-1]
    candidates, share = search.candidates, config.random_moves
    judge = make_judge(arrays, model, candidates=candidates, random_share=share)
    state = (arrays, neighbourhood, chain, judge, priority, scratch)
    hottest = search.hot * (search.hotter if rng.random() < 0.5 else 1.0)
    moves = int(config.fewest * (config.most / config.fewest) ** rng.random())
    found = []
    for phase in range(config.phases):
        hot = hottest * (search.cold / hottest) ** (phase / config.phases)
        features = np.zeros((config.moves, len(MOVE_FEATURES)))
        gains = np.zeros(config.moves)
        seen = observe(*state, int(rng.integers(2**31)), hot, features, gains)
        found.append(Observed(features[:seen], gains[:seen]))
        improve(*state, int(rng.integers(2**31)), max(moves - config.moves, 1), hot, hot, -1.0)
    return Observed(*(np.concatenate(each) for each in zip(*found, strict=True)))


def fit(config: MoveTrainingConfig, observed: Observed) -> MoveModel:
    """The model under which what was observed is most likely (logistic regression)."""
    generator = torch.Generator().manual_seed(config.seed)
    inputs = torch.tensor(observed.features, dtype=torch.float32)
    is_shorter = torch.tensor(observed.gains > LEAST_GAIN, dtype=torch.float32)
    net = nn.Sequential(nn.Linear(len(MOVE_FEATURES), config.units), nn.ReLU())
    net.append(nn.Linear(config.units, 1))
    with torch.no_grad():
        for weights in net.parameters():
            weights.copy_(torch.randn(weights.shape, generator=generator) * 0.2)
    optimizer = torch.optim.Adam(net.parameters(), lr=config.lr)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, config.steps)
    for step in range(config.steps):
        chosen = torch.randint(len(inputs), (config.batch,), generator=generator)
        logits = net(inputs[chosen])[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, is_shorter[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        falling.step()
        report("fitting the model of moves", step + 1, config.steps)
    inner, inner_bias, outer, outer_bias = (each.detach().numpy() for each in net.parameters())
    return MoveModel(inner.T.copy(), inner_bias, outer[0].copy(), outer_bias)
