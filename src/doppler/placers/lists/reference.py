"""The readable list schedulers: what the compiled ones must equal, looking at everything.

Written for the reader: a step looks at all ready vertices, all devices and all gaps.
"""

from math import inf

import numpy as np

from doppler.base.arrays import rows
from doppler.placers.lists.rules import GreedyRule, ListSchedule, PlanArrays, RankRule


class _Plan:
    """What has been placed, and when the rest could begin."""

    def __init__(self, problem: PlanArrays) -> None:
        self.p = problem
        self.num_vertices, self.num_devices = problem.exec_s.shape
        self.reads: list[list[tuple[int, int]]] = [[] for _ in range(self.num_vertices)]
        for producer in range(self.num_vertices):
            for e in range(problem.edge_ptr[producer], problem.edge_ptr[producer + 1]):
                read = int(problem.edge_tensor[e]), producer
                self.reads[problem.edge_reader[e]].append(read)
        # With those of inputs, which have no producer here.
        self.all_reads = rows(problem.read_ptr, problem.read_tensor)
        self.devices = [-1] * self.num_vertices
        self.begin_s, self.end_s = [0.0] * self.num_vertices, [0.0] * self.num_vertices
        self.order: list[int] = []
        self.free_s = [0.0] * int(problem.slot_ptr[-1])

    def ready(self) -> list[int]:
        """Vertices that are not placed, but all whose producers are."""
        return [
            v
            for v in range(self.num_vertices)
            if self.p.num_reads[v] >= 0
            and self.devices[v] < 0
            and all(self.devices[producer] >= 0 for _, producer in self.reads[v])
        ]

    def slots(self, d: int) -> range:
        return range(int(self.p.slot_ptr[d]), int(self.p.slot_ptr[d + 1]))

    def arrival_s(self, v: int, d: int) -> float:
        """When the last input of a ready vertex gets to a device."""
        arrivals = [float(self.p.arrival_s[v, d])]
        for t, producer in self.reads[v]:
            a, at = self.devices[producer], self.end_s[producer]
            if a != d:
                slope = self.p.s_per_byte[a, d]
                at += self.p.fixed_s[t] + self.p.latency_s[a, d] + self.p.tensor_bytes[t] * slope
            arrivals.append(float(at))
        return max(arrivals)

    def put(self, v: int, d: int, begin_s: float) -> None:
        self.devices[v] = d
        self.begin_s[v] = begin_s
        self.end_s[v] = begin_s + float(self.p.exec_s[v, d])
        self.order.append(v)

    def schedule(self) -> ListSchedule:
        return ListSchedule(
            np.array(self.devices, np.int64),
            np.array(self.order, np.int64),
            np.array(self.begin_s),
            np.array(self.end_s),
        )


class _RankPlan(_Plan):
    """A plan with gaps that vertices may be inserted into."""

    def __init__(self, problem: PlanArrays, rule: RankRule) -> None:
        super().__init__(problem)
        self.rule = rule
        self.gaps: list[list[tuple[float, float]]] = [[] for _ in self.free_s]

    def earliest(self, v: int, d: int) -> tuple[float, int, int]:
        """When v can begin on d, on which slot, and in which gap; past the last: behind all."""
        arrival_s, exec_s = self.arrival_s(v, d), float(self.p.exec_s[v, d])
        return min(
            (max(begin, arrival_s), slot, i)
            for slot in self.slots(d)
            for i, (begin, end) in enumerate([*self.gaps[slot], (self.free_s[slot], inf)])
            if max(begin, arrival_s) + exec_s <= end
        )

    def scores_s(self, v: int) -> list[float]:
        """The score of every device."""
        bias = self.rule.bias_s[v].tolist()
        return [self.earliest(v, d)[0] + bias[d] for d in range(self.num_devices)]

    def place(self, v: int) -> None:
        scores = self.scores_s(v)
        best = [d for d, score in enumerate(scores) if score == min(scores)]
        d = best[int(self.rule.draws[v] * len(best))]
        begin_s, slot, i = self.earliest(v, d)
        self.put(v, d, begin_s)
        gaps, end_s = self.gaps[slot], self.end_s[v]
        if i == len(gaps):
            left = (self.free_s[slot], begin_s)
            pieces, self.free_s[slot] = [left], end_s
        else:
            pieces = [(gaps[i][0], begin_s), (end_s, gaps[i][1])]
        gaps[i : i + 1] = [(begin, end) for begin, end in pieces if begin < end]
        if len(gaps) > self.rule.max_gaps:
            del gaps[0]


