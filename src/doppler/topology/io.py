"""Topologies as TOML or JSON files, with every error naming its field."""

import tomllib
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray, reals
from doppler.base.files import check_header, check_keys, parse_json, to_json
from doppler.base.writing import write_text
from doppler.errors import FormatError, TopologyError
from doppler.topology.topology import (
    DTYPE_CLASSES,
    KERNEL_FAMILIES,
    VIA,
    Device,
    Host,
    Link,
    Topology,
)

FORMAT, VERSION = "doppler-topology", 1
MAX_DEVICES = 1024
OTHERS = "others"  # every ordered pair, or every device, that no other link names
_DEVICE_KEYS = (
    "flops_per_s",
    "memory_bytes_per_s",
    "memory_bytes",
    "slots",
    "launch_s",
    "group",
    "address",
    "count",
    "first",
)
_LINK_KEYS = ("bandwidth_bytes_per_s", "latency_s", "lanes", "via", "shared", "one_way")
_SERVED = ("pairs", "host")  # what a link serves: pairs of devices, devices and the host


def topology_from_text(text: str, source: str) -> Topology:
    """The topology in a TOML or JSON text; `source` is what errors call it."""
    if text.lstrip().startswith("{"):
        return topology_from_document(parse_json(text, source), source)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source} is not valid TOML: {error}") from None
    return topology_from_document(document, source)


def write_topology(topology: Topology, path: str | Path, *, force: bool = False) -> None:
    """Write a topology as JSON; over a file of another kind only with `force`.

    >>> import doppler as dp
    >>> dp.write_topology(dp.Topology.preset("cpu2"), "machine.json")
    >>> dp.read_topology("machine.json").num_devices
    2
    """
    write_text(path, topology_to_json(topology), kind=FORMAT, force=force)


def topology_to_json(topology: Topology) -> str:
    """The JSON text of a topology: each device and link in full."""
    names = [d.name for d in topology.devices]
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": topology.name}
    document |= {"description": topology.description} if topology.description else {}
    document["host"] = {
        "dispatch_s": topology.host.dispatch_s,
        "completion_s": topology.host.completion_s,
        "ahead": topology.host.ahead,
    }
    document["devices"] = [_device_to_json(d) for d in topology.devices]
    pairs: list[list[list[str]]] = [[] for _ in topology.links]
    for a, b in np.argwhere(topology.route >= 0).tolist():
        pairs[topology.route[a, b]].append([names[a], names[b]])
    hosted: list[list[str]] = [[] for _ in topology.links]
    for name, number in zip(names, topology.host_links, strict=False):
        hosted[number].append(name)
    document["links"] = [
        {
            "name": link.name,
            **_unless_infinite("bandwidth_bytes_per_s", link.bandwidth_bytes_per_s),
            "latency_s": link.latency_s,
            "lanes": link.lanes,
            **({"via": link.via} if link.via else {}),
            "shared": True,
            "one_way": True,
            "pairs": served,
            **({"host": hosts} if hosts else {}),
        }
        for link, served, hosts in zip(topology.links, pairs, hosted, strict=True)
    ]
    if topology.exec_s:
        document["exec_s"] = {key: _one_or_all(s) for key, s in topology.exec_s.items()}
    if topology.contention:
        document["contention"] = dict(topology.contention)
    if topology.extra_transfer_s:
        document["extra_transfer_s"] = [list(pair) for pair in topology.extra_transfer_s]
    return to_json(document)


def _one_or_all(seconds: tuple[float, ...]) -> float | list[float]:
    """One number where it is the same on all devices."""
    return float(seconds[0]) if len(set(seconds)) == 1 else [float(one) for one in seconds]


def _device_to_json(device: Device) -> dict[str, Any]:
    row: dict[str, Any] = {"name": device.name, "slots": device.slots, "launch_s": device.launch_s}
    row |= {"flops_per_s": dict(device.flops_per_s)} if device.flops_per_s else {}
    row |= _unless_infinite("memory_bytes_per_s", device.memory_bytes_per_s)
    row |= _unless_infinite("memory_bytes", device.memory_bytes)
    row |= {"group": device.group} if device.group else {}
    return row | ({"address": device.address} if device.address else {})


def _unless_infinite(key: str, value: float) -> dict[str, float]:
    return {key: value} if isfinite(value) else {}


def topology_from_document(document: Any, source: str = "topology") -> Topology:
    """The topology a parsed TOML or JSON document describes."""
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    check_keys(
        document,
        required=("format", "version", "name", "devices"),
        optional=("description", "host", "links", "exec_s", "contention", "extra_transfer_s"),
        source=source,
    )
    try:
        host = _host(document.get("host", {}))
        devices = [
            d for i, row in _tables(document, "devices") for d in _devices(row, f"devices[{i}]")
        ]
        if len(devices) > MAX_DEVICES:
            raise TopologyError(f"{len(devices)} devices; at most {MAX_DEVICES} are supported")
        links, route, host_links = _links(document, [d.name for d in devices])
        return Topology(
            name=_text(document, "name", "topology"),
            devices=tuple(devices),
            links=tuple(links),
            route=route,
            host=host,
            description=_text(document, "description", "topology", default=""),
            exec_s=_measured(document.get("exec_s", {}), len(devices)),
            contention=_contention(document.get("contention", {})),
            extra_transfer_s=_extra(document.get("extra_transfer_s", [])),
            host_links=host_links,
        )
    except (TopologyError, FormatError) as error:
        raise TopologyError(f"{source}: {error.message}", hint=error.hint) from None


