"""Variants: the same graph with other costs, so that a policy learns what depends on them."""

from dataclasses import replace

import numpy as np

from doppler.base.arrays import FloatArray, frozen
from doppler.graph.graph import Graph


def vary(graph: Graph, number: int, sigma: float) -> Graph:
    """The graph with the exec costs and the bytes of every meta-op times a random factor.

    Factors are log-normal; all shards, or all reduces, of a meta-op have the same.
    """
    rng = np.random.default_rng(number)
    kinds = list(zip(graph.meta_ops, graph.roles, graph.kinds, strict=True))
    names = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    which = np.array([names[kind] for kind in kinds], np.int64)
    exec_factor = np.exp(sigma * rng.standard_normal(len(names)))[which]  # (V,)
    byte_factor = np.exp(sigma * rng.standard_normal(len(names)))[which][graph.tensor_producer]
    return replace(
        graph,
        name=f"{graph.name}~{number}",
        kernels=(),  # seconds measured for them are not those of a variant
        flops=frozen(graph.flops * exec_factor),
        touched_bytes=frozen(graph.touched_bytes * exec_factor),
        exec_s=_scaled(graph.exec_s, exec_factor[:, None]),
        tensor_bytes=frozen(graph.tensor_bytes * byte_factor),
        transfer_s=_scaled(graph.transfer_s, byte_factor),
    )


def _scaled(values: FloatArray | None, factor: FloatArray) -> FloatArray | None:
    return None if values is None else frozen(values * factor)
