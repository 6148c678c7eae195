"""A trace as a small SVG: the execs of each device over time, by kind."""

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from doppler.base.svg import boxes, ground, legend, picture, text

if TYPE_CHECKING:
    from doppler.trace.trace import Trace

WIDTH, LEFT, LANE, GAP = 640, 90, 16, 3
MAX_LANES = 16


def trace_svg(trace: "Trace") -> str:
    """The timeline of the first devices; a task narrower than half a unit may be left out."""
    shown = min(len(trace.devices), MAX_LANES)
    scale = (WIDTH - LEFT) / trace.makespan_s if trace.makespan_s else 0.0
    parts = []
    for d, device in enumerate(trace.devices[:shown]):
        y = d * (LANE + GAP)
        parts += [
            text(LEFT - 6, y + 12, device.name, end=True),
            ground(LEFT, y, WIDTH - LEFT, LANE),
        ]
    found = defaultdict(list)
    reach = [-1.0] * shown
    rank = _ranks(trace)
    execs = np.flatnonzero(~trace.is_transfer & (trace.device < shown)).tolist()
    for row in execs:
        d, x = int(trace.device[row]), LEFT + scale * float(trace.begin_s[row])
        width = scale * float(trace.end_s[row] - trace.begin_s[row])
        if x + width < reach[d] + 0.5 and width < 0.5:
            continue
        reach[d] = x + width
        kind = trace.vertex_kinds[trace.vertex[row]]
        found[rank[kind]].append((round(x, 1), d * (LANE + GAP), round(max(width, 0.4), 1), LANE))
    parts += [boxes(number, found[number]) for number in sorted(found)]
    below = shown * (LANE + GAP) + 10
    parts += [text(LEFT, below, "0"), text(WIDTH, below, f"{trace.makespan_s:.4g} s", end=True)]
    parts += legend(LEFT, below + 18, ((number, kind) for kind, number in rank.items()))
    return picture(WIDTH, below + 24, "timeline", parts)


def _ranks(trace: "Trace") -> dict[str, int]:
    """The number of each kind, those that take most time first."""
    time_s: dict[str, float] = defaultdict(float)
    for row in np.flatnonzero(~trace.is_transfer).tolist():
        kind = trace.vertex_kinds[trace.vertex[row]]
        time_s[kind] += float(trace.end_s[row] - trace.begin_s[row])
    return {kind: i for i, kind in enumerate(sorted(time_s, key=lambda k: (-time_s[k], k)))}
