"""Helpers: policies of random weights, and safetensors files, both without torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from doppler.mdp.features import FEATURE_VERSION
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy, shapes_of


def array_policy(config: PolicyConfig, seed: int = 0) -> ArrayPolicy:
    rng = np.random.default_rng(seed)
    tensors = {
        name: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes_of(config).items()
    }
    return ArrayPolicy(config, tensors)


def metadata_of(shape: PolicyConfig, **changes: str) -> dict[str, str]:
    return {
        "format": "doppler-policy",
        "version": "1",
        "features_version": str(FEATURE_VERSION),
        "config": json.dumps(asdict(shape)),
        "provenance": "{}",
        **changes,
    }


def header_of(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in tensors.items():
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    return header


def file_of(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_policy(policy: ArrayPolicy, path: Path) -> None:
    header = header_of(policy.tensors, metadata_of(policy.config))
    path.write_bytes(file_of(header, b"".join(a.tobytes() for a in policy.tensors.values())))
