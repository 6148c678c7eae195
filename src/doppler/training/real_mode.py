"""The mode of Stage III: whether the host chooses tasks as it runs, or starts them in an order."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from doppler.assignment import Assignment
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.placers.registry import make_placer
from doppler.problem import Problem
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.sim.noise import Noise
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.training.config import AUTO, RealConfig, TrainConfig

START = "critical-path"  # the placer of a start where none is given
MARGIN = 0.01  # share by which `fixed` must be predicted to be faster


def mode_of(executor: Executor | None, config: RealConfig) -> str:
    """The mode that an executor runs in; what is not known is `dynamic`."""
    own = getattr(getattr(executor, "config", None), "mode", None)
    if own is not None and config.mode not in (AUTO, own):
        raise ConfigError(
            f"real.mode is `{config.mode}`, the executor runs in mode `{own}`",
            hint="leave out real.mode, or make the executor with that mode",
        )
    return own or (DYNAMIC if config.mode == AUTO else config.mode)


def faster_mode(predicted_s: dict[str, float]) -> str:
    """`dynamic`, unless `fixed` is predicted to be faster by more than the margin."""
    return FIXED if predicted_s[FIXED] < predicted_s[DYNAMIC] * (1 - MARGIN) else DYNAMIC


def predicted_by_mode(
    graphs: Sequence[Graph], topology: Topology, starts: Sequence[Assignment], config: TrainConfig
) -> dict[str, float]:
    """The predicted seconds of one run of each graph, by mode, under what it starts from."""
    quiet = replace(config.sim_config, noise=Noise())
    found = {DYNAMIC: 0.0, FIXED: 0.0}
    for graph in graphs:
        problem = Problem(graph, topology)
        fitting = [start for start in starts if fits(start, graph, topology)]
        start = fitting[0] if fitting else make_placer(START).place(problem, seed=config.seed)
        for mode in found:
            try:
                trace = Simulator(problem, replace(quiet, mode=mode)).run(graph, start)
            except OutOfMemoryError:
                found[mode] = inf
            else:
                found[mode] += trace.makespan_s
    return found


def fits(start: Assignment, graph: Graph, topology: Topology) -> bool:
    """Whether an assignment is for this graph on this topology."""
    try:
        start.check(graph, topology)
    except AssignmentError:
        return False
    return start.topology in ("", topology.name)
