"""Coarsening: operations grouped into pieces, with at most one heavy operation in each.

A light group goes into its only consumer, else into its only producer. Neither ever makes a cycle:
a path that left the two and came back would begin at another consumer, or end at another producer.
And neither makes heavy work wait that need not: a heavy operation takes in its only consumer where
that waits for nothing else that the operation would not have waited for itself.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from doppler.errors import ConfigError

PIECES, NONE = "pieces", "none"  # ways to coarsen

Value = TypeVar("Value", bound=Hashable)  # what operations read and make


def check_coarsening(coarsen: str | int) -> None:
    """Raise a `ConfigError` unless it is a way to coarsen."""
    is_count = isinstance(coarsen, int) and not isinstance(coarsen, bool) and coarsen >= 1
    if not is_count and coarsen not in (PIECES, NONE):
        raise ConfigError(
            f"coarsen is {coarsen!r}", hint="it is `pieces`, `none`, or a number of pieces"
        )


def make_pieces(
    reads: Sequence[Collection[Value]],
    maker: Callable[[Value], int | None],
    *,
    heavy: Sequence[bool],
    kept: Iterable[Value],
    rank: Callable[[Value], int],
    pins: Iterable[Iterable[int]] = (),
    coarsen: str | int = PIECES,
    flops: Callable[[int], float] = lambda _: 0.0,
) -> list[tuple[list[int], list[Value]]]:
    """The operations of each piece, and the values that leave it, sorted by their `rank`.

    `reads` are the values that each operation reads, `maker` is the operation that makes a value,
    None where none does. Values that are `kept` leave their pieces, whoever reads them.

    >>> reads, maker = [["x"], ["a"], ["a", "b"]], {"a": 0, "b": 1, "c": 2}
    >>> heavy = [True, False, True]
    >>> make_pieces(reads, maker.get, heavy=heavy, kept=["c"], rank=lambda value: maker[value])
    [([0], ['a']), ([1, 2], ['c'])]
    """
    makers = [{m for m in map(maker, found) if m is not None} for found in reads]
    groups = Groups(makers, heavy)
    for pinned in pins:
        groups.pin(pinned)
    groups.merge_light()
    if isinstance(coarsen, int):
        groups.merge_to(coarsen, [flops(i) for i in range(len(reads))])
    members = groups.members()
    group_of = {i: g for g, found in enumerate(members) for i in found}
    leaving: dict[Value, None] = dict.fromkeys(kept)
    for i, values in enumerate(reads):
        for value in values:
            made_by = maker(value)
            if made_by is not None and group_of[made_by] != group_of[i]:
                leaving[value] = None
    outputs: list[list[Value]] = [[] for _ in members]
    for value in sorted(leaving, key=rank):
        made_by = maker(value)
        if made_by is not None:
            outputs[group_of[made_by]].append(value)
    return list(zip(members, outputs, strict=True))


def peak_bytes(sizes: Sequence[float], last: Sequence[int]) -> float:
    """The most bytes at a time: each step makes a value of a size, which goes after a last use.

    >>> peak_bytes([4, 2, 1], last=[1, 2, 2])
    6.0
    """
    gone = [0.0] * len(sizes)
    for i, end in enumerate(last):
        gone[end] += sizes[i]
    now = most = 0.0
    for made, freed in zip(sizes, gone, strict=True):
        now += made
        most = max(most, now)
        now -= freed
    return most


class Groups:
    """Vertices of an acyclic graph, grouped so that the graph of the groups stays acyclic.

    >>> groups = Groups([[], [0], [1], [2]], heavy=[False, True, False, True])
    >>> groups.merge_light()
    >>> groups.members()
    [[0, 1], [2, 3]]
    >>> branches = Groups([[], [], [0, 1]], heavy=[True, True, False])
    >>> branches.merge_light()
    >>> branches.members()
    [[0], [1], [2]]
    """

    def __init__(self, reads: Sequence[Iterable[int]], heavy: Sequence[bool]) -> None:
        """`reads` are the vertices whose outputs each vertex reads, all with lower numbers."""
        size = len(reads)
        self._member: dict[int, list[int]] = {i: [i] for i in range(size)}
        self._before: dict[int, set[int]] = {i: set(reads[i]) for i in range(size)}
        self._after: dict[int, set[int]] = {i: set() for i in range(size)}
        self._heavy = {i: int(heavy[i]) for i in range(size)}
        self._of = list(range(size))
        self._place = {i: i for i in range(size)}
        for i, found in self._before.items():
            for other in found:
                self._after[other].add(i)

    def __len__(self) -> int:
        return len(self._member)

    def members(self) -> list[list[int]]:
        """The vertices of each group, ascending; groups come after those that they read from."""
        return [sorted(self._member[group]) for group in self._in_order()]

    def _in_order(self) -> list[int]:
        """The groups, each after those that it reads from; of those that could come, the first."""
        missing = {g: len(self._before[g]) for g in self._member}
        ready = [(min(self._member[g]), g) for g in self._member if not missing[g]]
        heapify(ready)
        found = []
        while ready:
            _, group = heappop(ready)
            found.append(group)
            for after in sorted(self._after[group]):
                missing[after] -= 1
                if not missing[after]:
                    heappush(ready, (min(self._member[after]), after))
        assert len(found) == len(self._member), "groups have a cycle"
        return found

    def pin(self, vertices: Iterable[int]) -> None:
        """Put vertices into one group, with all that lies on a path between two of them."""
        wanted = {self._of[v] for v in vertices}
        if len(wanted) < 2:
            return
        between = self._reach(wanted, self._after) & self._reach(wanted, self._before)
        first, *others = sorted(wanted | between)
        for other in others:
            self._merge(other, first)

    def merge_light(self) -> None:
        """Merge groups until no two neighbours can be without two heavy operations in one."""
        # Places in an order, which merging keeps valid: what a group goes into is its only
        # consumer, behind all that it reads, or its only producer, before all that read it.
        self._place = {group: i for i, group in enumerate(self._in_order())}
        changed = True
        while changed:
            changed = False
            for a in sorted(self._member, reverse=True):
                if a in self._member and len(self._after[a]) == 1:
                    changed |= self._merge_into_consumer(a, next(iter(self._after[a])))
            for b in sorted(self._member):
                if b in self._member and len(self._before[b]) == 1 and not self._heavy[b]:
                    self._merge(b, next(iter(self._before[b])))
                    changed = True

    def merge_to(self, count: int, cost: Sequence[float]) -> None:
        """Merge neighbours until there are `count` groups, or no edges: the cheapest pair first.

        Groups that no edge joins are merged at last, in order.
        """
        total = {g: sum(cost[v] for v in members) for g, members in self._member.items()}
        while len(self._member) > count:
            pairs = sorted(
                (total[a] + total[b], a, b) for a in self._member for b in self._after[a]
            )
            found = next(((a, b) for _, a, b in pairs if not self._detour(a, b)), None)
            if found is None:
                first, second = sorted(self._member, key=lambda g: (total[g], g))[:2]
                found = (second, first)
            a, b = found
            self._merge(a, b)
            total[b] += total.pop(a)

    def _merge_into_consumer(self, a: int, b: int) -> bool:
        if self._heavy[a] and (self._heavy[b] or not self._waits(a, self._before[b] - {a})):
            return False
        self._merge(a, b)
        return True

    def _waits(self, a: int, others: set[int]) -> bool:
        """Whether a group waits for all of some others: they are among those it reads from, or
        these read from, and so on back.
        """
        missing = set(others)
        first = min((self._place[group] for group in missing), default=0)
        seen, pending = {a}, [a]
        while missing and pending:
            for group in self._before[pending.pop()]:
                if group not in seen and self._place[group] >= first:
                    seen.add(group)
                    missing.discard(group)
                    pending.append(group)
        return not missing

    def _detour(self, a: int, b: int) -> bool:
        """Whether a path leads from a group to another by way of a third."""
        return any(b in self._reach({c}, self._after) for c in self._after[a] if c != b)

    def _reach(self, start: set[int], step: dict[int, set[int]]) -> set[int]:
        """The groups that lie beyond some, in one direction."""
        found: set[int] = set()
        pending = list(start)
        while pending:
            for group in step[pending.pop()]:
                if group not in found:
                    found.add(group)
                    pending.append(group)
        return found

    def _merge(self, a: int, b: int) -> None:
        """Put group `a` into group `b`."""
        for v in self._member[a]:
            self._of[v] = b
        self._member[b] += self._member.pop(a)
        self._heavy[b] += self._heavy.pop(a)
        for mine, other in ((self._before, self._after), (self._after, self._before)):
            for group in mine.pop(a):
                other[group].discard(a)
                if group != b:
                    other[group].add(b)
                    mine[b].add(group)
            mine[b].discard(a)
