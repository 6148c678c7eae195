"""Problems: a graph and a machine, drawn from a split by a seed."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from doppler.datasets.chance import coin, log_uniform
from doppler.datasets.families import FAMILIES, SMALLEST, Family
from doppler.datasets.machines import MACHINES, MAX_DEVICES
from doppler.datasets.memory import SLACK, limit_memory
from doppler.datasets.sketch import with_ratio
from doppler.errors import ConfigError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.topology.io import topology_to_json
from doppler.topology.topology import Topology

SPLITS = ("train", "validation", "test")
ALL = "all"  # every family, or machine, of any split
MAX_VERTICES = 600
LIMITED = 0.3  # share of the problems in which memory is limited


@dataclass(frozen=True, slots=True)
class DrawnProblem:
    """A graph to place on a topology."""

    graph: Graph
    topology: Topology
    family: str  # of the graph: a name in FAMILIES
    seed: int  # that it was drawn with
    machine: str = ""  # family of the topology: a name in MACHINES

    @property
    def problem(self) -> Problem:
        """The graph on the topology, with its costs."""
        return Problem(self.graph, self.topology)

    def digest(self) -> str:
        """`sha256:…` of the graph with its costs, and of the topology."""
        graph = self.graph
        sha = hashlib.sha256(graph.digest().encode())
        for array in (graph.flops, graph.touched_bytes):
            sha.update(np.ascontiguousarray(array).tobytes())
        for column in (graph.meta_ops, graph.roles, graph.dtypes):
            sha.update("\0".join(column).encode() + b"\1")
        sha.update(topology_to_json(self.topology).encode())
        return f"sha256:{sha.hexdigest()}"


def draw_problem(
    split: str,
    seed: int,
    *,
    max_vertices: int = MAX_VERTICES,
    min_vertices: int = SMALLEST,
    without: Sequence[str] = (),
    machines: str | None = None,
    max_devices: int = MAX_DEVICES,
    ratios: Sequence[float] = (),
) -> DrawnProblem:
    """The problem of a split with that seed: `train`, `validation`, `test`, or `all` of them.

    Groups of families are equally likely, and so are the families of a group. `without` leaves out
    the named families and all others of their groups; seeds that would not have drawn one of them
    give the same problem with it. `machines` takes the machine from another split; `max_devices`
    allows larger ones. With two `ratios`, the ratio of communication to computation is log-uniform
    between them, and the links of the machine are as fast as that needs.
    """
    families = _eligible(split, min_vertices, max_vertices, without)
    rng = seeded(seed, split)
    groups = _shuffled(rng, [family.group for family in FAMILIES.values()])
    members = _shuffled(rng, list(FAMILIES))
    group = next(group for group in groups if any(f.group == group for f in families.values()))
    family = next(n for n in members if n in families and families[n].group == group)
    where = _check_split(split if machines is None else machines)
    machine = next(n for n in _shuffled(rng, list(MACHINES)) if _within(MACHINES[n].split, where))
    return make_problem(
        family,
        machine,
        seed,
        max_vertices=max_vertices,
        min_vertices=min_vertices,
        max_devices=max_devices,
        ratios=ratios,
    )


def problems(
    split: str,
    count: int,
    seed: int,
    *,
    max_vertices: int = MAX_VERTICES,
    min_vertices: int = SMALLEST,
    without: Sequence[str] = (),
    machines: str | None = None,
    max_devices: int = MAX_DEVICES,
    ratios: Sequence[float] = (),
) -> Iterator[DrawnProblem]:
    """`count` problems of a split, one after the other, each with a seed that follows from `seed`.

    The options are those of `draw_problem`, which gives each of them again by its own seed.
    """
    _check_seed(seed)
    for own in np.random.SeedSequence(seed).generate_state(count).tolist():
        yield draw_problem(
            split,
            own,
            max_vertices=max_vertices,
            min_vertices=min_vertices,
            without=without,
            machines=machines,
            max_devices=max_devices,
            ratios=ratios,
        )


def make_problem(
    family: str,
    machine: str,
    seed: int,
    *,
    max_vertices: int = MAX_VERTICES,
    min_vertices: int = SMALLEST,
    max_devices: int = MAX_DEVICES,
    ratios: Sequence[float] = (),
) -> DrawnProblem:
    """The problem of a family of graphs on a family of machines with that seed."""
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    if machine not in MACHINES:
        raise UnknownNameError("machine", machine, MACHINES)
    found = FAMILIES[family]
    low, high = max(min_vertices, found.smallest), min(max_vertices, found.largest)
    if low > high:
        raise ConfigError(
            f"`{family}` has {found.smallest} to {found.largest} vertices, "
            f"not {min_vertices} to {max_vertices}"
        )
    rng = seeded(seed, family, machine)
    topology = MACHINES[machine].draw(rng, max_devices)
    topology = replace(topology, name=f"{machine}{topology.num_devices}-{seed}")
    graph = found.draw(rng, topology, low, high)
    graph = replace(graph, name=f"{family}{graph.num_vertices}-{seed}")
    if ratios:
        topology = with_ratio(graph, topology, log_uniform(seeded(seed, "ratio"), *ratios))
    if coin(rng, LIMITED):
        topology = limit_memory(graph, topology, float(rng.uniform(*SLACK)))
    return DrawnProblem(graph, topology, family, seed, machine)


def _eligible(
    split: str, min_vertices: int, max_vertices: int, without: Sequence[str]
) -> dict[str, Family]:
    """The families of a split that come in such sizes and are not left out."""
    _check_split(split)
    if not 1 <= min_vertices <= max_vertices:
        raise ConfigError(f"{min_vertices} to {max_vertices} vertices is not a range")
    for name in without:
        if name not in FAMILIES:
            raise UnknownNameError("family", name, FAMILIES)
    left_out = [FAMILIES[name].group for name in without]
    families = {
        name: family
        for name, family in FAMILIES.items()
        if _within(family.split, split)
        and family.group not in left_out
        and family.smallest <= max_vertices
        and family.largest >= min_vertices
    }
    if not families:
        raise ConfigError(
            f"no family of split `{split}` is left with {min_vertices} to {max_vertices} vertices"
        )
    return families


def _within(own: str, split: str) -> bool:
    return split in (ALL, own)


def _check_split(split: str) -> str:
    if split not in (*SPLITS, ALL):
        raise UnknownNameError("split", split, (*SPLITS, ALL))
    return split


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ConfigError(f"seed is {seed}, must not be negative")


def seeded(seed: int, *names: str) -> np.random.Generator:
    """A generator for a seed and what it is for, independent of those for anything else."""
    _check_seed(seed)
    return np.random.default_rng([seed, *(crc32(name.encode()) for name in names)])


def _shuffled(rng: np.random.Generator, names: list[str]) -> list[str]:
    """The distinct names in random order."""
    distinct = list(dict.fromkeys(names))
    return [distinct[i] for i in rng.permutation(len(distinct)).tolist()]
