"""Training curves: what the metrics of a run say, exercise by exercise."""

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from doppler.base.files import check_header, parse_json, read_bytes, source_name
from doppler.errors import FormatError

FILE = "metrics.jsonl"
UNTRAINED_FILE, UNTRAINED_FORMAT = "untrained.json", "doppler-untrained"
MEASURED = "real"  # the stage whose makespans are measured, not simulated
Untrained = Mapping[str, Mapping[str, float]]  # makespans by exercise and placer
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
    untrained_s: tuple[tuple[str, float], ...] = ()  # placers that need no training


def read_curves(folder: str | Path) -> tuple[Curve, ...]:
    """The curves of a run, in the order in which they began."""
    return CurveReader(folder).read()


def read_untrained(folder: str | Path) -> Untrained:
    """Makespans of placers that need no training; none where the run has no such file."""
    path = Path(folder) / UNTRAINED_FILE
    return _untrained(read_bytes(path), source_name(path)) if path.is_file() else {}


class CurveReader:
    """Reads the curves of a run that may be under way, again and again, and only what is new."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / FILE
        self._others = Path(folder) / UNTRAINED_FILE
        self._others_text = b""
        self._untrained: Untrained = {}
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self._last, self.lines, self.read_bytes = b"", 0, 0

    @property
    def seen(self) -> str:
        """Another text whenever something new was read."""
        return f"{self.read_bytes}-{zlib.crc32(self._others_text)}"

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
        self._read_untrained()
        return tuple(_curve(*key, rows, self._untrained) for key, rows in self._rows.items())

    def _read_untrained(self) -> None:
        text = read_bytes(self._others) if self._others.is_file() else b""
        if text != self._others_text:
            self._untrained = _untrained(text, source_name(self._others)) if text else {}
            self._others_text = text

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


def _curve(stage: str, exercise: str, rows: list[dict[str, Any]], untrained: Untrained) -> Curve:
    others = {} if stage == MEASURED else untrained.get(exercise, {})
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
        untrained_s=tuple(sorted(others.items(), key=lambda item: (item[1], item[0]))),
    )


def _rate(first: dict[str, Any], last: dict[str, Any]) -> float | None:
    """Episodes per second from one update to another; both count over the whole stage."""
    ends = [(_number(row, "episodes"), _number(row, "seconds")) for row in (first, last)]
    (begun, begin_s), (done, end_s) = ends
    if begun is None or begin_s is None or done is None or end_s is None or end_s <= begin_s:
        return None
    return (done - begun) / (end_s - begin_s)


def _untrained(text: bytes, source: str) -> dict[str, dict[str, float]]:
    document = parse_json(text.decode("utf-8", "replace"), source)
    check_header(document, format_name=UNTRAINED_FORMAT, version=1, source=source)
    found = document.get("makespans_s")
    is_table = isinstance(found, dict) and all(
        isinstance(rows, dict) and all(_is_real(value) and value for value in rows.values())
        for rows in found.values()
    )
    if not is_table or set(document) != {"format", "version", "makespans_s"}:
        raise FormatError(f"{source} has no makespans by exercise and placer")
    return {label: dict(rows) for label, rows in found.items()}


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
