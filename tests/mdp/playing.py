"""Helpers to play episodes: policies of random matrices, and episodes replayed readably."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.graph import Graph, build_graph
from doppler.mdp.episode import Episode
from doppler.mdp.features import NUM_FEATURES
from doppler.mdp.guide import Guide
from doppler.mdp.instance import Instance
from doppler.mdp.kernel import Choice, Record, State, Weights, make_state, roll_out
from doppler.mdp.rollout import NOTHING_ASSIGNED, PartialAssignments, Sampling
from doppler.topology import DTYPE_CLASSES, Device, Link, Topology

SAMPLED = Sampling()


@dataclass(frozen=True)
class Played:
    """Episodes straight from the kernel, and the working memory that the last one left."""

    state: State
    record: Record


def play(
    instance: Instance,
    weights: Weights,
    sampling: Sampling = SAMPLED,
    *,
    seeds: int | IntArray = 1,
    partial: PartialAssignments = NOTHING_ASSIGNED,
) -> Played:
    """Episodes with everything recorded, by one call of the kernel."""
    seeds = np.arange(seeds) if isinstance(seeds, int) else seeds
    state, count = make_state(instance.tables, weights), len(seeds)
    every = (count, instance.num_vertices)
    scored = (*every, min(int(weights.most[0]) or instance.num_devices, instance.num_devices))
    record = Record(
        order=np.zeros(every, np.int64),
        devices=np.zeros(every, np.int64),
        features=np.zeros((*scored, NUM_FEATURES), np.float32),
        since=np.zeros(every, np.int64),
        scored=np.zeros(scored, np.int64),
        last_step=np.zeros(scored, np.int64),
    )
    choice = Choice(
        sampling.select_temperature,
        sampling.place_temperature,
        sampling.epsilon,
        sampling.alike,
        sampling.place_early,
    )
    roll_out(instance.tables, weights, choice, partial, seeds, state, record)
    return Played(state, record)


def candidates_of(order: IntArray, since: IntArray, step: int) -> list[int]:
    """The candidates of one step of an episode, ascending, by what was recorded of it."""
    later = np.arange(step, len(order))
    return sorted(order[later[since[later] <= step]].tolist())


def replay(
    instance: Instance, order: IntArray, devices: IntArray, guide: Guide | None = None
) -> Iterator[tuple[Episode, int]]:
    """The readable episode before each of its steps, with the vertex that comes next."""
    episode = Episode(instance, guide)
    for vertex in order.tolist():
        yield episode, vertex
        episode.place(vertex, int(devices[vertex]))


def last_step_on(episode: Episode, device: int) -> int:
    """The step that last placed something on a device, or -1."""
    steps = [t for t, v in enumerate(episode.order) if episode.devices[v] == device]
    return max(steps, default=-1)


def random_weights(
    instance: Instance, seed: int = 0, *, width: int = 6, depth: int = 3, most: int = 0
) -> Weights:
    """A policy of random matrices whose scores and logits differ by about one.

    It scores up to `most` devices for a vertex; 0: all.
    """
    rng, n = np.random.default_rng(seed), instance.num_vertices

    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return Weights(
        score=rng.normal(size=n),
        vertex=matrix(n, width),
        placed=matrix(n, width) / np.float32(max(n, 1)),
        feature=matrix(NUM_FEATURES, width),
        hidden=matrix(width, depth) / np.float32(width),
        hidden_bias=matrix(depth),
        out=matrix(depth),
        crowded=np.full(1, 1.5, np.float32),
        most=np.full(1, most, np.int64),
    )


def no_opinion(instance: Instance) -> Weights:
    """A policy that likes all vertices and all devices the same, and scores all."""
    return Weights(*(np.zeros_like(array) for array in random_weights(instance)))


def with_scores(weights: Weights, scores: list[float]) -> Weights:
    return weights._replace(score=np.array(scores, np.float64))


def softmax(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    shares = np.exp((logits - logits.max()) / temperature)
    return shares / shares.sum()


def assert_frequencies(samples: IntArray, expected: FloatArray) -> None:
    """Each of the values 0, 1, … is as frequent as expected, give or take five deviations."""
    seen = np.bincount(samples, minlength=len(expected)) / len(samples)
    slack = 5 * np.sqrt(expected * (1 - expected) / len(samples)) + 1e-9
    assert (abs(seen - expected) <= slack).all(), (seen, expected)


def graph_of(
    exec_s: list[object], edges: dict[tuple[int, int], float] | None = None, **columns: object
) -> Graph:
    """Vertices of given seconds; every edge (producer, reader) a tensor of the given bytes."""
    edges = edges or {}
    return build_graph(
        name="by hand",
        kinds=["matmul"] * len(exec_s),
        exec_s=exec_s,
        tensor_producer=[producer for producer, _ in edges],
        tensor_bytes=list(edges.values()),
        edge_tensor=list(range(len(edges))),
        edge_reader=[reader for _, reader in edges],
        **columns,  # type: ignore[arg-type]
    )


def unequal_pair() -> Topology:
    """Two slots on the first device, one on the second; there is slower than back."""
    links = (Link("there", 1.0, latency_s=1.0), Link("back", 2.0))
    devices = (Device("wide", slots=2), Device("narrow"))
    return Topology("pair", devices, links, np.array([[-1, 0], [1, -1]]))


def uniform(num_devices: int) -> Topology:
    """Equal devices, equal links."""
    route = np.zeros((num_devices, num_devices), np.int64)
    np.fill_diagonal(route, -1)
    devices = tuple(Device(f"d{i}") for i in range(num_devices))
    return Topology("uniform", devices, (Link("any", 1.0, latency_s=0.1),), route)


def twenty_devices(memory_bytes: float = float("inf")) -> Topology:
    """Four groups of five devices of unequal speeds; links between groups are slower."""
    speeds = (2e12 * (1 + i % 7) for i in range(20))
    devices = tuple(
        Device(f"d{i}", dict.fromkeys(DTYPE_CLASSES, speed), 1e12, memory_bytes, slots=1 + i % 2)
        for i, speed in enumerate(speeds)
    )
    links = (Link("near", 50e9, latency_s=1e-6), Link("far", 5e9, latency_s=1e-5, lanes=2))
    group = np.arange(20) // 5
    route = (group[:, None] != group).astype(np.int64)
    np.fill_diagonal(route, -1)
    return Topology("twenty", devices, links, route)