def place_by_rank(problem: PlanArrays, rule: RankRule) -> ListSchedule:
    """The schedule that follows from a `RankRule`."""
    plan = _RankPlan(problem, rule)
    place_of = {v: i for i, v in enumerate(rule.sequence.tolist())}
    while ready := plan.ready():
        urgent = sorted(ready, key=place_of.__getitem__)[: rule.window]
        plan.place(max(urgent, key=lambda v: min(plan.scores_s(v))))
    return plan.schedule()


class _GreedyPlan(_Plan):
    """A plan that counts memory and knows who was last on a slot."""

    def __init__(self, problem: PlanArrays, rule: GreedyRule) -> None:
        super().__init__(problem)
        self.rule = rule
        self.last = [-1] * len(self.free_s)

    def slot(self, d: int) -> int:
        """The slot that is free first."""
        return min(self.slots(d), key=lambda slot: (self.free_s[slot], slot))

    def begins_s(self, v: int, d: int) -> float:
        return max(self.free_s[self.slot(d)], self.arrival_s(v, d))

    def room_bytes(self, v: int, d: int) -> float:
        """What is left on d with the outputs of v and the inputs and copies it needs there."""
        here = [u for u in range(self.num_vertices) if self.devices[u] == d] + [v]
        # Outputs: all a vertex could add, less what it reads.
        outputs = sum(
            self.p.max_bytes[u] - sum(self.p.whole_bytes[t] for t in self.all_reads[u])
            for u in here
        )
        made = {t for u in here for t, producer in self.reads[u] if self.devices[producer] == d}
        copies = {t for u in here for t in self.all_reads[u]} - made
        copied = sum(self.p.whole_bytes[t] for t in sorted(copies))
        temporary = max(self.p.temporary_bytes[u] for u in here)
        return float(self.rule.memory_bytes[d] - outputs - copied - temporary)

    def proposal(self, ready: list[int], d: int) -> tuple[float, float, int, int] | None:
        """A device's first (value, tie, vertex, device)."""
        rule, tie = self.rule, self.rule.tie
        pairs = [
            (self.begins_s(v, d) + (tie[v, d] if rule.by_finish else 0.0), tie[v, d], v, d)
            for v in ready
            if self.room_bytes(v, d) >= 0
        ]
        if not pairs:
            return None
        value, _, v, _ = first = min(pairs)
        last = self.last[self.slot(d)]
        favourite = int(rule.favourite[last]) if last >= 0 else -1
        if favourite in (-1, v) or self.devices[favourite] >= 0:
            return first
        if any(self.arrival_s(v, other) > value for other in range(self.num_devices)):
            value = max(value, self.end_s[last] + rule.awake_s[last])
        mine = next((pair for pair in pairs if pair[2] == favourite), None)
        return mine if mine and mine[0] <= value else (value, *first[1:])


def place_greedily(problem: PlanArrays, rule: GreedyRule) -> ListSchedule:
    """The schedule that follows from a `GreedyRule`."""
    plan = _GreedyPlan(problem, rule)
    while ready := plan.ready():
        proposals = [plan.proposal(ready, d) for d in range(plan.num_devices)]
        if known := [proposal for proposal in proposals if proposal]:
            value, _, v, d = min(known)
            begin_s = plan.begins_s(v, d) if rule.by_finish else float(value)
        else:
            v = min(ready, key=lambda v: (rule.tie[v, 0], v))
            d = max(range(plan.num_devices), key=lambda d: (plan.room_bytes(v, d), -d))
            begin_s = plan.begins_s(v, d)
        slot = plan.slot(d)
        plan.put(v, d, begin_s)
        plan.free_s[slot], plan.last[slot] = plan.end_s[v], v
    return plan.schedule()


def choose_favourites(edges: list[tuple[int, int]]) -> dict[int, int]:
    """The reader of each producer that has a favourite, of (producer, reader) in this order."""
    favourite: dict[int, int] = {}
    for producer, reader in edges:
        if producer not in favourite and reader not in favourite.values():
            favourite[producer] = reader
    return favourite
