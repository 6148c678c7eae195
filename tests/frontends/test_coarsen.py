"""Groups stay acyclic, hold at most one heavy operation, and keep together what is pinned."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.frontends.coarsen import Groups


@st.composite
def dags(draw):
    size = draw(st.integers(1, 14))
    reads = [draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(size)]
    return reads, draw(st.lists(st.booleans(), min_size=size, max_size=size))


def check(reads, members):
    """Groups part the vertices and come in an order in which nobody waits for a later one."""
    group = {v: g for g, found in enumerate(members) for v in found}
    assert sorted(group) == list(range(len(reads)))
    assert all(group[other] <= group[v] for v, found in enumerate(reads) for other in found)


@given(dags())
def test_light_groups_go_into_their_neighbours(dag):
    reads, heavy = dag
    groups = Groups(reads, heavy)
    groups.merge_light()
    members = groups.members()
    check(reads, members)
    assert all(sum(heavy[v] for v in found) <= 1 for found in members)


@given(dags())
def test_no_heavy_operation_waits_for_another_that_it_does_not_need(dag):
    reads, heavy = dag
    groups = Groups(reads, heavy)
    groups.merge_light()
    members = groups.members()
    group = {v: g for g, found in enumerate(members) for v in found}
    needed = [set() for _ in reads]  # heavy operations before each vertex
    before = [set() for _ in members]  # and before each group
    for v, found in enumerate(reads):
        needed[v] = set().union(*(needed[r] | ({r} if heavy[r] else set()) for r in found))
    for g, found in enumerate(members):
        others = {group[r] for v in found for r in reads[v]} - {g}
        for other in others:
            before[g] |= before[other] | {v for v in members[other] if heavy[v]}
    for v in range(len(reads)):
        if heavy[v]:
            assert before[group[v]] == needed[v]


class Naive(Groups):
    """Groups that look through all that lies before one."""

    def _waits(self, a, others):
        return others <= self._reach({a}, self._before)


@given(dags())
def test_whether_a_group_waits_for_others_is_found_in_part_of_the_graph(dag):
    found = []
    for groups in (Groups(*dag), Naive(*dag)):
        groups.merge_light()
        found.append(groups.members())
    assert found[0] == found[1]


@given(dags(), st.data())
def test_what_is_pinned_stays_together(dag, data):
    reads, heavy = dag
    vertices = st.sets(st.integers(0, len(reads) - 1), max_size=4)
    pinned = data.draw(st.lists(vertices, max_size=3))
    groups = Groups(reads, heavy)
    for each in pinned:
        groups.pin(each)
    groups.merge_light()
    members = groups.members()
    check(reads, members)
    for each in pinned:
        assert sum(not each.isdisjoint(found) for found in members) <= 1


@settings(deadline=None)
@given(dags(), st.integers(1, 6))
def test_merged_down_to_a_number(dag, count):
    reads, heavy = dag
    groups = Groups(reads, heavy)
    groups.merge_light()
    before = len(groups)
    groups.merge_to(count, [1.0 + h for h in heavy])
    members = groups.members()
    check(reads, members)
    assert len(members) == min(before, count)


@pytest.mark.parametrize(
    ("reads", "heavy", "expected"),
    [
        ([[], [0], [1]], [0, 1, 0], [[0, 1, 2]]),
        ([[], [0], [0], [1, 2]], [1, 1, 1, 1], [[0], [1], [2], [3]]),
        ([[], [0], [0], [1, 2]], [1, 0, 0, 1], [[0], [1, 2, 3]]),
        ([[], [], [0, 1]], [1, 1, 0], [[0], [1], [2]]),
        ([[], [0], [0, 1]], [1, 1, 0], [[0], [1, 2]]),
        ([[], [0], [0]], [0, 1, 1], [[0], [1], [2]]),
        ([[], [0], [1], [1]], [1, 0, 1, 1], [[0, 1], [2], [3]]),
    ],
    ids=["chain", "all heavy", "diamond", "branches", "residual", "fork", "fork of heavy"],
)
def test_small_graphs(reads, heavy, expected):
    groups = Groups(reads, heavy)
    groups.merge_light()
    assert groups.members() == expected
