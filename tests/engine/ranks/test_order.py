"""Sends and receives in one order of all ranks cannot deadlock."""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

from engine.ranks.jobs import random_case
from engine.running import machine
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doppler.engine.prepared import Preparation
from doppler.engine.ranks.own_part import Part, part_of
from doppler.errors import DopplerError
from doppler.problem import Problem
from doppler.schedule import Schedule
from doppler.tasks import Tasks, TaskTable

RANKS = 4


class Rank(NamedTuple):
    """What a rank starts, in order, and which queue each task goes through."""

    order: Sequence[int]
    needs: Sequence[Sequence[int]]
    queue: dict[int, Hashable]
    peers: dict[int, int]  # by task that crosses: the other rank


def rank_of(part: Part, tasks: Tasks, *, one_channel: bool) -> Rank:
    """With a channel for each peer, or one for all."""
    assert part.schedule is not None
    peers, queue = part.sends | part.receives, dict[int, Hashable]()
    rooms = zip(part.schedule.tasks.tolist(), part.schedule.rooms.tolist(), strict=True)
    for task, room in rooms:
        if task in peers:
            queue[task] = ("channel", -1 if one_channel else peers[task])
        else:
            queue[task] = (part.table.resource[task], room if room >= 0 else ("any", task))
    return Rank(part.schedule.tasks.tolist(), part.table.needs, queue, peers)


def stuck(ranks: Sequence[Rank], depth: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The ranks and tasks that never end.

    A rank has `depth` tasks under way at most. A task ends at the head of its queue, when all that
    it needs on its rank has; one that crosses ends on both ranks at once, or on none.
    """
    left = [deque(rank.order) for rank in ranks]
    queues: list[dict[Hashable, deque[int]]] = [defaultdict(deque) for _ in ranks]
    under_way, over = [0] * len(ranks), [set[int]() for _ in ranks]

    def is_ready(r: int, task: int) -> bool:
        rank = ranks[r]
        line = queues[r][rank.queue[task]]
        return bool(line) and line[0] == task and over[r].issuperset(rank.needs[task])

    def end(r: int, task: int) -> None:
        queues[r][ranks[r].queue[task]].popleft()
        over[r].add(task)
        under_way[r] -= 1

    moved = True
    while moved:
        moved = False
        for r in rng.permutation(len(ranks)).tolist():
            while left[r] and under_way[r] < depth:
                task = left[r].popleft()
                queues[r][ranks[r].queue[task]].append(task)
                under_way[r] += 1
                moved = True
            for line in list(queues[r].values()):
                if not line or not is_ready(r, line[0]):
                    continue
                task = line[0]
                peer = ranks[r].peers.get(task)
                if peer is not None and not is_ready(peer, task):
                    continue
                end(r, task)
                if peer is not None:
                    end(peer, task)
                moved = True
    waiting = [(r, task) for r, lines in enumerate(queues) for x in lines.values() for task in x]
    return waiting + [(r, task) for r, tasks in enumerate(left) for task in tasks]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_deadlock(data: st.DataObject) -> None:
    """Random programs, machines, memories and schedules; every send waits for its receive."""
    case = random_case(data, RANKS)
    assume(case is not None)
    assert case is not None
    problem = Problem(case["graph"], case["topology"])
    strategy = data.draw(st.sampled_from(["fifo", "random", "critical-path", "depth-first"]))
    options = {"fixed": True, "synchronous": False, "limit_memory": True, "strategy": strategy}
    preparation = Preparation(problem, None, None, **options)  # type: ignore[arg-type]
    size = data.draw(st.integers(2, RANKS))
    dealt = [d * size // RANKS for d in range(RANKS)]
    try:
        whole = preparation.tables(case["assignment"], data.draw(st.integers(0, 9)))
        parts = [
            part_of(
                *(whole.tasks, whole.table, whole.schedule, case["topology"], dealt, rank),
                mutual=True,
            )
            for rank in range(size)
        ]
    except DopplerError:
        assume(False)
    one_channel = data.draw(st.booleans())
    ranks = [rank_of(part, whole.tasks, one_channel=one_channel) for part in parts]
    for r, rank in enumerate(ranks):
        assert all(task in ranks[peer].queue for task, peer in rank.peers.items()), r
    depth, seed = data.draw(st.sampled_from([1, 2, 256])), data.draw(st.integers(0, 99))
    assert stuck(ranks, depth, np.random.default_rng(seed)) == []
    assert not any(part.outside or part.gives or part.gets for part in parts)


def two_crossings(orders: Sequence[Sequence[int]]) -> list[Rank]:
    """Two transfers between two ranks, one each way."""
    tasks = Tasks(*(np.array(x) for x in ([0, 1], [0, 1], [0, 1], [1, 0], [0, 1])))
    table = TaskTable([0, 1, 2, 3], [[], [], [0], [1]], [[2], [3], [], []], [0, 1, 2, 3])
    ranks = []
    for rank, order in enumerate(orders):
        schedule = Schedule(np.array(order), np.zeros(4, np.int64))
        part = part_of(tasks, table, schedule, machine(2), [0, 1], rank, mutual=True)
        ranks.append(rank_of(part, tasks, one_channel=False))
    return ranks


def test_two_orders_deadlock() -> None:
    """What the order is for: with another on each rank, both wait for ever."""
    same, other = [0, 1, 2, 3], [0, 1, 3, 2]
    rng = np.random.default_rng(0)
    assert stuck(two_crossings([same, same]), 256, rng) == []
    assert stuck(two_crossings([same, other]), 256, rng) != []
