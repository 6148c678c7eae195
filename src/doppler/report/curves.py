"""Training curves: what the metrics of a run say, exercise by exercise."""

import json
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from doppler.base.files import source_name
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
    loss: tuple[float | None, ...] = ()  # empty where none is known
    episodes_per_s: float | None = None  # of the whole stage


def read_curves(folder: str | Path) -> tuple[Curve, ...]:
    """The curves of a run, in the order in which they began."""
    return CurveReader(folder).read()


class CurveReader:
    """Reads the curves of a run that may be under way, again and again, and only what is new."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / FILE
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self._last, self.lines, self.read_bytes = b"", 0, 0

    @property
    def has_begun(self) -> bool:
        """Whether there is a file of metrics."""
        return self._path.is_file()

    def read(self) -> tuple[Curve, ...]:
        """The curves as they are now."""
        for line in self._new_lines():
            row = _row(line, f"{source_name(self._path)}, line {self.lines + 1}")
            self._rows[row["stage"], row["exercise"]].append(row)
            self._last, self.lines = line, self.lines + 1
            self.read_bytes += len(line)
        return tuple(_curve(*key, rows) for key, rows in self._rows.items())

    def _new_lines(self) -> list[bytes]:
        """The whole lines after those that were read; all lines where those are there no more."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.read_bytes - len(self._last))
                if file.read(len(self._last)) != self._last:  # a resumed run cuts off its end
                    self._forget()
                    file.seek(0)
                lines = file.read().splitlines(keepends=True)
        except OSError as error:
            raise FormatError(
                f"cannot read {source_name(self._path)}: {error.strerror or error}",
                hint="name the directory of a training run",
            ) from None
        return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _curve(stage: str, exercise: str, rows: list[dict[str, Any]]) -> Curve:
    losses = tuple(_number(row, "loss") for row in rows)
    return Curve(
        stage=stage,
        exercise=exercise,
        step=tuple(row["step"] for row in rows),
        mean_s=tuple(row["mean_s"] for row in rows),
        least_s=tuple(row["least_s"] for row in rows),
        best_s=tuple(row["best_s"] for row in rows),
        bound_s=rows[-1]["bound_s"] or 0.0,
        loss=() if set(losses) == {None} else losses,
        episodes_per_s=_rate(rows[0], rows[-1]),
    )


def _rate(first: dict[str, Any], last: dict[str, Any]) -> float | None:
    """Episodes per second from one update to another; both count over the whole stage."""
    ends = [(_number(row, "episodes"), _number(row, "seconds")) for row in (first, last)]
    (begun, begin_s), (done, end_s) = ends
    if begun is None or begin_s is None or done is None or end_s is None or end_s <= begin_s:
        return None
    return (done - begun) / (end_s - begin_s)


def _number(row: dict[str, Any], key: str) -> float | None:
    value: Any = row.get(key)
    return float(value) if type(value) in (int, float) and isfinite(value) else None


def _row(line: bytes, source: str) -> dict[str, Any]:
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
