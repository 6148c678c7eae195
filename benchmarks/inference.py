"""How fast is a policy without torch? The compiled encoder and heads against torch's, one core.

Run it as `python benchmarks/inference.py`: milliseconds of CPU time of this thread on graphs from
229 to 100,000 vertices and 8 devices, the best of a few rounds, by a policy of the default shape:

- `scores`: one pass of message passing and both heads, from instance to what episodes need;
- `greedy`: that and one greedy episode;
- `+8`: that and 8 samples too.

The episodes themselves are the same compiled code in both columns. `apart` is how far the scores
are from each other. `--sizes 229,1000` does some sizes only.
"""

import argparse
import resource
from collections.abc import Callable
from time import thread_time

import numpy as np
import torch

from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.kernel import Weights
from doppler.mdp.rollout import GREEDY, Roller, Sampling
from doppler.policies.arrays.acting import play
from doppler.policies.arrays.policy import from_torch
from doppler.policies.dual import DualPolicy, PolicyConfig, make_policy
from doppler.policies.inputs import make_inputs
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import read_topology

SIZES = (229, 1_000, 10_000, 100_000)
MACHINE = "v100x8"
SAMPLES = 8
ROUNDS = 5

MakeWeights = Callable[[], Weights]
Work = Callable[[MakeWeights], object]


def instance_of(vertices: int) -> Instance:
    depth = max(int(vertices**0.5) // 2, 2)
    graph = random_dag(vertices=vertices, depth=depth, seed=0)
    return make_instance(Problem(graph, read_topology(MACHINE)))


def by_torch(policy: DualPolicy, instance: Instance) -> Weights:
    return Weights(**policy.arrays(policy.scores(make_inputs(instance))))


def episodes(weights: Weights, instance: Instance, samples: int) -> None:
    roller = Roller(instance)
    play(roller, weights, PolicyConfig(), GREEDY, np.zeros(1, np.int64), record=False)
    if samples:
        warm = Sampling(select_temperature=0.3, place_temperature=0.3)
        play(roller, weights, PolicyConfig(), warm, np.arange(samples), record=False)


def best_ms(work: Work, weights: MakeWeights, rounds: int) -> float:
    """Milliseconds of CPU time once compiled."""
    work(weights)
    times = []
    for _ in range(rounds):
        began = thread_time()
        work(weights)
        times.append(thread_time() - began)
    return 1e3 * min(times)


def apart(one: Weights, other: Weights) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def show(size: int, policy: DualPolicy) -> None:
    instance, arrays = instance_of(size), from_torch(policy)
    ways: dict[str, MakeWeights] = {
        "arrays": lambda: arrays.on(instance),
        "torch": lambda: by_torch(policy, instance),
    }
    rounds = ROUNDS if size < 100_000 else 1
    works: dict[str, Work] = {
        "scores": lambda weights: weights(),
        "greedy": lambda weights: episodes(weights(), instance, 0),
        f"+{SAMPLES}": lambda weights: episodes(weights(), instance, SAMPLES),
    }
    distance = apart(*(weights() for weights in ways.values()))
    for name, work in works.items():
        mine, other = (best_ms(work, weights, rounds) for weights in ways.values())
        print(
            f"{size:>9,} {instance.edges.shape[1]:>9,}   {name:<8}{mine:>10.1f}{other:>10.1f}"
            f"{mine / other:>8.2f}{distance:>10.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    sizes = [int(size) for size in parser.parse_args().sizes.split(",")]
    torch.set_num_threads(1)
    policy = make_policy(PolicyConfig(), 0)
    print(f"\nA policy on {MACHINE}, milliseconds of CPU time on one core\n")
    print(" vertices     edges   what        arrays     torch   ratio     apart")
    for size in sizes:
        show(size, policy)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\n  peak memory {peak:.1f} GB (of both)")


if __name__ == "__main__":
    main()
