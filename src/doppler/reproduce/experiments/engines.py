"""Graphs of the paper for a real machine: of a size that it has enough to do, and memory."""

from functools import cache

from doppler.graph.graph import Graph
from doppler.programs.registry import workload
from doppler.sharding import shard

DEVICES = {"cpu": 2, "cuda": 4}  # cores, and partitions of one GPU
Sizes = dict[str, dict[str, dict[str, int]]]  # by executor and workload
SIZES: Sizes = {
    "cuda": {
        "ffnn": {"features": 768, "classes": 768},
        "llama-block": {"batch": 3},
        "llama-layer": {"batch": 3},
    },
    "cpu": {
        "chainmm": {"size": 1024},
        "ffnn": {"batch": 1024, "features": 128, "hidden": 4096, "classes": 128},
        "llama-block": {"sequence": 256, "heads": 8, "head_dim": 64, "hidden": 1408},
        "llama-layer": {
            "sequence": 256,
            "heads": 8,
            "head_dim": 64,
            "hidden": 1408,
            "vocabulary": 2048,
            "table": 512,
        },
    },
}
_TINY = {"sequence": 64, "heads": 4, "head_dim": 32, "hidden": 256}
SMALL: Sizes = {  # about 50 ms on four partitions of an H200; a few ms on two cores
    "cuda": {
        "chainmm": {"size": 7168},
        "ffnn": {"batch": 12288, "features": 768, "classes": 768},
    },
    "cpu": {
        "chainmm": {"size": 256},
        "ffnn": {"batch": 256, "features": 32, "hidden": 1024, "classes": 32},
        "llama-block": _TINY,
        "llama-layer": {**_TINY, "vocabulary": 256, "table": 128},
    },
}


def sizes_of(name: str, executor: str, *, small: bool) -> dict[str, int]:
    """The sizes of a workload for an executor."""
    return (SMALL if small else SIZES)[executor].get(name, {})


@cache
def graph_for(name: str, executor: str, *, small: bool = False) -> Graph:
    """A workload in float32 of a size for this executor, cut as in the paper.

    Its inputs are there on every device: where each of them has a place in the memory of a device,
    they are written anew whenever another assignment runs, which takes up to a second.
    """
    found = workload(name)
    parts = DEVICES[executor] if name.startswith("llama") else found.parts
    program = found.build(dtype="float32", **sizes_of(name, executor, small=small))
    assert not isinstance(program, Graph)
    return shard(program, parts=parts, inputs="everywhere")
