"""Checkpoints: policies as safetensors files that say what they are and where they come from."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from doppler.errors import CheckpointError, DopplerError
from doppler.files import write_bytes
from doppler.mdp.features import FEATURE_VERSION
from doppler.policies.baseline import BaselinePolicy
from doppler.policies.dual import DualPolicy, PolicyConfig
from doppler.policies.kinds import CONFIGS, AnyConfig, Policy, empty_policy
from doppler.policies.placeto import PlacetoConfig

FORMAT, VERSION = "doppler-policy", 1


def save_policy(policy: Policy, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write a policy, whole or not at all, with JSON values that tell how it came about."""
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
    if policy.kind != DualPolicy.kind:  # which no file named before there were others
        metadata["kind"] = policy.kind
    write_tensors(path, tensors, metadata)


def load_policy(path: str | Path, device: str = "cpu") -> DualPolicy:
    """The dual policy in a checkpoint, on a torch device."""
    policy = load_any(path, device)
    if isinstance(policy, BaselinePolicy):
        raise CheckpointError(
            f"`{path}` holds a policy of kind `{policy.kind}`, not `{DualPolicy.kind}`",
            hint=f"its placer is `{policy.kind}:{path}`",
        )
    return policy


def load_any(path: str | Path, device: str = "cpu") -> Policy:
    """The policy in a checkpoint, of whatever kind, on a torch device."""
    path = Path(path)
    with opened(path) as file:
        config = _config(checked_metadata(file, path), path)
        names = file.keys()
        tensors = {name: file.get_tensor(name).clone() for name in names}
    policy = _empty(config, tensors, path)
    _check_tensors(tensors, policy.state_dict(), path)
    check_finite(tensors, f"`{path}`")
    policy.load_state_dict(tensors, assign=True)
    return policy.to(device)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """What a checkpoint says about how its policy came about."""
    path = Path(path)
    with opened(path) as file:
        return json_object(checked_metadata(file, path), "provenance", path)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_bytes(path, _in_order(save(tensors, metadata)))


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its header sorted, so that the same policy makes the same file."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)  # tensors stay aligned
    return len(header).to_bytes(8, "little") + header + data[start:]


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open safetensors file; a `CheckpointError` where there is none, or a broken one."""
    if not path.is_file():
        found = "is not a file" if path.exists() else "does not exist"
        raise CheckpointError(f"checkpoint `{path}` {found}", hint="check the path")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(
            f"`{path}` is not a safetensors file, or not all of one: {error}",
            hint="was it cut off while it was written or copied? use an earlier checkpoint",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read `{path}`: {error.strerror or error}", hint="may you read it?"
        ) from None


def checked_metadata(
    file: Any, path: Path, format_name: str = FORMAT, version: int = VERSION, what: str = "policy"
) -> dict[str, str]:
    """What an open file says about itself, if it is of that format and of the versions known."""
    metadata: dict[str, str] = file.metadata() or {}
    found = metadata.get("format")
    if found != format_name:
        raise CheckpointError(
            f"`{path}` holds no {what}: `format` is {found!r}, not {format_name!r}",
            hint="a checkpoint is a file that `save_policy` or `dop train` wrote",
        )
    if metadata.get("version") != str(version):
        raise CheckpointError(
            f"`{path}`: `version` is {metadata.get('version')!r}, this reader knows '{version}'",
            hint="a newer version of doppler may have written it",
        )
    if metadata.get("features_version") != str(FEATURE_VERSION):
        raise CheckpointError(
            f"`{path}` was trained on version {metadata.get('features_version')!r} of the "
            f"features, this doppler computes version '{FEATURE_VERSION}'",
            hint="train it again, or use the doppler that trained it",
        )
    return metadata


def json_object(metadata: Mapping[str, str], key: str, path: Path) -> dict[str, Any]:
    """The JSON object that a file says under a key."""
    try:
        value = json.loads(metadata.get(key, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"`{path}`: `{key}` is not a JSON object", hint="use an earlier checkpoint"
        )
    return value


def _config(metadata: Mapping[str, str], path: Path) -> AnyConfig:
    kind = metadata.get("kind", PolicyConfig.kind)
    if kind not in CONFIGS:
        raise CheckpointError(
            f"`{path}` holds a policy of unknown kind {kind!r}",
            hint="a newer version of doppler may have written it",
        )
    values = json_object(metadata, "config", path)
    types = {field.name: field.type for field in fields(CONFIGS[kind])}
    keys = sorted(types.keys() | values.keys())
    wrong = [key for key in keys if type(values.get(key)) is not types.get(key)]
    try:
        if wrong:
            raise CheckpointError(f"`{wrong[0]}` is missing, unknown or of another type")
        return CONFIGS[kind](**values)
    except DopplerError as error:
        raise CheckpointError(
            f"`{path}`: `config` is {values}: {error.message}", hint="use an earlier checkpoint"
        ) from None


def _empty(config: AnyConfig, tensors: Mapping[str, Tensor], path: Path) -> Policy:
    """A policy of that shape without memory for its weights."""
    layers = 0 if isinstance(config, PlacetoConfig) else getattr(config, "rounds", 0)
    layers = max(layers, getattr(config, "layers", 0), getattr(config, "attention", 0))
    sizes = (config.width, getattr(config, "groups", 0), getattr(config, "devices", 0))
    if layers > len(tensors) or max(sizes) > sum(t.numel() for t in tensors.values()):
        raise CheckpointError(
            f"`{path}` has too few weights for {config}", hint="use an earlier checkpoint"
        )
    with torch.device("meta"):
        return empty_policy(config)


def _check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> None:
    """Raise unless names, shapes and dtypes are those of a policy of the file's config."""

    def problem(name: str) -> str | None:
        if name not in expected:
            return "is unknown"
        if name not in tensors:
            return "is missing"
        mine, want = tensors[name], expected[name]
        if mine.shape != want.shape:
            return f"has shape {tuple(mine.shape)}, expected {tuple(want.shape)}"
        return None if mine.dtype == want.dtype else f"is {mine.dtype}, expected {want.dtype}"

    for name in sorted(tensors.keys() | expected.keys()):
        if (what := problem(name)) is not None:
            raise CheckpointError(
                f"`{path}`: tensor `{name}` {what}",
                hint="its weights are not those of its `config`; use an earlier checkpoint",
            )


def check_finite(tensors: Mapping[str, Tensor], owner: str) -> None:
    """Raise unless all weights are numbers."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"tensor `{name}` of {owner} has weights that are not finite",
                hint="training diverged: go back to an earlier checkpoint, or lower the lr",
            )
