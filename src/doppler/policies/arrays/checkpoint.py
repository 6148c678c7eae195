"""Checkpoints as arrays, and the metadata of every checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import CheckpointError, DopplerError
from doppler.mdp.features import FEATURE_VERSION
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy, shapes_of
from doppler.policies.arrays.tensor_file import (
    FLOAT,
    Entry,
    Floats,
    TensorFile,
    read_tensor_file,
)

FORMAT, VERSION = "doppler-policy", 1
SHIPPED = ("data", "policy.safetensors")  # inside the package
MAX_AXES = 8  # of a tensor in an error message


def read_policy(path: str | Path) -> ArrayPolicy:
    """The policy in a checkpoint."""
    path = Path(path)
    file = read_tensor_file(path)
    metadata = checked_metadata(file, path)
    if (kind := kind_of(metadata)) != PolicyConfig.kind:
        raise CheckpointError(
            f"`{path}` holds a policy of kind `{kind}`, not `{PolicyConfig.kind}`",
            hint=f"its placer is `{kind}:{path}`",
        )
    config: PolicyConfig = config_of(metadata, PolicyConfig, path)
    if config.rounds > len(file.entries) or config.width > num_bytes(file):
        raise too_few_weights(config, path)
    return ArrayPolicy(config, read_tensors(file, shapes_of(config), path))


def read_tensors(
    file: TensorFile, expected: Mapping[str, tuple[int, ...]], path: Path
) -> dict[str, Floats]:
    """The weights in a file, if they have these shapes and are finite."""
    _check_tensors(file.entries, expected, path)
    tensors = {name: file.floats(name) for name in file.entries}
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise not_finite(name, f"`{path}`")
    return tensors


def has_shipped_policy() -> bool:
    """Whether a policy comes with this package."""
    return files("doppler").joinpath(*SHIPPED).is_file()


def shipped_policy() -> ArrayPolicy:
    """The policy that comes with this package."""
    with as_file(_shipped()) as path:
        return read_policy(path)


def shipped_bytes() -> bytes:
    """Its checkpoint."""
    return _shipped().read_bytes()


def _shipped() -> Traversable:
    if not has_shipped_policy():
        raise CheckpointError(
            "no policy comes with this installation of doppler",
            hint="train one with `dop train graph.json --topology p100x4 -o runs/x`, "
            "and name it as in `doppler:runs/x`",
        )
    return files("doppler").joinpath(*SHIPPED)


def read_metadata(path: str | Path, data: bytes | None = None) -> dict[str, Any]:
    """All that a checkpoint says about itself: its format, kind, config and provenance.

    `data` is what is in the file, where that was read already.
    """
    path = Path(path)
    metadata: dict[str, Any] = dict(checked_metadata(read_tensor_file(path, data), path))
    for key in ("config", "provenance"):
        metadata[key] = json_object(metadata, key, path)
    return {"kind": kind_of(metadata)} | metadata


def read_provenance(path: str | Path) -> dict[str, Any]:
    """The provenance of the policy in a checkpoint."""
    path = Path(path)
    return json_object(checked_metadata(read_tensor_file(path), path), "provenance", path)


def checked_metadata(
    file: Any, path: Path, format_name: str = FORMAT, version: int = VERSION, what: str = "policy"
) -> dict[str, str]:
    """What a file says about itself, if it is of that format and of the versions known."""
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


def not_finite(name: str, owner: str) -> CheckpointError:
    """The error of a tensor whose weights are not all numbers."""
    return CheckpointError(
        f"tensor `{name}` of {owner} has weights that are not finite",
        hint="training diverged: go back to an earlier checkpoint, or lower the lr",
    )


def kind_of(metadata: Mapping[str, str]) -> str:
    """The kind of policy that a file says it holds; the dual policy by default."""
    return metadata.get("kind", PolicyConfig.kind)


def config_of(metadata: Mapping[str, str], cls: Any, path: Path) -> Any:
    """The shape of the policy that a file says it holds, as a dataclass for such shapes."""
    values = json_object(metadata, "config", path)
    types = {field.name: field.type for field in fields(cls)}
    keys = sorted(types.keys() | values.keys())
    wrong = [key for key in keys if type(values.get(key)) is not types.get(key)]
    try:
        if wrong:
            raise CheckpointError(f"`{wrong[0]}` is missing, unknown or of another type")
        return cls(**values)
    except DopplerError as error:
        raise CheckpointError(
            f"`{path}`: `config` is {values}: {error.message}", hint="use an earlier checkpoint"
        ) from None


def num_bytes(file: TensorFile) -> int:
    """Bytes of all tensors in a file."""
    return sum(len(entry.data) for entry in file.entries.values())


def too_few_weights(config: object, path: Path) -> CheckpointError:
    """The error of a config that no policy with a file's weights can have."""
    return CheckpointError(
        f"`{path}` has too few weights for {config}", hint="use an earlier checkpoint"
    )


def _check_tensors(
    entries: Mapping[str, Entry], expected: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Raise unless names, shapes and dtypes are those of a policy of the file's config."""

    def problem(name: str) -> str | None:
        if name not in expected:
            return "is unknown"
        if name not in entries:
            return "is missing"
        mine, want = entries[name], expected[name]
        if mine.shape != want:
            found = f"shape {mine.shape}" if len(mine.shape) <= MAX_AXES else "too many axes"
            return f"has {found}, expected {want}"
        return None if mine.dtype == FLOAT else f"is {mine.dtype}, expected {FLOAT}"

    for name in sorted(entries.keys() | expected.keys()):
        if (what := problem(name)) is not None:
            raise CheckpointError(
                f"`{path}`: tensor `{name}` {what}",
                hint="its weights are not those of its `config`; use an earlier checkpoint",
            )
