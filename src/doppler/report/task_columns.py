"""The tasks of a trace as columns of whole numbers, and with neighbours merged where too many."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, plain
from doppler.trace import Trace


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """A row per task, or per stretch of merged tasks, by begin."""

    vertex: IntArray  # of a stretch, as all that follows, that of its first task
    output: IntArray  # number of the tensor moved among those of its producer, 0 for an exec
    source: IntArray
    device: IntArray
    link: IntArray  # -1 for an exec
    bytes: FloatArray  # summed over a stretch
    begin_s: FloatArray
    end_s: FloatArray
    ready_s: FloatArray
    after: IntArray  # row of the last input, -1 where there is none
    before: IntArray  # row of what held it back, -1 where nothing did
    reason: IntArray  # why, of `doppler.trace.trace.REASONS`
    count: IntArray  # tasks in it


def task_columns(trace: Trace) -> TaskColumns:
    """The columns of all tasks."""
    before, reason = trace.held_back()
    return TaskColumns(
        vertex=trace.vertex,
        output=np.where(trace.is_transfer, trace.tensor - trace.vertex, 0),
        source=trace.source,
        device=trace.device,
        link=trace.link,
        bytes=np.round(trace.moved_bytes),
        begin_s=trace.begin_s,
        end_s=trace.end_s,
        ready_s=trace.ready_s,
        after=trace.after,
        before=before,
        reason=reason,
        count=np.ones(len(before), np.int64),
    )


def merged(columns: TaskColumns, chain: IntArray, most: int) -> tuple[TaskColumns, IntArray]:
    """Columns of about `most` rows or less, and (N,) the row where each task is.

    The tasks of the critical `chain` and the longest others stay rows of their own; others that
    follow each other on a device or a link, without a long gap, become one row.
    """
    size = len(columns.vertex)
    if size <= most:
        return columns, np.arange(size)
    stays = np.zeros(size, np.bool_)
    longest = np.argsort(columns.begin_s - columns.end_s, kind="stable")
    stays[longest[: most // 4]] = True  # a row that stays also ends the stretch before it
    stays[chain[: most // 8]] = True
    is_first = _firsts(columns, stays, most // 4)
    _, order = _by_resource(columns)
    first_of = np.zeros(size, np.int64)  # the first task of each one's stretch
    first_of[order] = order[np.maximum.accumulate(np.where(is_first[order], np.arange(size), 0))]
    kept = np.flatnonzero(is_first)
    row = np.searchsorted(kept, first_of)
    end_s = np.zeros(len(kept))
    np.maximum.at(end_s, row, columns.end_s)
    rows = {
        field.name: getattr(columns, field.name)[kept]
        for field in fields(TaskColumns)
        if field.name not in ("bytes", "end_s", "count", "after", "before")
    }
    found = TaskColumns(
        **rows,
        bytes=np.bincount(row, columns.bytes, len(kept)).astype(np.float64),
        end_s=end_s,
        count=np.bincount(row, columns.count, len(kept)).astype(np.int64),
        after=_moved(columns.after[kept], row),
        before=_moved(columns.before[kept], row),
    )
    return found, row


def _by_resource(columns: TaskColumns) -> tuple[IntArray, IntArray]:
    """The device or link of each row, and all rows by that and then by begin."""
    devices = int(columns.device.max(initial=0)) + 1
    resource = np.where(columns.link < 0, columns.device, devices + columns.link)
    return resource, np.lexsort((columns.begin_s, resource))


def _firsts(columns: TaskColumns, stays: BoolArray, most_gaps: int) -> BoolArray:
    """(N,) whether a row begins a stretch: it stays, follows one that does, or a long gap."""
    resource, order = _by_resource(columns)
    place = np.unique(resource, return_inverse=True)[1]
    makespan_s = float(columns.end_s.max(initial=0.0))
    gap_s = makespan_s * (int(place.max(initial=0)) + 1) / max(most_gaps, 1)
    shift_s = 2 * makespan_s * place[order]  # each resource has times of its own
    reached_s = np.maximum.accumulate(columns.end_s[order] + shift_s)
    late = columns.begin_s[order][1:] + shift_s[1:] > reached_s[:-1] + gap_s
    first, stay = np.ones(len(order), np.bool_), stays[order]
    first[1:] = stay[1:] | stay[:-1] | (np.diff(place[order]) > 0) | late
    found = np.zeros(len(order), np.bool_)
    found[order] = first
    return found


def _moved(rows: IntArray, row: IntArray) -> IntArray:
    return np.where(rows < 0, -1, row[np.maximum(rows, 0)])


def packed_columns(columns: TaskColumns, tick_s: float) -> dict[str, IntArray | FloatArray]:
    """The columns as a page has them: times as ticks, most numbers as differences.

    These are small and compress well. A column `count` is there only if tasks are merged.
    """
    row = np.arange(len(columns.vertex))
    scale = 1.0 / tick_s if tick_s else 0.0
    begin, end, ready = (
        np.round(times_s * scale).astype(np.int64)
        for times_s in (columns.begin_s, columns.end_s, columns.ready_s)
    )
    packed: dict[str, IntArray | FloatArray] = {
        "vertex": columns.vertex,
        "output": columns.output,
        "source": columns.source,
        "device": columns.device,
        "link": columns.link,
        "bytes": columns.bytes,
        "begin": np.diff(begin, prepend=0),  # from the begin of the row before
        "takes": end - begin,
        "wait": begin - ready,
        "after": row - columns.after,  # rows back
        "before": row - columns.before,
        "reason": columns.reason,
    }
    return packed if (columns.count == 1).all() else packed | {"count": columns.count}


def listed(packed: dict[str, IntArray | FloatArray], first: int = 0) -> dict[str, list[Any]]:
    """Packed columns for JSON, from a row on."""
    return {name: plain(column[first:]) for name, column in packed.items()}


def same_rows(
    packed: dict[str, IntArray | FloatArray], other: dict[str, IntArray | FloatArray]
) -> int:
    """How many rows two packed tables have in common at their beginning."""
    if packed.keys() != other.keys():
        return 0
    same = min(len(packed["vertex"]), len(other["vertex"]))
    for name, column in packed.items():
        differs = np.flatnonzero(column[:same] != other[name][:same])
        same = int(differs[0]) if len(differs) else same
    return same
