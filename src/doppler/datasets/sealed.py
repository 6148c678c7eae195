"""Sealed problems: families and machines that nothing is trained, chosen or tuned on.

They are for one use: to say how good a finished policy is. `benchmarks/sealed.py` measures on them
and adds a line to a log each time, so that a reader knows how often they were looked at. Training
cannot draw them: they are in no split.
"""

from dataclasses import replace

from doppler.datasets.chance import coin, log_uniform
from doppler.datasets.draw import LIMITED, DrawnProblem, seeded
from doppler.datasets.families import LARGEST, SEALED_FAMILIES, SMALLEST
from doppler.datasets.machines import MOST_DEVICES, SEALED_MACHINES
from doppler.datasets.memory import SLACK, limit_memory
from doppler.datasets.sketch import with_ratio
from doppler.errors import ConfigError

SEALED_RATIOS = (0.01, 100.0)  # of communication to computation, see `communication_ratio`
MAX_VERTICES = 1000


def sealed_problem(
    number: int, *, min_vertices: int = SMALLEST, max_vertices: int = MAX_VERTICES
) -> DrawnProblem:
    """The sealed problem of that number; families and machines take turns.

    The ratio of communication to computation is log-uniform from 0.01 to 100; the links of the
    machine are made as fast as that needs.
    """
    if number < 0 or not SMALLEST <= min_vertices <= max_vertices <= LARGEST:
        raise ConfigError(
            f"number {number} with {min_vertices} to {max_vertices} vertices: must not be "
            f"negative, and within {SMALLEST} to {LARGEST}"
        )
    families, machines = list(SEALED_FAMILIES), list(SEALED_MACHINES)
    family = families[number % len(families)]
    machine = machines[number // len(families) % len(machines)]
    rng = seeded(number, "sealed", family, machine)
    topology = SEALED_MACHINES[machine].draw(rng, MOST_DEVICES)
    topology = replace(topology, name=f"{machine}{topology.num_devices}-{number}")
    graph = SEALED_FAMILIES[family].draw(rng, topology, min_vertices, max_vertices)
    graph = replace(graph, name=f"{family}{graph.num_vertices}-{number}")
    topology = with_ratio(graph, topology, log_uniform(rng, *SEALED_RATIOS))
    if coin(rng, LIMITED):
        topology = limit_memory(graph, topology, float(rng.uniform(*SLACK)))
    return DrawnProblem(graph, topology, family, number, machine)
