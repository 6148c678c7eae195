"""The machine: devices, links and host; built-in ones; its file."""

from doppler.topology.io import (
    read_topology,
    topology_from_text,
    topology_to_json,
    write_topology,
)
from doppler.topology.presets import PRESETS, load_topology, preset
from doppler.topology.topology import DTYPE_CLASSES, Device, Host, Link, Topology

__all__ = [
    "DTYPE_CLASSES",
    "PRESETS",
    "Device",
    "Host",
    "Link",
    "Topology",
    "load_topology",
    "preset",
    "read_topology",
    "topology_from_text",
    "topology_to_json",
    "write_topology",
]
