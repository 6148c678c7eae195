"""Layout: where in its device's memory every copy of a tensor is, decided before a run.

Where memory allows, each copy has a place of its own. Where it does not, places are used again
along a planned order, as `doppler.scheduler.places` finds them. Each such use adds a dependency,
the new writer after the old readers, so that whatever order a run takes, nothing is overwritten
that is still needed.
"""

from collections.abc import Callable, Sequence

import numpy as np

from doppler.errors import OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan
from doppler.scheduler.places import (
    IN_PLACE,
    Places,
    TensorCopy,
    copies_of,
    find_places,
    memory_sizes,
)
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

_NO_MOVES = MemoryPlan([], [], [], [0], [], [], [])  # type: ignore[arg-type]


def copies_in_run(graph: Graph, tasks: Tasks, plan: MemoryPlan | None) -> list[TensorCopy]:
    """Every stay of a tensor in a device's memory; `tasks` are those without the plan's moves.

    Inputs that stay do so to the end, unless there is a plan.
    """
    copies = copies_of(graph, tasks, plan or _NO_MOVES)
    if plan is None:
        stays = graph.stays[graph.tensor_producer].tolist()
        for copy in copies:
            copy.is_kept |= stays[copy.tensor]
    return copies


def make_layout(
    graph: Graph,
    topology: Topology,
    tasks: Tasks,
    copies: list[TensorCopy],
    order: Callable[[], Sequence[int]],
    *,
    planned: bool = False,
    limit: bool = True,
) -> Places:
    """Places that fit the devices' memory; without a `limit`, every copy has its own.

    `order` gives the order of all tasks, and is only called where places must be shared, or are
    `planned`: those of a memory plan.
    """
    limits = [device.memory_bytes for device in topology.devices]
    if not limit or not planned:
        apart = _apart(graph, topology, tasks, copies)
        if not limit or all(top <= most for top, most in zip(apart.top, limits, strict=True)):
            return apart
    places = find_places(graph, topology, tasks, copies, np.array(order(), np.int64))
    for d, top in enumerate(places.top):
        if top > limits[d]:
            raise _error(graph, topology, places, d)
    return places


def _apart(graph: Graph, topology: Topology, tasks: Tasks, copies: list[TensorCopy]) -> Places:
    """Every copy in a place of its own; one for the temporaries of a device that has one slot.

    Only execs have temporaries, and those of such a device run one after the other.
    """
    sizes, temporaries = memory_sizes(graph)
    offset, temporary, top = [0] * len(copies), [0] * graph.num_vertices, [0] * topology.num_devices
    devices = tasks.devices.tolist()
    for v in graph.assigned.tolist():
        if topology.devices[devices[v]].slots == 1:
            top[devices[v]] = max(top[devices[v]], temporaries[v])
    for i, copy in enumerate(copies):
        offset[i] = top[copy.device]
        top[copy.device] += sizes[copy.tensor]
    for v in graph.assigned.tolist():
        if topology.devices[devices[v]].slots > 1:
            temporary[v] = top[devices[v]]
            top[devices[v]] += temporaries[v]
    return Places(copies, offset, temporary, top, list(top), [])


def _error(graph: Graph, topology: Topology, places: Places, d: int) -> OutOfMemoryError:
    """What does not fit, where, and by how much."""
    device, top, live = topology.devices[d], places.top[d], places.live[d]
    sizes, _ = memory_sizes(graph)
    here = [copy for copy in places.copies if copy.device == d]
    inputs = sum(sizes[copy.tensor] for copy in here if copy.writer == IN_PLACE)
    parts = [f"{live} are in use at once"] if live < top else []
    parts += [f"{inputs} are of inputs that are in place"] if inputs else []
    details = f" ({', '.join(parts)})" if parts else ""
    return OutOfMemoryError(
        f"device `{device.name}` is out of memory: its tensors take {top} bytes{details}, "
        f"{top - device.memory_bytes:.0f} more than the {device.memory_bytes:.0f} it has",
        hint="use more devices or larger ones, spread the vertices over them, leave inputs out of "
        "the account (`--inputs everywhere`), or make a memory plan",
    )
