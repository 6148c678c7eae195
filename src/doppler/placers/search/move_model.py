"""MoveModel: how likely a move makes the makespan shorter, learned from other searches."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from doppler.base.writing import write_bytes
from doppler.errors import CheckpointError
from doppler.placers.search.judging import MOVE_FEATURES
from doppler.policies.arrays.checkpoint import read_tensors
from doppler.policies.arrays.tensor_file import Floats, read_tensor_file, with_checksum

FORMAT, VERSION = "doppler-move-model", "1"
SHIPPED = ("data", "moves.safetensors")  # inside the package


@dataclass(frozen=True, slots=True, eq=False)
class MoveModel:
    """Weights of one layer of rectified units, over the features of a move."""

    inner: Floats  # (F, H) F as in `MOVE_FEATURES`
    inner_bias: Floats  # (H,)
    outer: Floats  # (H,)
    outer_bias: Floats  # (1,)


def blank_model() -> MoveModel:
    """One that finds all moves equally good, so that they are random."""
    return MoveModel(**{name: np.zeros(shape, np.float32) for name, shape in shapes_of(1).items()})


def shapes_of(units: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of a model of that many units."""
    inner = (len(MOVE_FEATURES), units)
    return {"inner": inner, "inner_bias": (units,), "outer": (units,), "outer_bias": (1,)}


def write_move_model(model: MoveModel, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write a model, whole or not at all, with its provenance as JSON values."""
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "features": " ".join(MOVE_FEATURES),
        "provenance": json.dumps(dict(provenance)),
    }
    write_bytes(path, with_checksum(save(asdict(model), metadata)), kind="checkpoint")


def read_move_model(path: str | Path) -> MoveModel:
    """The model in a file."""
    path = Path(path)
    file = read_tensor_file(path)
    texts = file.metadata()
    if (texts.get("format"), texts.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"`{path}` holds no model of moves", hint="check the path")
    if texts.get("features") != " ".join(MOVE_FEATURES):
        raise CheckpointError(
            f"the model in `{path}` reads other features of moves than this doppler computes",
            hint="train it again, or use the doppler that trained it",
        )
    units = file.entries["outer"].shape[:1] if "outer" in file.entries else ()
    return MoveModel(**read_tensors(file, shapes_of(units[0] if units else 1), path))


@cache
def shipped_move_model() -> MoveModel:
    """The model that comes with this package."""
    with as_file(files("doppler").joinpath(*SHIPPED)) as path:
        return read_move_model(path)
