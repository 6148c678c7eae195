"""Plans of compiled modules: the number of parts, the assignment and the mode predicted fastest."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch.export import ExportedProgram

from doppler.assignment import Assignment
from doppler.errors import (
    ConfigError,
    DopplerError,
    OutOfMemoryError,
)
from doppler.frontends.coarsen import PIECES, check_coarsening
from doppler.frontends.device_map import DeviceMap, device_map
from doppler.frontends.lifting.cut_rules import METHODS, choose_cuts
from doppler.frontends.torch_export import (
    check_parts,
    from_functional,
)
from doppler.frontends.torch_model import TorchModel
from doppler.graph.graph import Graph
from doppler.placers.registry import place
from doppler.plan import DeviceLoad, device_loads
from doppler.problem import Problem
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.trace import Trace

AUTO = "auto"  # number of parts, or how to cut into them
QUICK, SEARCHED = "critical-path", 2  # placer that ranks ways to cut, and how many are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """How a module is compiled, and when it is not.

    >>> import doppler as dp
    >>> dp.CompileConfig(placer="heft", budget_s=None).min_gain
    0.05
    """

    placer: str = "auto"  # a name from `dop list placers`
    budget_s: float | None = 2.0  # for a placer that searches; None for one that does not
    coarsen: str | int = PIECES  # as `from_torch` takes it
    parts: int | str | None = None  # as `from_torch` takes it, or "auto": what is predicted best
    method: str = AUTO  # of cutting into parts: likewise
    min_gain: float = 0.05  # predicted, against the best single device, for a plan to pay
    max_shapes: int = 8  # sets of shapes that are compiled, and times that a module may change

    def __post_init__(self) -> None:
        check_coarsening(self.coarsen)
        if self.parts != AUTO:
            check_parts(self.parts)  # type: ignore[arg-type]
        if self.method != AUTO:
            choose_cuts(self.method)
        if not 0 <= self.min_gain < 1:
            raise ConfigError(f"min_gain is {self.min_gain}, must be at least 0 and below 1")
        if self.max_shapes < 1:
            raise ConfigError(f"max_shapes is {self.max_shapes}, must be at least 1")


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """What runs where, and how long that is predicted to take."""

    graph: Graph
    topology: Topology
    assignment: Assignment
    mode: str  # of the engine: "dynamic" or "fixed"
    predicted_s: float
    single_s: float  # on the best single device
    loads: tuple[DeviceLoad, ...]  # of each device, as predicted

    @property
    def gain(self) -> float:
        """The part of the time on a single device that is saved."""
        return 1 - self.predicted_s / self.single_s if self.single_s else 0.0

    def device_map(self) -> DeviceMap:
        """The devices of the module's parts, as `accelerate` and `transformers` take them."""
        return device_map(self.graph, self.assignment, self.topology)


def best_parts(
    program: ExportedProgram, topology: Topology, config: CompileConfig, name: str
) -> tuple[TorchModel, CompiledPlan]:
    """The model in the parts that are predicted fastest, and its plan.

    Where a placer that searches has many ways to cut to choose from, a quick one ranks them, and
    the first few are searched.
    """
    models = [
        from_functional(program, coarsen=config.coarsen, parts=parts, method=method, name=name)
        for parts, method in _ways(config, topology.num_devices)
    ]
    ranked = list[tuple[TorchModel, CompiledPlan]]()
    if config.budget_s is not None and len(models) > SEARCHED:
        ranked, _ = _plans(models, topology, replace(config, placer=QUICK, budget_s=None))
        ranked.sort(key=lambda each: each[1].predicted_s)
        models = [model for model, _ in ranked[:SEARCHED]] or models
    if config.budget_s is not None:
        config = replace(config, budget_s=config.budget_s / len(models))
    searched, why = _plans(models, topology, config)
    found = [*searched, *ranked]
    if why is not None and not found:
        raise why
    single_s = min(plan.single_s for _, plan in found)
    model, plan = min(found, key=lambda each: each[1].predicted_s)
    return model, replace(plan, single_s=single_s)


def _ways(config: CompileConfig, num_devices: int) -> list[tuple[int | None, str]]:
    """The numbers of parts to choose from, each with the ways to cut."""
    counts: list[int | None] = [config.parts]  # type: ignore[list-item]
    if config.parts == AUTO:
        counts = [1 << e for e in range((num_devices - 1).bit_length() + 1)]
    methods = tuple(METHODS) if config.method == AUTO else (config.method,)
    return [
        (parts, method)
        for parts in counts
        for method in (methods if (parts or 1) > 1 else methods[:1])
    ]


def _plans(
    models: Sequence[TorchModel], topology: Topology, config: CompileConfig
) -> tuple[list[tuple[TorchModel, CompiledPlan]], DopplerError | None]:
    """A plan of each model that has one, and why there is none for the last that has not."""
    found, why = list[tuple[TorchModel, CompiledPlan]](), None
    for model in models:
        try:
            found.append((model, make_plan(model.graph, topology, config)))
        except DopplerError as error:  # a part is too large for every device
            why = error
    return found, why


def make_plan(graph: Graph, topology: Topology, config: CompileConfig) -> CompiledPlan:
    """The best of what the placer finds and of all vertices on one device, as predicted."""
    problem = Problem(graph, topology)
    placed = place(graph, topology, config.placer, budget_s=config.budget_s)
    # What pieces return has no place from which a memory plan could move it to the host.
    found = _predictions(problem, placed) if placed.memory is None else []
    single_s = float("inf")
    for d in range(topology.num_devices):
        alone = _predictions(problem, Assignment(devices=np.where(graph.is_input, -1, d)))
        if alone:  # else it has too little memory
            single_s = min(single_s, alone[0].trace.makespan_s)
        found += alone
    if not found:
        raise _too_large(graph, topology)
    best = min(found, key=lambda each: each.trace.makespan_s)
    loads = tuple(device_loads(graph, topology, best.trace))
    predicted_s = best.trace.makespan_s
    return CompiledPlan(graph, topology, best.assignment, best.mode, predicted_s, single_s, loads)


def _too_large(graph: Graph, topology: Topology) -> OutOfMemoryError:
    weights = float(graph.tensor_bytes[graph.is_resident[graph.tensor_producer]].sum())
    devices = ", ".join(f"`{d.name}` {d.memory_bytes / 1e9:.3g} GB" for d in topology.devices)
    return OutOfMemoryError(
        f"`{graph.name}`, with {weights / 1e9:.3g} GB of weights, fits no assignment that was "
        f"found on the devices of {topology.name} ({devices}) unless tensors are moved to the host "
        "and back, which pieces of a model cannot",
        hint="use devices with more memory, or more of them",
    )


class _Prediction(NamedTuple):
    assignment: Assignment
    mode: str
    trace: Trace


def _predictions(problem: Problem, assignment: Assignment) -> list[_Prediction]:
    """An assignment in each mode that has the memory, the faster first."""
    found = []
    for mode in (DYNAMIC, FIXED):
        simulator = Simulator(problem, SimConfig(mode=mode))
        with suppress(OutOfMemoryError):
            found.append(_Prediction(assignment, mode, simulator.run(problem.graph, assignment)))
    return sorted(found, key=lambda each: each.trace.makespan_s)