def _host(row: Any) -> Host:
    check_keys(row, optional=("dispatch_s", "completion_s", "ahead"), source="host")
    return Host(
        dispatch_s=_number(row, "dispatch_s", "host", default=0.0),
        completion_s=_number(row, "completion_s", "host", default=0.0),
        ahead=_whole(row, "ahead", "host", default=0, least=0),
    )


def _devices(row: Any, where: str) -> list[Device]:
    """One device, or `count` of them, numbered from `first`."""
    check_keys(
        row,
        required=("name",),
        optional=_DEVICE_KEYS,
        source=where,
    )
    name = _text(row, "name", where)
    names = [name]
    if "count" in row:
        first = _whole(row, "first", where, default=0, least=0)
        count = min(_whole(row, "count", where, default=1, least=1), MAX_DEVICES + 1)
        names = [f"{name}{i}" for i in range(first, first + count)]
    return [
        Device(
            name=each,
            flops_per_s=_rates(row, where),
            memory_bytes_per_s=_number(
                row, "memory_bytes_per_s", where, default=inf, positive=True
            ),
            memory_bytes=_number(row, "memory_bytes", where, default=inf, positive=True),
            slots=_whole(row, "slots", where, default=1, least=1),
            launch_s=_number(row, "launch_s", where, default=0.0),
            group=_text(row, "group", where, default=""),
            address=_text(row, "address", where, default=""),
        )
        for each in names
    ]


def _rates(row: dict[str, Any], where: str) -> dict[str, float]:
    """By dtype class; a number is for all of them. None at all: costs come with the graph."""
    value, where = row.get("flops_per_s", {}), f"{where}.flops_per_s"
    if not isinstance(value, dict):
        return dict.fromkeys(DTYPE_CLASSES, _checked(value, where, positive=True))
    check_keys(value, optional=DTYPE_CLASSES, source=where)
    return {key: _checked(rate, f"{where}.{key}", positive=True) for key, rate in value.items()}


def _measured(table: Any, num_devices: int) -> dict[str, tuple[float, ...]]:
    """Seconds by signature: a number is for all devices, a list has one for each."""
    if not isinstance(table, dict):
        raise TopologyError(f"exec_s must be an object, not {type(table).__name__}")
    measured = {}
    for key, value in table.items():
        where = f'exec_s["{key}"]'
        if not isinstance(value, list):
            measured[key] = (_checked(value, where, positive=False),) * num_devices
            continue
        if len(value) != num_devices:
            raise TopologyError(f"{where} has {len(value)} numbers for {num_devices} devices")
        rows = enumerate(value)
        measured[key] = tuple(_checked(s, f"{where}[{i}]", positive=False) for i, s in rows)
    return measured


def _contention(table: Any) -> dict[str, float]:
    """Factors by family of kernels."""
    check_keys(table, optional=KERNEL_FAMILIES, source="contention")
    return {key: _checked(f, f"contention.{key}", positive=True) for key, f in table.items()}


def _extra(rows: Any) -> tuple[tuple[float, float], ...]:
    """Pairs of bytes and seconds."""
    if not isinstance(rows, list):
        raise TopologyError(f"extra_transfer_s must be a list, not {type(rows).__name__}")
    pairs = []
    for i, row in enumerate(rows):
        where = f"extra_transfer_s[{i}]"
        if not isinstance(row, list) or len(row) != 2:
            raise TopologyError(f"{where} must be a list of bytes and seconds, not {row!r}")
        size, extra = (_checked(value, where, positive=False) for value in row)
        pairs.append((size, extra))
    return tuple(pairs)


def _links(
    document: dict[str, Any], names: list[str]
) -> tuple[list[Link], IntArray, tuple[int, ...]]:
    """The links, the link of each ordered pair, and the link of each device to the host."""
    route = np.full((len(names), len(names)), -1, np.int64)
    host_links = dict.fromkeys(names, -1)
    links: list[Link] = []
    entries = sorted(_tables(document, "links"), key=lambda entry: _rank(entry[1]))
    lists = [row.get("host") for _, row in entries if isinstance(row, dict)]
    named = [name for value in lists if isinstance(value, list) for name in value]
    for i, row in entries:
        where = f"links[{i}]"
        required = ("name",) if isinstance(row, dict) and "host" in row else ("name", "pairs")
        optional = tuple(key for key in (*_LINK_KEYS, *_SERVED) if key not in required)
        check_keys(row, required=required, optional=optional, source=where)
        link = _link(row, where)
        shared = _flag(row, "shared", where)
        links += [link] if shared else []
        for a, b in _pairs(row, where, names, route):
            if not shared:
                links.append(replace(link, name=f"{link.name} {names[a]}→{names[b]}"))
            route[a, b] = len(links) - 1
        for name in _hosted(row, where, host_links, named):
            if not shared:
                links.append(replace(link, name=f"{link.name} {name}"))
            host_links[name] = len(links) - 1
    if missing := [name for name, number in host_links.items() if number < 0]:
        if len(missing) < len(host_links):
            raise TopologyError(
                f"no link between the host and `{missing[0]}`",
                hint='name it in the `host` of a link, or add a link with host = "others"',
            )
        return links, route, ()
    return links, route, tuple(host_links.values())


