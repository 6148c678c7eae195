"""Execution: what running an assignment on real devices gave."""

from dataclasses import dataclass, field
from typing import Any

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.notebook import html_table, number
from doppler.trace import Trace


@dataclass(frozen=True, slots=True)
class Execution:
    """What running an assignment gave.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> result = dp.execute(graph, "cpu2", assignment, repeats=3)
    >>> len(result.makespans_s), list(result.outputs)
    (3, ['add'])
    """

    trace: Trace  # of the run whose makespan is the median
    makespans_s: FloatArray  # (R,) of every measured run
    peak_bytes: IntArray  # (D,) of each device's memory that a run takes
    outputs: dict[str, Any] = field(default_factory=dict)  # results, whole; of pieces as tensors

    def __repr__(self) -> str:
        mean_s, spread_s = number(self.mean_s), number(self.spread_s)
        counts = f"{len(self.makespans_s)} runs, {len(self.outputs)} outputs"
        return f"<Execution: {counts}, makespan {mean_s} ± {spread_s} s>"

    def _repr_html_(self) -> str:
        columns = ("output", "shape", "dtype")
        rows = ((name, str(x.shape), str(x.dtype)) for name, x in self.outputs.items())
        return html_table(repr(self), columns, rows, count=len(self.outputs))

    @property
    def mean_s(self) -> float:
        """Mean makespan."""
        return float(self.makespans_s.mean())

    @property
    def spread_s(self) -> float:
        """Standard deviation of the makespans."""
        return float(self.makespans_s.std())
