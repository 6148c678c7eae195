"""Packing: nothing that is there at the same time overlaps, and little is wasted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.scheduler.packing import (
    PackingConfig,
    Spans,
    _fast_put_down,
    live_bound,
    pack,
    places_after,
    put_down,
)


@st.composite
def spans(draw: st.DrawFn) -> Spans:
    rows = draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), max_size=12)
    )
    begin, length, size = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Spans(begin, begin + length, size)


def overlapping(found: Spans, offset: list[int], i: int, j: int) -> bool:
    size = found.size.tolist()
    return (
        size[i] > 0
        and size[j] > 0
        and offset[i] < offset[j] + size[j]
        and offset[j] < offset[i] + size[i]
    )


def test_the_bound_counts_what_is_there_at_once() -> None:
    found = Spans(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([10, 20, 30]))
    assert live_bound(found) == 50
    assert pack(found).top == 50
    assert live_bound(Spans(*np.zeros((3, 0), np.int64))) == 0


@given(spans())
def test_buffers_that_meet_are_apart(found: Spans) -> None:
    packing = pack(found, config=PackingConfig(repairs=20))
    offset = packing.offset.tolist()
    assert packing.top == max((offset + found.size).tolist(), default=0)
    assert packing.top >= live_bound(found)
    for i in range(len(offset)):
        for j in range(i):
            meet = found.begin[i] <= found.end[j] and found.begin[j] <= found.end[i]
            assert not (meet and overlapping(found, offset, i, j))


@given(spans(), st.randoms(use_true_random=False))
def test_the_kernel_equals_its_readable_twin(found: Spans, random: object) -> None:
    order = np.arange(len(found.size))
    random.shuffle(order)  # type: ignore[attr-defined]
    slow, fast = put_down(found, order), _fast_put_down(found, order)
    assert slow.offset.tolist() == fast.offset.tolist()
    assert slow.top == fast.top
    if slow.top:  # it gives up as soon as it takes more than it may
        assert _fast_put_down(found, order, slow.top).offset.tolist() == slow.offset.tolist()
        assert _fast_put_down(found, order, slow.top - 1).top > slow.top - 1


@settings(max_examples=200)
@given(spans())
def test_who_takes_over_a_place_waits_for_its_users(found: Spans) -> None:
    packing = pack(found, config=PackingConfig(repairs=5))
    users = [[i] for i in range(len(found.size))]
    after = set(places_after(found, packing, users))
    waits = {i: {other for buffer, other in after if buffer == i} for i in range(len(users))}
    for i in sorted(
        waits, key=lambda i: int(found.begin[i])
    ):  # also for those before, through them
        for other in sorted(waits[i]):
            waits[i] |= waits[other]
    for i in range(len(users)):
        for j in range(len(users)):
            if found.end[j] < found.begin[i] and overlapping(found, packing.offset.tolist(), i, j):
                assert j in waits[i]


def test_repairs_take_less() -> None:
    rng = np.random.default_rng(3)
    begin = rng.integers(0, 60, 80)
    found = Spans(begin, begin + rng.integers(0, 20, 80), rng.integers(1, 100, 80))
    without = pack(found, config=PackingConfig(repairs=0)).top
    assert pack(found).top < without
