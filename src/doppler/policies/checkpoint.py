"""Checkpoints: policies as safetensors files that say what they are and where they come from."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from doppler.base.files import is_pipe, source_name
from doppler.base.writing import write_bytes
from doppler.errors import CheckpointError
from doppler.mdp.features import FEATURE_VERSION
from doppler.policies.arrays.checkpoint import (
    FORMAT,
    VERSION,
    config_of,
    kind_of,
    not_finite,
    num_bytes,
    read_policy,
    read_tensors,
    too_few_weights,
)
from doppler.policies.arrays.checkpoint import checked_metadata as checked_metadata
from doppler.policies.arrays.checkpoint import json_object as json_object
from doppler.policies.arrays.checkpoint import read_provenance as read_provenance
from doppler.policies.arrays.policy import ArrayPolicy
from doppler.policies.arrays.tensor_file import check_sum, read_tensor_file, reading, with_checksum
from doppler.policies.configs import CONFIGS, AnyConfig, largest, max_layers
from doppler.policies.dual import DualPolicy
from doppler.policies.kinds import empty_policy
from doppler.policies.trainable import TrainablePolicy


def save_policy(policy: TrainablePolicy, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write a policy, whole or not at all, with its provenance as JSON values."""
    path = Path(path)
    tensors = {k: t.detach().cpu().contiguous() for k, t in policy.state_dict().items()}
    check_finite(tensors, f"the policy for `{path}`")
    try:
        history = json.dumps(dict(provenance), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the provenance for `{path}` is not JSON: {error}",
            hint="give it text, finite numbers, lists and objects of these",
        ) from None
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "features_version": str(FEATURE_VERSION),
        "config": json.dumps(asdict(policy.config)),
        "provenance": history,
    }
    if policy.kind != DualPolicy.kind:  # the default, which files leave out
        metadata["kind"] = policy.kind
    write_tensors(path, tensors, metadata)


def load_policy(path: str | Path, device: str = "cpu") -> DualPolicy:
    """The dual policy in a checkpoint, on a torch device."""
    return to_torch(read_policy(path)).to(device)


def load_any(path: str | Path, device: str = "cpu") -> TrainablePolicy:
    """The policy in a checkpoint, of whatever kind, on a torch device."""
    path = Path(path)
    file = read_tensor_file(path)
    metadata = checked_metadata(file, path)
    if (kind := kind_of(metadata)) == DualPolicy.kind:
        return load_policy(path, device)
    if kind not in CONFIGS:
        raise CheckpointError(
            f"`{path}` holds a policy of unknown kind {kind!r}",
            hint="a newer version of doppler may have written it",
        )
    config: AnyConfig = config_of(metadata, CONFIGS[kind], path)
    if max_layers(config) > len(file.entries) or largest(config) > num_bytes(file):
        raise too_few_weights(config, path)
    with torch.device("meta"):
        policy = empty_policy(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    arrays = read_tensors(file, shapes, path)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    policy.load_state_dict(tensors, assign=True)
    return policy.to(device)


def to_torch(arrays: ArrayPolicy) -> DualPolicy:
    """A policy of these weights, to be trained on."""
    with torch.device("meta"):
        policy = DualPolicy(arrays.config)
    tensors = {name: torch.tensor(array) for name, array in arrays.tensors.items()}
    policy.load_state_dict(tensors, assign=True)
    return policy


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all, and never over a file of another kind."""
    write_bytes(path, with_checksum(save(tensors, metadata)), kind="checkpoint", durable=True)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open safetensors file; a `CheckpointError` where there is none, or a broken one."""
    if is_pipe(path):
        raise CheckpointError(
            f"{source_name(path)} is a pipe, and this checkpoint is read more than once",
            hint="write it to a file first",
        )
    with reading(path), safe_open(path, framework="pt") as file:
        check_sum(path.read_bytes(), path)
        yield file


def check_finite(tensors: Mapping[str, Tensor], owner: str) -> None:
    """Raise unless all weights are numbers."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise not_finite(name, owner)
