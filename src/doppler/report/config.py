"""How much a report shows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Sizes of a report."""

    max_vertices: int = 4000  # drawn one by one; larger graphs are drawn by meta-op
    bins: int = 240  # parts of the makespan in curves of utilization
    max_points: int = 400  # of a training curve
