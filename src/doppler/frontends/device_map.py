"""Plans out: the devices of a model's modules, and a table of its operations."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from doppler.assignment import Assignment
from doppler.base.arrays import rows
from doppler.base.files import to_json
from doppler.base.writing import write_text
from doppler.errors import ConfigError, GraphError
from doppler.graph.graph import Graph
from doppler.plan import Operation, modules_of
from doppler.topology.topology import Topology

JSON, CSV = ".json", ".csv"
UNREAD = "unread"  # in the provenance of a model's graph: weights of its state that nothing reads
STATE = "state"  # attribute of an input's kernel: what the model's state calls it
Place = int | str  # of Hugging Face's convention: the number of a GPU, or `cpu`


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The device of each module, by its path: whole modules, the largest there are.

    `split` names the modules with weights and without submodules that have operations on several
    devices. Each is given the device that does most of its work: whoever loads the map runs all of
    it there.
    """

    devices: Mapping[str, Place]
    split: tuple[str, ...] = ()


def device_map(graph: Graph, assignment: Assignment, topology: Topology) -> DeviceMap:
    """An assignment of a PyTorch model as a `device_map`, as Hugging Face's libraries take it.

    It covers all weights, those too that no operation reads. Devices are numbers of GPUs: of their
    addresses where they have some, else their numbers in the topology.

    >>> import doppler as dp, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    >>> graph = dp.from_torch(model, (torch.ones(1, 8),)).graph
    >>> topology = dp.Topology.preset("p100x4")
    >>> dp.device_map(graph, dp.place(graph, topology, "single"), topology).devices
    {'': 0}
    """
    assignment.check(graph, topology)
    check_modules(graph)
    modules, weights = _work(graph, assignment, places_of(topology))
    tree = _Tree(modules, weights)
    tree.visit(places_of(topology)[0])
    return DeviceMap(tree.devices, tuple(tree.split))


def check_modules(graph: Graph) -> None:
    """An error where no assignment of the graph has a device map, because it names no modules."""
    if any(modules_of(graph, v) for v in graph.assigned.tolist()):
        return
    if _is_sharded_model(graph):
        raise GraphError(
            f"graph `{graph.name}` is a model in parts: a module of it is on several devices, and "
            "a device map gives each module one",
            hint="import the model without `parts`, or write the plan as a table of operations",
        )
    raise GraphError(
        f"graph `{graph.name}` does not say which modules its operations are of",
        hint="import a PyTorch model: dp.from_torch, or dop import model.pt2",
    )


def _is_sharded_model(graph: Graph) -> bool:
    pairs = zip(graph.kernels, graph.roles, strict=False)  # either may be missing
    return any(kernel and role and "calls" in kernel.attributes for kernel, role in pairs)


def places_of(topology: Topology) -> list[Place]:
    """(D,) what each device is called in a `device_map`."""
    places: list[Place] = []
    for number, device in enumerate(topology.devices):
        kind, _, rest = device.address.partition(":")
        gpu = rest.partition("/")[0]
        places.append(int(gpu) if kind == "cuda" and gpu.isdecimal() else kind or number)
    return places


def write_device_map(found: DeviceMap, path: str | Path, *, force: bool = False) -> None:
    """Write a map as JSON, for `accelerate.dispatch_model` or `device_map=` of transformers."""
    write_text(path, to_json(dict(found.devices)), kind="device map", force=force)


def write_operations(rows: list[Operation], path: str | Path, *, force: bool = False) -> None:
    """Write what each operation does, where and when: a table (.csv), or JSON (.json)."""
    names = Operation._fields
    kind = operations_kind(path)
    if kind == "csv":
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows([names, *rows])
        write_text(path, text.getvalue(), kind=kind, force=force)
    else:
        documents = [row._asdict() for row in rows]
        write_text(path, to_json({"operations": documents}), kind=kind, force=force)


def operations_kind(path: str | Path) -> str:
    """What `write_operations` writes to a path."""
    kinds = {CSV: "csv", JSON: "table of operations"}
    if Path(path).suffix not in kinds:
        raise ConfigError(f"a table of operations cannot be written as `{path}`",
                          hint="name a file that ends in .csv or .json")  # fmt: skip
    return kinds[Path(path).suffix]


Work = dict[str, dict[Place, float]]  # flops on each device, by module or by weight


def _work(graph: Graph, assignment: Assignment, places: list[Place]) -> tuple[Work, Work]:
    """What is done in each module, and with each weight, on which devices; in the graph's order."""
    devices, modules, weights = assignment.devices.tolist(), Work(), Work()
    readers, made = (
        rows(graph.reader_ptr, graph.reader),
        rows(graph.output_ptr, graph.output_tensor),
    )
    for v, kernel in enumerate(graph.kernels):
        if not graph.is_input[v]:
            for path in modules_of(graph, v):
                _add(modules, path, places[devices[v]], float(graph.flops[v]))
        elif kernel and isinstance(name := kernel.attributes.get(STATE), str):
            weights.setdefault(name, {})
            for reader in (r for tensor in made[v] for r in readers[tensor]):
                _add(weights, name, places[devices[reader]], 0.0)
    for name in filter(None, graph.provenance.get(UNREAD, "").split("\n")):
        weights.setdefault(name, {})
    return modules, weights


def _add(work: Work, name: str, place: Place, flops: float) -> None:
    found = work.setdefault(name, {})
    found[place] = found.get(place, 0.0) + flops


class _Tree:
    """The modules of a model, of which whole ones get a device."""

    def __init__(self, modules: Work, weights: Work) -> None:
        self.devices: dict[str, Place] = {}
        self.split: list[str] = []
        self._weights, self._total = weights, Work()  # of a module and all in it
        self._children: dict[str, dict[str, None]] = {}
        self._own: dict[str, list[str]] = {}  # weights, by module
        for path, work in modules.items():
            self._count(path, work)
        for name, work in weights.items():  # a tied weight is read elsewhere, too
            self._count(_parent(name), {} if _parent(name) in modules else work)
            self._own.setdefault(_parent(name), []).append(name)

    def _count(self, path: str, work: Mapping[Place, float]) -> None:
        """Add work to a module and to all that it is in."""
        self._total.setdefault("", {})
        while True:
            self._total.setdefault(path, {})
            for place, flops in work.items():
                _add(self._total, path, place, flops)
            if not path:
                return
            self._children.setdefault(_parent(path), {})[path] = None
            path = _parent(path)

    def visit(self, first: Place) -> None:
        """Give each module a device, or its parts, if they have several; `first` by default."""
        pending = [("", first)]
        while pending:
            path, inherited = pending.pop()
            total = self._total[path]
            most = max(total, key=total.__getitem__, default=inherited)
            if len(total) < 2:
                self.devices[path] = most
            elif path in self._children:
                pending += [(child, most) for child in reversed(self._children[path])]
                for name in self._own.get(path, ()):
                    work = self._weights[name]
                    self.devices[name] = max(work, key=work.__getitem__, default=most)
            elif path in self._own:  # one without weights runs wherever its arguments are
                self.devices[path] = most
                self.split.append(path)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
