"""Factors: dimensions that views split and merge have the factors of all views."""

from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from doppler.frontends.lifting.factors import Factors


def test_a_split_reaches_every_dimension_that_is_the_same_axis():
    factors = Factors()
    columns, weight, merged = (factors.new(64) for _ in range(3))
    heads, size, groups, shared = (factors.new(n) for n in (8, 8, 2, 4))
    factors.same(columns, weight)
    factors.view([columns], [heads, size])
    factors.view([groups, shared], [heads])
    factors.view([heads, size], [merged])
    assert factors.solve() == set()
    assert factors.of(weight) == factors.of(merged) == (2, 4, 8)
    assert factors.of(heads) == (2, 4)


def test_views_that_contradict_each_other_are_told():
    factors = Factors()
    whole, rows, columns, others, few = (factors.new(n) for n in (6, 2, 3, 3, 2))
    factors.view([whole], [rows, columns])
    wrong = factors.view([whole], [others, few])
    assert factors.solve() == {wrong}
    assert factors.of(whole) == (2, 3)


def test_an_axis_that_occurs_twice_in_a_view_has_one_factoring():
    factors = Factors()
    side, rows, rest = factors.new(4), factors.new(2), factors.new(8)
    factors.view([side, side], [rows, rest])
    assert factors.solve() == set()
    assert factors.of(side) == (2, 2)
    assert factors.of(rest) == (2, 2, 2)


def test_dimensions_of_one_element_or_none_have_no_factors():
    factors = Factors()
    assert factors.new(1) is factors.new(0) is None
    assert factors.of(None) == ()


@given(st.lists(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3), max_size=4))
def test_factors_multiply_to_the_dimension(shapes):
    factors = Factors()
    dims = [factors.new(12) for _ in shapes]
    views = {}
    for dim, shape in zip(dims, shapes, strict=True):
        if prod(shape) == 12:
            parts = [factors.new(n) for n in shape]
            views[factors.view([dim], parts)] = dim, parts
    for a, b in pairwise(dims):
        factors.same(a, b)
    wrong = factors.solve()
    for dim in dims:
        assert prod(factors.of(dim)) == 12
    for number, (dim, parts) in views.items():
        if number not in wrong:
            assert factors.of(dim) == tuple(n for part in parts for n in factors.of(part))
