"""Where the devices of a topology are: addresses of GPUs, and of parts of them."""

import re
from collections.abc import Sequence

from doppler.engine.backends.driver import Address
from doppler.errors import EngineError, TopologyError
from doppler.topology.topology import Topology

_ADDRESS = re.compile(r"cuda:(\d{1,4})(?:/(\d{1,4})of(\d{1,4}))?", re.ASCII)


def parse_address(text: str) -> Address:
    """The GPU, or the part of one, that an address such as `cuda:0` or `cuda:0/1of4` means."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise TopologyError(
            f"`{text}` is no address of a GPU",
            hint="write `cuda:0`, or `cuda:0/1of4` for part 1 (from 0) of GPU 0 cut into 4",
        )
    gpu, part, parts = (int(group or 0) for group in match.groups())
    if match[3] and part >= parts:
        raise TopologyError(f"`{text}`: parts of {parts} are counted from 0 to {parts - 1}")
    return Address(gpu, part, parts)


def addresses(topology: Topology, gpus: int, only: Sequence[int] | None = None) -> list[Address]:
    """Where every device, or `only` these, is, on a machine with `gpus` GPUs; no two overlap."""
    found: dict[Address, str] = {}
    for i in range(topology.num_devices) if only is None else only:
        device = topology.devices[i]
        address = parse_address(device.address) if device.address else Address(i)
        if address.gpu >= gpus:
            raise EngineError(
                f"device `{device.name}` is GPU {address.gpu}, and the machine has {gpus} in all",
                hint="cut one GPU into partitions: "
                f"dop probe --backend cuda --partitions {topology.num_devices} -o here.json",
            )
        for other, name in found.items():
            if address.gpu == other.gpu and (address.parts != other.parts or address == other):
                raise EngineError(f"devices `{name}` and `{device.name}` overlap on a GPU")
        found[address] = device.name
    return list(found)
