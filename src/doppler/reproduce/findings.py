"""Findings: the paper's figures and claims beside ours, and what follows.

A verdict is computed from the data by the rules here, never written by hand:

- one value is *below* another if the difference of their means is more than the larger of their
  standard deviations, and more than half a percent;
- a claim *holds* if all comparisons that it makes come out as the paper says;
- a label holds if all its claims that can be tested hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import numpy as np

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested here"
MARGIN = 0.005  # share of the mean below which a difference is none


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of a value over seeds or runs."""

    mean: float
    std: float = 0.0
    count: int = 1

    def __str__(self) -> str:
        if not isfinite(self.mean):
            return "–"
        digits = 1 if abs(self.mean) >= 10 else 2
        mean = f"{self.mean:,.{digits}f}"
        return f"{mean} ± {self.std:.{digits}f}" if self.count > 1 else mean


def spread(values: Iterable[float]) -> Spread:
    """The mean and the standard deviation of values.

    >>> str(spread([99.0, 101.0]))
    '100.0 ± 1.0'
    """
    found = np.array(list(values), float)
    if not len(found):
        return Spread(float("nan"), 0.0, 0)
    return Spread(float(found.mean()), float(found.std()), len(found))


def is_below(a: Spread, b: Spread) -> bool:
    """Whether a is below b by more than their spreads.

    >>> is_below(Spread(100.0, 1.0), Spread(100.9, 0.0)), is_below(Spread(90), Spread(100.0, 1.0))
    (False, True)
    """
    return b.mean - a.mean > max(a.std, b.std, MARGIN * abs(b.mean))


@dataclass(frozen=True, slots=True)
class Inequality:
    """One of the comparisons of a claim: what should be below what, and where."""

    where: str  # such as a graph
    less: Spread
    more: Spread

    @property
    def holds(self) -> bool:
        """Whether it comes out as the paper says."""
        return is_below(self.less, self.more)

    def __str__(self) -> str:
        change = 100 * (self.less.mean / self.more.mean - 1)
        return f"{self.where} {self.less} against {self.more} ({change:+.1f} %)"


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and whether our data agree."""

    text: str  # of the paper
    verdict: str
    reason: str


def claim(text: str, comparisons: Sequence[Inequality], *, least: int | None = None) -> Claim:
    """A claim that holds if all comparisons do, or `least` of them."""
    kept = [c for c in comparisons if isfinite(c.less.mean) and isfinite(c.more.mean)]
    if not kept:
        return cannot_test(text, "nothing was measured")
    holding = [c for c in kept if c.holds]
    wanted = len(kept) if least is None else least
    verdict = HOLDS if len(holding) >= wanted else FAILS
    reason = f"{len(holding)} of {len(kept)} comparisons: " + "; ".join(map(str, kept))
    return Claim(text, verdict, reason)


def check(text: str, true: bool, reason: str) -> Claim:
    """A claim that holds if a condition does."""
    return Claim(text, HOLDS if true else FAILS, reason)


def cannot_test(text: str, reason: str) -> Claim:
    """A claim that nothing here can decide."""
    return Claim(text, UNTESTED, reason)


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Rows of texts under heads."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines to draw: for each name, x and y."""

    title: str
    x: str
    y: str
    lines: dict[str, list[list[float]]]  # [[x, …], [y, …]]
    points: bool = False  # instead of lines
    log: bool = False  # both axes


@dataclass(frozen=True, slots=True)
class AssignmentDrawing:
    """An assignment to draw: the graph in the colours of devices, or the timeline of its run."""

    title: str
    machine: str
    graph: str
    devices: list[int]  # (V,) -1 where a vertex has none, or none yet
    timeline: bool = False  # instead of the graph


Chart = LineChart | AssignmentDrawing


@dataclass(frozen=True, slots=True)
class Finding:
    """All that was found for one label."""

    label: str
    title: str
    where: str  # in the paper
    budget: str  # of every row, and seeds
    tables: tuple[FigureTable, ...]
    claims: tuple[Claim, ...]
    charts: tuple[Chart, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # executor, commit, …

    @property
    def verdict(self) -> str:
        """That of all claims: it holds if all that can be tested do."""
        tested = [c.verdict for c in self.claims if c.verdict != UNTESTED]
        if not tested:
            return UNTESTED
        return HOLDS if all(v == HOLDS for v in tested) else FAILS

    @property
    def summary(self) -> str:
        """How many claims hold, of those that could be tested."""
        tested = [c.verdict for c in self.claims if c.verdict != UNTESTED]
        left = len(self.claims) - len(tested)
        text = f"{tested.count(HOLDS)} of {len(tested)} claims hold" if tested else ""
        untested = f"{left} cannot be tested here" if left else ""
        return "; ".join(part for part in (text, untested) if part)


def to_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON values, its verdict first."""
    values = {"label": finding.label, "verdict": finding.verdict, "summary": finding.summary}
    return values | asdict(finding)


def from_json(values: dict[str, Any]) -> Finding:
    """The finding that `to_json` wrote."""
    kept = {k: v for k, v in values.items() if k not in ("verdict", "summary")}
    tables = tuple(
        FigureTable(t["title"], tuple(t["heads"]), tuple(tuple(row) for row in t["rows"]))
        for t in kept.pop("tables")
    )
    claims = tuple(Claim(**c) for c in kept.pop("claims"))
    charts = tuple(
        AssignmentDrawing(**c) if "machine" in c else LineChart(**c) for c in kept.pop("charts")
    )
    return Finding(**kept, tables=tables, claims=claims, charts=charts)
