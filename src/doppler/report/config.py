"""How much a report shows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page says of each trace."""

    ticks: int = 10**10  # of a makespan: times are whole numbers, which take less room
    longest: int = 200  # characters of a name
    max_tasks: int | None = None  # of a trace, shown one by one; the others are merged
    all_names: bool = True  # also of vertices whose tasks are merged
    with_graph: bool = True


# From all there is to say to what always has room.
DETAILS = (
    Detail(),
    Detail(ticks=10**7, longest=60),
    Detail(ticks=10**6, longest=40, max_tasks=50_000),
    Detail(ticks=10**5, longest=24, max_tasks=20_000, all_names=False),
    Detail(ticks=10**5, longest=16, max_tasks=4_000, all_names=False, with_graph=False),
)


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Sizes of a report."""

    max_vertices: int = 4000  # drawn one by one; larger graphs are drawn by meta-op
    bins: int = 240  # parts of the makespan in curves of utilization
    max_points: int = 400  # of a training curve
    max_bytes: int = 6_000_000  # of a page; larger ones get less detail, and say so
    details: tuple[Detail, ...] = DETAILS
