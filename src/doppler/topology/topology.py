"""Topology: the machine: devices, the links between them, and the host that drives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from doppler.base.arrays import (
    LARGEST,
    RANGE,
    SMALLEST,
    IntArray,
    frozen,
    reals,
    unbox_fields,
    unboxed,
)
from doppler.base.notebook import brief, html_table, number
from doppler.errors import TopologyError

MAX_ROOM = 1024  # slots of a device, or lanes of a link
MAX_ROOMS = 1 << 22  # of all devices and links: the simulator keeps a number for each
DTYPE_CLASSES = ("float16", "float32", "float64")
KERNEL_FAMILIES = ("matmul", "elementwise", "reduction")  # kernels that slow down alike
VIA = ("direct", "host")  # ways to move data
Rates = float | Mapping[str, float]  # flops per second: of all dtypes, or by dtype class


@dataclass(frozen=True, slots=True)
class Device:
    """A processor. A kernel on it takes `launch_s + max(flops / rate, bytes / bandwidth)`.

    >>> import doppler as dp
    >>> dp.Device("gpu0", flops_per_s={"float32": 1e13}, memory_bytes=16e9).slots
    1
    """

    name: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype class
    memory_bytes_per_s: float = inf  # what kernels reach on data in its memory
    memory_bytes: float = inf  # capacity; inf = no limit
    slots: int = 1  # kernels that run at the same time
    launch_s: float = 0.0  # fixed device time of every kernel
    group: str = ""  # devices of one group are close: one NVLink island, one board, one node
    address: str = ""  # where the engine finds it: `cpu:0`, `cuda:0`, `cuda:0/1of4`

    def __post_init__(self) -> None:
        unbox_fields(self)


@dataclass(frozen=True, slots=True)
class Link:
    """A connection. A transfer over it takes `latency_s + bytes / bandwidth_bytes_per_s`.

    >>> import doppler as dp
    >>> dp.Link("pcie", bandwidth_bytes_per_s=12e9, latency_s=2e-5).lanes
    1
    """

    name: str
    bandwidth_bytes_per_s: float = inf  # of one transfer; inf = seconds come with the graph
    latency_s: float = 0.0
    lanes: int = 1  # transfers that run at the same time; 0 = any number
    via: str = ""  # how the engine moves data: `direct`, through the `host`, or as it finds best

    def __post_init__(self) -> None:
        unbox_fields(self)


@dataclass(frozen=True, slots=True)
class Host:
    """What the process that drives the devices costs.

    >>> import doppler as dp
    >>> dp.Host(dispatch_s=3e-5).completion_s
    0.0
    """

    dispatch_s: float = 0.0  # to start a task; the host starts one at a time
    completion_s: float = 0.0  # from a task's end until tasks that wait for it may start
    ahead: int = 0  # tasks it may start on a busy device or link, to begin there in that order

    def __post_init__(self) -> None:
        unbox_fields(self)


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A machine: D devices, L links, and for every ordered pair of devices its link.

    >>> import doppler as dp
    >>> dp.Topology.preset("v100x8").num_devices
    8
    >>> dp.Topology.uniform(devices=2, flops_per_s=1e13, bandwidth_bytes_per_s=1e10).num_links
    2
    """

    name: str
    devices: tuple[Device, ...]  # (D,)
    links: tuple[Link, ...]  # (L,)
    route: IntArray  # (D, D) link from row to column; pairs may share one; -1 on the diagonal
    host: Host = Host()
    description: str = ""  # where its numbers come from
    # Measured seconds of kernels by their signatures (`doppler.graph.signatures`), one for each
    # device; where there are some, they count and not the device's speeds.
    exec_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Times longer, by family, that a kernel takes where all devices are busy than alone on one,
    # as devices may share caches and memory; 1 for the families it leaves out.
    contention: Mapping[str, float] = field(default_factory=dict)
    # Bytes, ascending, and the measured seconds that a transfer of that size takes beyond the
    # latency and bandwidth of its link; interpolated in between.
    extra_transfer_s: tuple[tuple[float, float], ...] = ()
    # (D,) link between the host's memory and each device, for both directions; devices may share
    # one. Empty: not known.
    host_links: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "route", frozen(np.asarray(self.route, np.int64)))
        object.__setattr__(self, "exec_s", unboxed(self.exec_s))
        object.__setattr__(self, "contention", unboxed(self.contention))
        pairs = tuple((float(size), float(extra)) for size, extra in self.extra_transfer_s)
        object.__setattr__(self, "extra_transfer_s", pairs)
        object.__setattr__(self, "host_links", unboxed(tuple(self.host_links)))
        _check(self)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.links)

    @property
    def has_host_links(self) -> bool:
        """Whether the links between the host's memory and the devices are known."""
        return bool(self.host_links)

    @property
    def route_from_host(self) -> IntArray:
        """(D+1, D) the route, with one more row: the link from the host; -1 if not known."""
        row = self.host_links or (-1,) * self.num_devices
        return np.concatenate([self.route, [row]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return _fields(self) == _fields(other) and np.array_equal(self.route, other.route)

    def __hash__(self) -> int:
        return hash((self.name, self.num_devices, self.num_links))

    def __repr__(self) -> str:
        counts = f"{self.num_devices} devices, {self.num_links} links"
        return f"<Topology {brief(self.name)}: {counts}>"

    def _repr_html_(self) -> str:
        columns = ("device", "flops/s", "memory B/s", "memory B", "slots", "group")
        rows = (
            (
                d.name,
                ", ".join(f"{key} {number(rate)}" for key, rate in d.flops_per_s.items()),
                number(d.memory_bytes_per_s),
                number(d.memory_bytes),
                str(d.slots),
                d.group,
            )
            for d in self.devices
        )
        return html_table(repr(self), columns, rows, count=self.num_devices)

    def without_contention(self) -> "Topology":
        """The same machine where a kernel takes no longer if other devices are busy.

        Seconds in `exec_s` stay as they were measured.

        >>> shared = replace(Topology.preset("p100x4"), contention={"elementwise": 1.3})
        >>> shared.without_contention() == Topology.preset("p100x4")
        True
        """
        return replace(self, contention={}) if self.contention else self

    @staticmethod
    def preset(name: str) -> "Topology":
        """A built-in topology, such as `p100x4` or `reference:4`."""
        from doppler.topology.presets import preset

        return preset(name)

    @staticmethod
    def uniform(
        devices: int = 2,
        *,
        flops_per_s: Rates | Sequence[Rates] | None = None,
        bandwidth_bytes_per_s: float = inf,
        latency_s: float = 0.0,
        lanes: int = 1,
        memory_bytes_per_s: float = inf,
        memory_bytes: float = inf,
        slots: int = 1,
        host_bandwidth_bytes_per_s: float | None = None,
        host_latency_s: float = 0.0,
        name: str = "uniform",
    ) -> "Topology":
        """A machine of `devices` alike, `device0` to the last, with a link from each to each other.

        `flops_per_s` is a number for all dtypes, or one by dtype class; a list has one of these for
        each device. Without it the graph must bring `exec_s`, and without a bandwidth `transfer_s`.
        `host_bandwidth_bytes_per_s` adds a link between the host's memory and each device.
        The other options are those of `Device` and `Link`.

        >>> Topology.uniform(devices=2, flops_per_s=10e12, bandwidth_bytes_per_s=12e9)
        <Topology 'uniform': 2 devices, 2 links>
        """
        from doppler.topology.presets import uniform

        host = None
        if host_bandwidth_bytes_per_s is not None:
            host = Link("host", host_bandwidth_bytes_per_s, latency_s=host_latency_s)
        elif host_latency_s:
            raise TopologyError("host_latency_s needs host_bandwidth_bytes_per_s")
        return uniform(
            devices,
            flops_per_s,
            Link("link", bandwidth_bytes_per_s, latency_s=latency_s, lanes=lanes),
            Device("device", {}, memory_bytes_per_s, memory_bytes, slots),
            name,
            host,
        )


def _fields(topology: Topology) -> tuple[Any, ...]:
    devices = tuple((*_row(d), *sorted(d.flops_per_s.items())) for d in topology.devices)
    values = topology.name, topology.links, topology.host, topology.description
    measured = topology.exec_s, topology.contention, topology.extra_transfer_s
    return *values, devices, *measured, topology.host_links


def _row(device: Device) -> tuple[Any, ...]:
    return (
        device.name,
        device.memory_bytes_per_s,
        device.memory_bytes,
        device.slots,
        device.launch_s,
        device.group,
        device.address,
    )


def _check_numbers(topology: Topology) -> None:
    for d in topology.devices:
        where = f"device `{d.name}`"
        for key, rate in d.flops_per_s.items():
            if key not in DTYPE_CLASSES:
                raise TopologyError(
                    f"{where}: flops_per_s has no dtype class `{key}`",
                    hint=f"known: {', '.join(DTYPE_CLASSES)}",
                )
            _check_real(where, f"flops_per_s.{key}", rate, positive=True)
        for key in ("memory_bytes_per_s", "memory_bytes"):
            _check_real(where, key, getattr(d, key), positive=True, may_be_infinite=True)
        _check_real(where, "launch_s", d.launch_s)
        _check_whole(where, "slots", d.slots, least=1)
    for link in topology.links:
        where, bandwidth = f"link `{link.name}`", link.bandwidth_bytes_per_s
        _check_real(where, "bandwidth_bytes_per_s", bandwidth, positive=True, may_be_infinite=True)
        _check_real(where, "latency_s", link.latency_s)
        _check_whole(where, "lanes", link.lanes, least=0)
        if link.via not in ("", *VIA):
            raise TopologyError(f"{where}: via is `{link.via}`, must be direct or host")
    host = topology.host
    _check_real("host", "dispatch_s", host.dispatch_s)
    _check_real("host", "completion_s", host.completion_s)
    _check_whole("host", "ahead", host.ahead, least=0)


def _check_measured(topology: Topology) -> None:
    for key, seconds in topology.exec_s.items():
        where = f'exec_s["{key}"]'
        if not isinstance(seconds, tuple) or len(seconds) != topology.num_devices:
            raise TopologyError(
                f"{where} is {seconds!r}, must be {topology.num_devices} numbers, one per device"
            )
        for one in seconds:
            _check_real("", where, one)
    for family, factor in topology.contention.items():
        if family not in KERNEL_FAMILIES:
            raise TopologyError(
                f"contention has no family of kernels `{family}`",
                hint=f"known: {', '.join(KERNEL_FAMILIES)}",
            )
        _check_real("", f"contention.{family}", factor)
        if factor < 1:
            raise TopologyError(f"contention.{family} is {factor}, must be at least 1")
    for i, (size, extra) in enumerate(topology.extra_transfer_s):
        _check_real("", f"extra_transfer_s[{i}]", size)
        _check_real("", f"extra_transfer_s[{i}]", extra)
    sizes = [size for size, _ in topology.extra_transfer_s]
    if sizes != sorted(set(sizes)):
        raise TopologyError("extra_transfer_s must be in the order of its bytes, each once")


def _check_real(
    where: str, name: str, value: Any, *, positive: bool = False, may_be_infinite: bool = False
) -> None:
    """Raise unless it is a number of the range that costs can be computed in."""
    if type(value) in (int, float):
        if (value == 0 and not positive) or SMALLEST <= value <= LARGEST:
            return
        if may_be_infinite and value == inf:
            return
    if type(value) is int:  # which may have more digits than Python prints
        (value,) = reals([value]).tolist()  # type: ignore[union-attr]
    what = f"{where}: {name} is {value!r}" if where else f"{name} is {value!r}"
    if type(value) is float and 0 < value < inf:
        raise TopologyError(f"{what}, must be {RANGE}")
    wanted = "> 0" if may_be_infinite else "> 0 and finite"
    raise TopologyError(f"{what}, must be {wanted if positive else 'finite and not negative'}")


def _check_whole(where: str, name: str, value: Any, *, least: int) -> None:
    if type(value) is not int or not least <= value < 2**31:
        raise TopologyError(f"{where}: {name} is {value!r}, must be a whole number ≥ {least}")


def _check(topology: Topology) -> None:
    size = topology.num_devices
    if not isinstance(topology.name, str):
        raise TopologyError(f"the topology's name must be text, not {topology.name!r}")
    if size == 0:
        raise TopologyError(f"topology `{topology.name}` has no devices")
    _check_numbers(topology)
    _check_measured(topology)
    _check_rooms(topology)
    names = [d.name for d in topology.devices]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise TopologyError(f"two devices are named `{twice}`")
    if topology.route.shape != (size, size):
        raise TopologyError(f"route has shape {topology.route.shape}, expected {(size, size)}")
    for source in range(size):
        if topology.route[source, source] != -1:
            raise TopologyError(f"device `{names[source]}` has a link to itself")
        for target in range(size):
            link = topology.route[source, target]
            if source != target and not 0 <= link < topology.num_links:
                raise TopologyError(
                    f"no link from `{names[source]}` to `{names[target]}`",
                    hint='name the pair in a link, or add a link with pairs = "others"',
                )
    _check_host_links(topology)


def _check_host_links(topology: Topology) -> None:
    if len(topology.host_links) not in (0, topology.num_devices):
        raise TopologyError(
            f"host_links has {len(topology.host_links)} entries for {topology.num_devices} devices"
        )
    for device, link in zip(topology.devices, topology.host_links, strict=False):
        if type(link) is not int or not 0 <= link < topology.num_links:
            raise TopologyError(
                f"device `{device.name}`: the link to the host is {link!r}",
                hint=f"the number of one of the {topology.num_links} links",
            )


def _check_rooms(topology: Topology) -> None:
    rooms = [("device", d.name, "slots", d.slots) for d in topology.devices]
    rooms += [("link", link.name, "lanes", link.lanes) for link in topology.links]
    for kind, name, column, room in rooms:
        if room > MAX_ROOM:
            no_limit = "; 0 stands for any number" if kind == "link" else ""
            raise TopologyError(
                f"{kind} `{name}`: {column} is {room}", hint=f"at most {MAX_ROOM}{no_limit}"
            )
    if (total := sum(room for *_, room in rooms)) > MAX_ROOMS:
        raise TopologyError(f"{total} slots and lanes; at most {MAX_ROOMS} are supported")
