"""A checker of the JSON trace-event format, written from its description by the Chromium project.

"Trace Event Format" (the object form): https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections import defaultdict
from math import isfinite
from typing import Any

METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
SLACK_US = 1e-3  # Perfetto counts in nanoseconds


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def check_document(document: Any) -> None:
    """Raise an `AssertionError` unless this is a trace in the object form of the format."""
    assert isinstance(document["traceEvents"], list)
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        check_event(event)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for found in slices.values():
        check_nesting(found)
    check_flows(events, slices)


def check_event(event: dict[str, Any]) -> None:
    assert isinstance(event["name"], str)
    assert type(event["pid"]) is int
    assert type(event["tid"]) is int
    assert isinstance(event.get("args", {}), dict)
    if event["ph"] == "M":
        key = METADATA[event["name"]]
        assert isinstance(event["args"][key], str if key == "name" else int)
        return
    assert event["ph"] in ("X", "s", "f", "C")
    assert is_number(event["ts"])
    assert event["ts"] >= 0
    if event["ph"] == "X":
        assert is_number(event["dur"])
        assert event["dur"] >= 0
    if event["ph"] in ("s", "f"):
        assert isinstance(event["id"], str | int)
        assert isinstance(event["cat"], str)
    if event["ph"] == "C":
        assert event["args"]
        assert all(is_number(value) for value in event["args"].values())


def check_nesting(slices: list[tuple[float, float]]) -> None:
    """Complete events of a thread follow one another, or one lies within another."""
    open_until: list[float] = []
    for begin, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
        while open_until and open_until[-1] <= begin + SLACK_US:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + SLACK_US
        open_until.append(end)


def check_flows(events: list[dict[str, Any]], slices: Any) -> None:
    """Every arrow has one start and one end, with one name; both lie on slices, in order."""
    flows = defaultdict(dict)
    for event in events:
        if event["ph"] in ("s", "f"):
            ends = flows[event["cat"], event["name"], event["id"]]
            assert event["ph"] not in ends
            ends[event["ph"]] = event
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"] + SLACK_US
        assert ends["f"]["bp"] == "e"  # bound to the slice around it, not to the next
        for event in ends.values():
            around = slices[event["pid"], event["tid"]]
            assert any(a - SLACK_US <= event["ts"] <= b + SLACK_US for a, b in around)
