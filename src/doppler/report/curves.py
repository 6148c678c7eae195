"""Training curves: what the metrics of a run say, exercise by exercise."""

import json
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from doppler.base.files import read_text, source_name
from doppler.errors import FormatError

FILE = "metrics.jsonl"
_REALS = ("mean_s", "least_s", "best_s", "bound_s")


@dataclass(frozen=True, slots=True)
class Curve:
    """The updates of one exercise in one stage; None where a makespan is infinite."""

    stage: str
    exercise: str  # graph@topology
    step: tuple[int, ...]  # updates of the whole run
    mean_s: tuple[float | None, ...]  # makespans of the episodes of an update
    least_s: tuple[float | None, ...]
    best_s: tuple[float | None, ...]  # so far
    bound_s: float  # lower bound of any assignment; 0 where there is none


def read_curves(folder: str | Path) -> tuple[Curve, ...]:
    """The curves of a run, in the order in which they began."""
    path = Path(folder) / FILE
    source = source_name(path)
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    lines = read_text(path).splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith("\n"):
            break  # it is being written
        row = _row(line, f"{source}, line {number}")
        found[row["stage"], row["exercise"]].append(row)
    return tuple(
        Curve(
            stage=stage,
            exercise=exercise,
            step=tuple(row["step"] for row in rows),
            mean_s=tuple(row["mean_s"] for row in rows),
            least_s=tuple(row["least_s"] for row in rows),
            best_s=tuple(row["best_s"] for row in rows),
            bound_s=rows[-1]["bound_s"] or 0.0,
        )
        for (stage, exercise), rows in found.items()
    )


def _row(line: str, source: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise FormatError(f"{source} is no JSON") from None
    is_row = (
        isinstance(row, dict)
        and type(row.get("step")) is int
        and all(isinstance(row.get(key), str) for key in ("stage", "exercise"))
        and all(key in row and _is_real(row[key]) for key in _REALS)
    )
    if not is_row:
        raise FormatError(f"{source} is no line of metrics", hint="name the directory of a run")
    return dict(row)


def _is_real(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and isfinite(value) and value >= 0)
