"""The machine: devices, links and host; built-in ones; its file."""

from doppler.topology.io import (
    topology_from_text,
    topology_to_json,
    write_topology,
)
from doppler.topology.presets import PRESETS, preset, read_topology
from doppler.topology.topology import DTYPE_CLASSES, KERNEL_FAMILIES, Device, Host, Link, Topology

__all__ = [
    "DTYPE_CLASSES",
    "KERNEL_FAMILIES",
    "PRESETS",
    "Device",
    "Host",
    "Link",
    "Topology",
    "preset",
    "read_topology",
    "topology_from_text",
    "topology_to_json",
    "write_topology",
]