def _rank(row: Any) -> int:
    """Named pairs come first, then those of others, then links of the host alone."""
    if not isinstance(row, dict):
        return 0
    return 2 if "pairs" not in row else int(row["pairs"] == OTHERS)


def _hosted(row: dict[str, Any], where: str, taken: dict[str, int], named: list[Any]) -> list[str]:
    """The devices an entry links with the host, none of them linked before."""
    value, where = row.get("host", []), f"{where}.host"
    if value == OTHERS:
        return [name for name, link in taken.items() if link < 0 and name not in named]
    if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise TopologyError(f'{where} must be a list of device names or "{OTHERS}"')
    for k, name in enumerate(value):
        if name not in taken:
            raise TopologyError(
                f"{where}[{k}]: no device named `{name}`", hint=f"devices: {', '.join(taken)}"
            )
        if taken[name] >= 0 or name in value[:k]:
            raise TopologyError(f"{where}: `{name}` has a link to the host already")
    return value


def _link(row: dict[str, Any], where: str) -> Link:
    via = _text(row, "via", where, default="")
    if via not in ("", *VIA):
        raise TopologyError(f"{where}.via must be {' or '.join(VIA)}, not {via!r}")
    return Link(
        name=_text(row, "name", where),
        bandwidth_bytes_per_s=_number(
            row, "bandwidth_bytes_per_s", where, default=inf, positive=True
        ),
        latency_s=_number(row, "latency_s", where, default=0.0),
        lanes=_whole(row, "lanes", where, default=1, least=0),
        via=via,
    )


def _pairs(
    row: dict[str, Any], where: str, names: list[str], route: IntArray
) -> list[tuple[int, int]]:
    """The ordered pairs of devices an entry serves, none of them served before."""
    size, value = len(names), row.get("pairs", [])
    one_way = _flag(row, "one_way", where)
    if value == OTHERS:
        return [(a, b) for a in range(size) for b in range(size) if a != b and route[a, b] < 0]
    if not isinstance(value, list):
        raise TopologyError(f'{where}.pairs must be a list of pairs or "{OTHERS}"')
    index = {name: i for i, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    for k, pair in enumerate(value):
        spot = f"{where}.pairs[{k}]"
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, str) for n in pair)
        ):
            raise TopologyError(f"{spot} must be two device names, not {pair!r}")
        for name in pair:
            if name not in index:
                raise TopologyError(
                    f"{spot}: no device named `{name}`", hint=f"devices: {', '.join(names)}"
                )
        a, b = index[pair[0]], index[pair[1]]
        if a == b:
            raise TopologyError(f"{spot} links `{pair[0]}` to itself")
        pairs += [(a, b)] if one_way else [(a, b), (b, a)]
    taken: set[tuple[int, int]] = set()
    for a, b in pairs:
        if route[a, b] >= 0 or (a, b) in taken:
            raise TopologyError(f"{where}.pairs: `{names[a]}` → `{names[b]}` has a link already")
        taken.add((a, b))
    return pairs


def _tables(document: dict[str, Any], key: str) -> list[tuple[int, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise TopologyError(f"`{key}` must be a list of tables")
    return list(enumerate(rows))


def _text(row: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str):
        raise TopologyError(f"{where}.{key} must be text, not {value!r}")
    return value


def _flag(row: dict[str, Any], key: str, where: str) -> bool:
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise TopologyError(f"{where}.{key} must be true or false, not {value!r}")
    return value


def _whole(row: dict[str, Any], key: str, where: str, *, default: int, least: int) -> int:
    value = row.get(key, default)
    if type(value) is not int or not least <= value < 2**31:
        raise TopologyError(f"{where}.{key} must be a whole number ≥ {least}, not {value!r}")
    return value


def _number(
    row: dict[str, Any],
    key: str,
    where: str,
    *,
    default: float | None = None,
    positive: bool = False,
) -> float:
    if key not in row and default is not None:
        return default
    return _checked(row.get(key), f"{where}.{key}", positive=positive)


def _checked(value: Any, where: str, *, positive: bool) -> float:
    wanted = "a finite number > 0" if positive else "a finite number ≥ 0"
    number = reals([value])
    if number is None or not isfinite(number[0]) or number[0] < 0 or (positive and number[0] == 0):
        raise TopologyError(f"{where} must be {wanted}, not {value!r}")
    return float(number[0])
