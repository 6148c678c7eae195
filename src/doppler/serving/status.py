"""OnlineStatus: how an online placer is doing, as values and as text for Prometheus."""

from dataclasses import dataclass, fields
from math import nan

import numpy as np

from doppler.serving.exploration import Exploration
from doppler.serving.incumbent import digest

PREFIX = "doppler_online"
COUNTERS = ("requests", "explored", "failures", "late", "lost", "promoted", "reverted", "dropped")


@dataclass(frozen=True, slots=True)
class OnlineStatus:
    """How an `OnlinePlacer` is doing."""

    exploring: bool
    incumbent: str  # digest of the assignment that serves most requests
    requests: int
    explored: int  # of these, those that challengers served, or failed to
    failures: int  # attempts that failed
    late: int  # challengers that were stopped at their deadline
    lost: int  # requests that nobody could serve
    faults: dict[str, int]  # by cause: `request`, `assignment` or `machine`
    promoted: int  # challengers that became the incumbent
    reverted: int  # promotions that were undone
    dropped: int  # challengers that lost or failed
    incumbent_s: float  # mean makespan of its latest requests
    spread_s: float  # and their standard deviation
    gain: float  # how much less that is than the first incumbent's mean, as a share
    extra: float  # what exploring has added to the time of all requests, as a share
    challenger_s: float | None  # mean makespan of the challenger, if one races
    waiting: int  # challengers
    sim_error: float | None  # mean relative error of the recalibrated simulator
    changes: int  # of the machine
    last_change: dict[str, float]  # seconds after over before, by place, in the last of them


def status_of(
    exploration: Exploration,
    *,
    exploring: bool,
    sim_error: float | None,
    last_change: dict[str, float],
) -> OnlineStatus:
    """Counts and means so far."""
    incumbent, race = exploration.incumbent, exploration.incumbent.race
    measured = race is not None and race.challenger_s
    served_s = exploration.served_s
    return OnlineStatus(
        exploring=exploring,
        incumbent=digest(exploration.devices),
        requests=exploration.requests,
        explored=exploration.explored,
        failures=exploration.failures,
        late=exploration.late,
        lost=exploration.lost,
        faults=dict(exploration.faults.counts),
        promoted=incumbent.promoted,
        reverted=incumbent.reverted,
        dropped=incumbent.dropped,
        incumbent_s=incumbent.mean_s if incumbent.recent_s else 0.0,
        spread_s=incumbent.spread_s,
        gain=1.0 - 1.0 / incumbent.speedup if incumbent.speedup else 0.0,
        extra=exploration.extra_s / served_s if served_s else 0.0,
        challenger_s=float(np.mean(measured)) if measured else None,
        waiting=len(exploration.queue),
        sim_error=sim_error,
        changes=exploration.changes,
        last_change=last_change,
    )


HELP = {  # of each metric, by field
    "exploring": "whether challengers are tried",
    "requests": "requests served",
    "explored": "requests that challengers served, or failed to",
    "failures": "attempts that failed",
    "late": "challengers stopped at their deadline",
    "lost": "requests that no assignment could serve",
    "promoted": "challengers that became the incumbent",
    "reverted": "promotions that were undone",
    "dropped": "challengers that lost or failed",
    "incumbent_s": "mean makespan of the incumbent's latest requests",
    "spread_s": "their standard deviation",
    "gain": "share by which that is less than the first incumbent's",
    "extra": "share that exploring has added to the time of all requests",
    "challenger_s": "mean makespan of the challenger that races",
    "waiting": "challengers that wait",
    "sim_error": "mean relative error of the recalibrated simulator",
    "changes": "changes of the machine that were noticed",
}


def metrics_text(status: OnlineStatus) -> str:
    """The numbers of a status in Prometheus' text format, version 0.0.4."""
    lines = []
    for field in fields(status):
        if field.name not in HELP:
            continue
        value, counts = getattr(status, field.name), field.name in (*COUNTERS, "changes")
        name = f"{PREFIX}_{field.name.removesuffix('_s')}"
        name += "_seconds" if field.name.endswith("_s") else ""
        name += "_total" if counts else ""
        lines += _header(name, HELP[field.name], "counter" if counts else "gauge")
        lines.append(f"{name} {_number(value)}")
    name = f"{PREFIX}_faults_total"
    lines += _header(name, "failures by cause", "counter")
    lines += [f'{name}{{cause="{cause}"}} {count}' for cause, count in status.faults.items()]
    name = f"{PREFIX}_incumbent_info"
    lines += _header(name, "digest of the assignment that serves most requests", "gauge")
    lines.append(f'{name}{{digest="{status.incumbent}"}} 1')
    return "\n".join(lines) + "\n"


def _header(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _number(value: float | None) -> str:
    value = nan if value is None else value
    return "NaN" if value != value else repr(float(value)) if value % 1 else str(int(value))
