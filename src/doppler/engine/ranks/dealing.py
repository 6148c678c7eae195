"""Which process of a job, its rank, runs which devices."""

import re
from collections.abc import Sequence
from dataclasses import replace

from doppler.errors import EngineError
from doppler.topology.topology import Topology

_ADDRESS = re.compile(r"(?P<host>[^/:\s]+)/(?P<local>.*)", re.DOTALL)


def split_address(address: str) -> tuple[str, str]:
    """The host that an address names, if it names one, and the address there.

    >>> split_address("host1/cuda:0/1of4"), split_address("cpu:0")
    (('host1', 'cuda:0/1of4'), ('', 'cpu:0'))
    """
    match = _ADDRESS.fullmatch(address)
    return (match["host"], match["local"]) if match else ("", address)


def ranks_of(topology: Topology, num_ranks: int) -> list[int]:
    """(D,) the rank that runs each device.

    Hosts are counted as the devices name them, and ranks go from host to host: each host has as
    many as any other. The devices of a host are dealt out evenly, in order.
    """
    found: dict[str, list[int]] = {}
    for d, device in enumerate(topology.devices):
        found.setdefault(split_address(device.address)[0], []).append(d)
    if num_ranks % len(found):
        raise EngineError(
            f"{num_ranks} processes cannot be shared out to {len(found)} hosts evenly",
            hint="start as many processes on each host as on any other",
        )
    each = num_ranks // len(found)
    ranks = [0] * topology.num_devices
    for host, (name, devices) in enumerate(found.items()):
        if len(devices) < each:
            where = f"host `{name}`" if name else "the machine"
            raise EngineError(f"{where} has {len(devices)} devices for {each} processes")
        for i, d in enumerate(devices):
            ranks[d] = host * each + i * each // len(devices)
    return ranks


def local_topology(topology: Topology, ranks: Sequence[int], rank: int) -> Topology:
    """The machine with the addresses of one rank's devices, as its backend knows them."""
    devices = [
        replace(device, address=split_address(device.address)[1] if ranks[d] == rank else "")
        for d, device in enumerate(topology.devices)
    ]
    return replace(topology, devices=tuple(devices))
