"""The built-in topologies: TOML files in `data/`, and the family `reference:N`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.arrays import unboxed
from doppler.base.files import STANDARD_STREAM, read_text, source_name
from doppler.errors import TopologyError, UnknownNameError
from doppler.topology.io import MAX_DEVICES, topology_from_document, topology_from_text
from doppler.topology.topology import DTYPE_CLASSES, Device, Link, Rates, Topology

REFERENCE = "reference:"
PRESETS = (
    "p100x4",
    "p100x4-8gb",
    "v100x8",
    "a100x2-t4x2",
    "cpu2",
    "cpu2-hosts2",
    "cpu2-hosts4",
    "p100x4-first-fit",
    "v100x8-first-fit",
)


def preset(name: str) -> Topology:
    """The built-in topology of that name; `reference:N` for any N."""
    import tomllib

    if name.startswith(REFERENCE):
        return reference(name)
    if name not in PRESETS:
        raise UnknownNameError("topology", name, (*PRESETS, f"{REFERENCE}N"))
    text = (files("doppler.topology") / "data" / f"{name}.toml").read_text("utf-8")
    return topology_from_document(tomllib.loads(text), f"preset `{name}`")


def read_topology(name_or_path: str | Path) -> Topology:
    """The topology in a TOML or JSON file, or the preset of that name.

    >>> read_topology("p100x4").num_devices
    4
    """
    name, path = str(name_or_path), Path(name_or_path)
    is_preset = name in PRESETS or name.startswith(REFERENCE)
    is_file = path.suffix in (".toml", ".json") or name == STANDARD_STREAM
    if not is_preset and (is_file or isinstance(name_or_path, Path) or _exists(path)):
        return topology_from_text(read_text(path), source_name(path))
    return preset(name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


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


def uniform(
    count: int,
    flops_per_s: Rates | Sequence[Rates] | None,
    link: Link,
    device: Device,
    name: str,
    host: Link | None = None,
) -> Topology:
    """`count` devices like `device`, with a link like `link` for every ordered pair.

    `flops_per_s` is for all of them, or a sequence with one for each. `host` is the link between
    the host's memory and each device; None: there are none.
    """
    count = unboxed(count)
    if type(count) is not int or not 1 <= count <= MAX_DEVICES:
        raise TopologyError(f"devices is {count!r}, must be a whole number from 1 to {MAX_DEVICES}")
    rates: Any = flops_per_s
    if not isinstance(rates, (list, tuple, np.ndarray)):
        rates = [rates] * count
    if len(rates) != count:
        raise TopologyError(f"flops_per_s has {len(rates)} entries for {count} devices")
    names = [f"{device.name}{i}" for i in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    route = np.full((count, count), -1, np.int64)
    for number, (a, b) in enumerate(pairs):
        route[a, b] = number
    links = [replace(link, name=f"{link.name} {names[a]}→{names[b]}") for a, b in pairs]
    links += [] if host is None else [replace(host, name=f"{host.name} {n}") for n in names]
    return Topology(
        name=name,
        devices=tuple(
            replace(device, name=each, flops_per_s=_by_class(rate))
            for each, rate in zip(names, rates, strict=True)
        ),
        links=tuple(links),
        route=route,
        host_links=tuple(range(len(pairs), len(links))),
    )


def _by_class(rate: Rates | None) -> dict[str, float]:
    if rate is None:
        return {}
    return dict(rate) if isinstance(rate, Mapping) else dict.fromkeys(DTYPE_CLASSES, rate)
