"""The built-in topologies: TOML files in `data/`, and the family `reference:N`."""

import os
from importlib.resources import files
from pathlib import Path

import numpy as np

from doppler.errors import TopologyError, UnknownNameError
from doppler.files import STANDARD_STREAM
from doppler.topology.io import MAX_DEVICES, read_topology, topology_from_document
from doppler.topology.topology import Device, Link, Topology

REFERENCE = "reference:"
PRESETS = ("p100x4", "p100x4-8gb", "v100x8", "a100x2-t4x2", "cpu2")


def preset(name: str) -> Topology:
    """The built-in topology of that name; `reference:N` for any N."""
    import tomllib

    if name.startswith(REFERENCE):
        return reference(name)
    if name not in PRESETS:
        raise UnknownNameError("topology", name, (*PRESETS, f"{REFERENCE}N"))
    text = (files("doppler.topology") / "data" / f"{name}.toml").read_text("utf-8")
    return topology_from_document(tomllib.loads(text), f"preset `{name}`")


def load_topology(name_or_path: str) -> Topology:
    """A preset by name, or the topology in a TOML or JSON file."""
    if name_or_path in PRESETS or name_or_path.startswith(REFERENCE):
        return preset(name_or_path)
    path = Path(name_or_path)
    named = path.suffix in (".toml", ".json") or name_or_path == STANDARD_STREAM
    if named or os.path.exists(path):  # noqa: PTH110
        return read_topology(path)
    return preset(name_or_path)


def reference(name: str) -> Topology:
    """`reference:N`: the semantics of the paper authors' simulator on N equal devices.

    One slot each, any number of transfers at once, no host costs, unlimited memory. Costs
    must come with the graph and are taken as they are: one abstract unit is one second.
    """
    count = name.removeprefix(REFERENCE)
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) <= MAX_DEVICES):
        raise TopologyError(
            f"topology `{name}`: `{count}` is not a number of devices",
            hint=f"write reference:4; 1 to {MAX_DEVICES} devices",
        )
    size = int(count)
    route = np.zeros((size, size), np.int64)
    np.fill_diagonal(route, -1)
    return Topology(
        name=name,
        devices=tuple(Device(f"device{i}") for i in range(size)),
        links=(Link("any", lanes=0),) if size > 1 else (),
        route=route,
        description="The paper authors' simulator: explicit costs, no contention, no host.",
    )
