"""The machine to measure: its devices by address, and links of which nothing is known yet."""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from doppler.errors import ConfigError, UnknownNameError
from doppler.topology.topology import Device, Host, Link, Topology

FEWEST_IN_FLIGHT, IN_FLIGHT = 4, 8  # transfers at the same time that are tried at most
HOST, DIRECT = "host", "direct"  # ways of a transfer between GPUs
HOST_MEMORY = "host memory"  # name of the link between it and the devices
UNPROVEN_BYTES_PER_S = 1e9  # of links before they are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which devices to measure."""

    backend: str = "cpu"
    devices: int | None = None  # how many; all there are if None
    partitions: int | None = None  # to cut one GPU into
    links: str = HOST  # the way of transfers between partitions

    def __post_init__(self) -> None:
        if self.links not in (HOST, DIRECT):
            raise UnknownNameError("way of transfers", self.links, (HOST, DIRECT))
        for name in ("devices", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if self.partitions is not None and self.backend != "cuda":
            raise ConfigError(
                f"backend `{self.backend}` has no partitions",
                hint="use --devices, or --backend cuda",
            )


def find_machine(wanted: Wanted, *, ahead: int = 1) -> Topology:
    """A topology of the devices there are, with a link for each way between them, the host's last.

    Nothing of it is measured yet. As many transfers may run at a time as will be tried.
    """
    if wanted.backend == "cuda":
        devices, ways, description = _gpus(wanted)
    elif wanted.backend == "cpu":
        devices, ways, description = _cores(wanted)
    else:
        count = wanted.devices or 2
        devices = [Device(f"{wanted.backend}{i}") for i in range(count)]
        ways, description = np.full((count, count), ""), f"Backend `{wanted.backend}`."
    names = [str(way) for way in np.unique(ways[~np.eye(len(devices), dtype=np.bool_)])]
    route = np.full(ways.shape, -1)
    for i, way in enumerate(names):
        route[ways == way] = i
    np.fill_diagonal(route, -1)
    return Topology(
        name=f"probed-{wanted.backend}{len(devices)}",
        devices=tuple(devices),
        links=(*(_link(way, len(devices)) for way in names), _host_link(len(devices))),
        route=route,
        host_links=(len(names),) * len(devices),
        host=Host(ahead=ahead),
        description=description,
    )


def _link(way: str, num_devices: int) -> Link:
    link = Link(way or "memory", UNPROVEN_BYTES_PER_S, lanes=_lanes(num_devices))
    return replace(link, via=way) if way else link


def _host_link(num_devices: int) -> Link:
    return Link(HOST_MEMORY, UNPROVEN_BYTES_PER_S, lanes=_lanes(num_devices))


def _lanes(num_devices: int) -> int:
    return min(max(num_devices, FEWEST_IN_FLIGHT), IN_FLIGHT)


def _cores(wanted: Wanted) -> tuple[list[Device], np.ndarray, str]:
    """The cores this process may use, dealt to as many devices as are wanted."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    count = wanted.devices or len(cores)
    if count > len(cores):
        raise ConfigError(
            f"{count} devices, but there are {len(cores)} cores", hint="ask for fewer devices"
        )
    share = len(cores) // count  # the same for all, so that they are alike
    memory = _memory_bytes() / count
    devices = [
        Device(
            name=f"cpu{i}",
            memory_bytes=memory,
            group="host",
            address=f"cpu:{','.join(str(core) for core in cores[i * share : (i + 1) * share])}",
        )
        for i in range(count)
    ]
    import torch

    what = f"{count} of {_processor()}, {share} cores each; {platform.system()}"
    return devices, np.full((count, count), ""), f"{what}, torch {torch.__version__}."


def _processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> float:
    """Bytes of memory of this machine, or of the container it is."""
    limits = [float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(float(Path(path).read_text("utf-8")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits)


def _gpus(wanted: Wanted) -> tuple[list[Device], np.ndarray, str]:
    """Every GPU, or the first one cut into partitions."""
    import torch

    from doppler.engine.backends import driver

    found = driver.start()  # first of all: it sets how CUDA is to start
    name = torch.cuda.get_device_name(0)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {_driver()}"
    if wanted.partitions is not None:
        if wanted.devices is not None and wanted.devices != wanted.partitions:
            raise ConfigError("partitions are devices: give one of the two numbers")
        count = wanted.partitions
        memory = float(torch.cuda.get_device_properties(0).total_memory) / count
        devices = [
            Device(f"part{i}", memory_bytes=memory, group="gpu0", address=f"cuda:0/{i}of{count}")
            for i in range(count)
        ]
        what = f"{count} partitions of one {name}, transfers by way of {wanted.links}"
        return devices, np.full((count, count), wanted.links), f"{what}; {versions}."
    count = wanted.devices or found
    if count > found:
        raise ConfigError(
            f"{count} devices, but there are {found} GPUs",
            hint="cut one into several with --partitions",
        )
    devices = [
        Device(
            f"gpu{i}",
            memory_bytes=float(torch.cuda.get_device_properties(i).total_memory),
            group=f"gpu{i}",
            address=f"cuda:{i}",
        )
        for i in range(count)
    ]
    ways = np.full((count, count), HOST, dtype="<U6")
    for a in range(count):
        for b in range(count):
            if a != b and torch.cuda.can_device_access_peer(a, b):
                ways[a, b] = DIRECT
    return devices, ways, f"{count} × {name}; {versions}."


def _driver() -> str:
    """The version of NVIDIA's driver."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text("utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "unknown"
    numbers = [word for word in first.split() if word[:1].isdigit() and "." in word]
    return numbers[0] if numbers else "unknown"
