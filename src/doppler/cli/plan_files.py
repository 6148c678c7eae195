"""Files that other programs read: what a plan makes of modules and of operations."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from doppler.errors import ConfigError

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.problem import Problem
    from doppler.trace import Trace


class PlannedRun(NamedTuple):
    """An assignment and its run in the simulator."""

    assignment: "Assignment"
    problem: "Problem"
    trace: "Trace"


def check_outputs(
    operations: Path | None,
    device_map: Path | None,
    *,
    assignment: str,
    graph: Path | None,
    force: bool,
) -> None:
    """Raise an error where one of the files cannot be written."""
    from doppler.base.writing import check_output
    from doppler.frontends.device_map import operations_kind

    inputs = (assignment, graph)
    if graph is None and (operations or device_map):
        what = "--operations and --device-map need the assignment's graph"
        raise ConfigError(what, hint="add --graph")
    if operations is not None:
        check_output(operations, kind=operations_kind(operations), inputs=inputs, force=force)
    check_output(device_map, kind="device map", inputs=(*inputs, operations), force=force)


def write_outputs(
    planned: PlannedRun | None, operations: Path | None, device_map: Path | None, *, force: bool
) -> None:
    """Write the files that were asked for."""
    from doppler.cli import plans
    from doppler.frontends.device_map import write_operations
    from doppler.plan import operations as operations_of

    if planned is None:
        return
    assignment, problem, trace = planned
    if operations is not None:
        rows = operations_of(problem.graph, problem.topology, trace)
        write_operations(rows, operations, force=force)
    plans.write_device_map(assignment, problem, device_map, force=force)
