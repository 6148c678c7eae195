"""Explaining: what a compiled plan does, in words and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from doppler.assignment import Assignment
from doppler.placers.bounds.lower import proven_bound_s
from doppler.problem import Problem
from doppler.report.page import write_report
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.trace import Trace

if TYPE_CHECKING:
    from doppler.frontends.compilation.compiled_plans import CompiledPlan


def explanation(plan: "CompiledPlan", *, pieces: bool) -> str:
    """What runs where, and what each device does; with `pieces`, a line for each of these too."""
    saved = f"{100 * plan.gain:.0f} % less than {_ms(plan.single_s)} on one device"
    if not np.isfinite(plan.single_s):
        saved = "and no device has the memory for all"
    lines = [
        f"{len(plan.graph.assigned)} pieces on {plan.topology.num_devices} devices of "
        f"{plan.topology.name}, mode {plan.mode}: predicted {_ms(plan.predicted_s)}, {saved}"
    ]
    lines += [
        f"  {each.device}: {each.operations} pieces, computes {_ms(each.exec_s)}, receives "
        f"{each.bytes_in / 1e6:.3g} MB, holds up to {each.peak_bytes / 1e6:.3g} MB"
        for each in plan.loads
    ]
    return "\n".join([*lines, *(_reasons(plan) if pieces else ())])


def _reasons(plan: "CompiledPlan") -> list[str]:
    """For each piece: its device, and the predicted time if it alone were on another."""
    graph, names = plan.graph, [device.name for device in plan.topology.devices]
    simulator = Simulator(Problem(graph, plan.topology), SimConfig(mode=plan.mode))
    lines = []
    for v in graph.assigned.tolist():
        devices = np.repeat(plan.assignment.devices[None], len(names), axis=0)
        devices[:, v] = range(len(names))
        times = simulator.makespans(graph, [Assignment(devices=row) for row in devices]).tolist()
        here = int(plan.assignment.devices[v])
        others = [
            f"{_ms(times[d])} on {name}" if np.isfinite(times[d]) else f"too large for {name}"
            for d, name in enumerate(names)
            if d != here
        ]
        instead = f"; otherwise {', '.join(others)}" if others else ""
        lines.append(f"  {graph.vertex_names[v]} on {names[here]}{instead}")
    return lines


def write_plan_report(
    plan: "CompiledPlan", measured: Trace, path: str | Path, *, force: bool
) -> None:
    """Write an HTML page of a plan: as predicted, and as it was measured."""
    problem = Problem(plan.graph, plan.topology)
    predicted = Simulator(problem, SimConfig(mode=plan.mode)).run(plan.graph, plan.assignment)
    bound_s = proven_bound_s(problem, plan.assignment, plan.mode)
    write_report(
        {"predicted": predicted, "measured": measured},
        path,
        graph=plan.graph,
        topology=plan.topology,
        assignments={"predicted": plan.assignment},
        lower_bounds_s={"predicted": bound_s},
        title=f"{plan.graph.name} on {plan.topology.name}",
        force=force,
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
