"""The partitioners: `paper` against a naive one, `even`, cuts by hand, and what cannot be cut."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding.naive_partitioner import (
    naive_candidates,
    naive_contraction_cost,
    naive_cuts,
    naive_repartition_cost,
    naive_trees,
)
from sharding.random_programs import cuts_of, programs, tangles
from strategies import examples

from doppler.errors import ShardingError, UnknownNameError
from doppler.programs import (
    Program,
    ProgramBuilder,
    Read,
    chainmm,
    concat,
    exp,
    ffnn,
    llama_block,
    llama_layer,
    moe_layer,
    relu,
    to_complex,
    to_real,
)
from doppler.sharding import METHODS, partition, shard
from doppler.sharding.cuts import candidates, contraction_cost, repartition_costs
from doppler.sharding.trees import downstream_first, grow_trees

powers = st.sampled_from([1, 2, 4, 8])


def trees_in_a_circle() -> Program:
    """Each of three trees has a consumer in the next: r1, a, b, d; r2, c, q, m; u."""
    b = ProgramBuilder("circle")
    r1, r2 = b.input("r1", (4, 8)), b.input("r2", (8, 4))
    a, b_, c, q = relu(r1), exp(r1), exp(r2), relu(r2)
    u = a + b_
    d = a + c.T
    m = u + q.T
    return b.build((d @ d.T).named("dd"), (m @ m.T).named("mm"))


def many_consumers() -> Program:
    """A tensor that five operations read in different ways: three of them are frozen."""
    b = ProgramBuilder("many")
    x = b.input("x", (8, 8))
    h = relu(x)
    products = [(h @ b.input(f"w{i}", (8, 4))).named(f"p{i}") for i in range(2)]
    rows, columns, corner = h.sum(1), h.sum(0), h[:4, :2]
    return b.build(*products, rows, columns, corner @ corner.T)


# Against the naive partitioner.


@settings(max_examples=examples(250))
@given(st.data(), st.sampled_from([2, 4, 8]))
def test_random_programs_are_cut_like_the_naive_partitioner_cuts_them(data, parts):
    program = data.draw(programs(parts=parts, max_ops=6 if parts == 8 else 9))
    assert partition(program, parts) == naive_cuts(program, parts)


@settings(max_examples=examples(200))
@given(tangles(), st.sampled_from([2, 4]))
def test_tangled_programs_are_cut_like_the_naive_partitioner_cuts_them(program, parts):
    assert partition(program, parts) == naive_cuts(program, parts)


@settings(max_examples=examples(200))
@given(tangles(max_ops=16))
def test_trees_are_those_of_the_rule(program):
    members, children = naive_trees(program)
    tree_of, found = grow_trees(program, program.consumers())
    assert tree_of == [next(r for r in members if i in members[r]) for i in range(len(tree_of))]
    assert dict(enumerate(found)) == children


@settings(max_examples=examples(200))
@given(tangles(max_ops=16))
def test_trees_are_solved_after_those_that_read_them_but_for_circles(program):
    consumers = program.consumers()
    tree_of, _ = grow_trees(program, consumers)
    order = downstream_first(consumers, tree_of)
    assert sorted(order) == sorted(set(tree_of))
    readers = {root: set() for root in order}
    for op, found in enumerate(consumers):
        readers[tree_of[op]] |= {tree_of[c] for c, _ in found} - {tree_of[op]}
    for i, root in enumerate(order):
        waits = {r: readers[r].intersection(order[i:]) for r in order[i:]}
        assert not waits[root] or root in reachable(waits, root)


CIRCLES = {  # the trees that each tree waits for, and the order in which they are solved
    "no circle": ({0: [1, 2], 1: [2], 2: []}, [2, 1, 0]),
    "free trees first, by number": ({0: [1], 1: [0], 2: [], 3: []}, [2, 3, 0, 1]),
    "all in one circle: the lowest": ({0: [2], 1: [0], 2: [1]}, [0, 1, 2]),
    "a way into a circle: where it is entered": (
        {0: [3], 1: [2], 2: [3], 3: [1]}, [3, 0, 2, 1]
    ),
    "two circles: the one on the lowest way": (
        {0: [2, 4], 1: [2], 2: [1], 3: [4], 4: [3]}, [2, 1, 4, 0, 3]
    ),
    "circles within circles: the shorter of the lowest": (
        {0: [1, 2], 1: [2, 3], 2: [1], 3: [0]}, [1, 2, 0, 3]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("waits_for", "order"), CIRCLES.values(), ids=CIRCLES)
def test_of_trees_in_a_circle_the_first_met_twice_is_solved_first(waits_for, order):
    """The way begins at the lowest tree, and goes to the lowest that a tree waits for."""
    read = Read(0, ())
    consumers = [[(other, read) for other in others] for others in waits_for.values()]
    assert downstream_first(consumers, list(waits_for)) == order


def test_the_order_of_the_trees_of_a_program_with_a_circle():
    program = trees_in_a_circle()
    consumers = program.consumers()
    tree_of, _ = grow_trees(program, consumers)
    names = [program.ops[root].name for root in downstream_first(consumers, tree_of)]
    assert names == ["r1", "r2", "add"]


def reachable(edges: dict[int, set[int]], start: int) -> set[int]:
    found, stack = set(), [start]
    while stack:
        fresh = edges[stack.pop()] - found
        found |= fresh
        stack += sorted(fresh)
    return found


@settings(max_examples=100)
@given(st.data(), st.sampled_from([2, 4]))
def test_with_cuts_by_hand_the_rest_is_cut_like_the_naive_partitioner_cuts_it(data, parts):
    program = data.draw(programs(parts=parts))
    by_hand = data.draw(st.lists(st.sampled_from(range(len(program.ops))), unique=True))
    fixed = {i: data.draw(cuts_of(program.ops[i])) for i in by_hand}
    cuts = partition(
        program, parts, partitions={program.ops[i].name: cut for i, cut in fixed.items()}
    )
    assert cuts == naive_cuts(program, parts, fixed)
    assert all(cuts[i] == cut for i, cut in fixed.items())


WORKLOADS = [chainmm(), ffnn(), ffnn(bias=True), llama_block(), llama_layer(), moe_layer(experts=4)]


@pytest.mark.parametrize("parts", [2, 4, 8, 16])
@pytest.mark.parametrize(
    "program", [*WORKLOADS, trees_in_a_circle(), many_consumers()], ids=lambda program: program.name
)
def test_workloads_are_cut_like_the_naive_partitioner_cuts_them(program, parts):
    assert partition(program, parts) == naive_cuts(program, parts)


@given(programs(max_ops=3), powers)
def test_candidates_come_in_the_order_that_breaks_ties(program, parts):
    for op in program.ops:
        assert candidates(op, parts) == naive_candidates(op, parts)


def test_the_first_candidates_put_everything_on_the_first_axis():
    b = ProgramBuilder("candidates")
    x = relu(b.input("x", (8, 8)))
    y = x @ b.input("w", (8, 8))
    relu_op, matmul = b.ops[x.op], b.ops[y.op]
    assert candidates(relu_op, 4) == [(4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1)]
    assert candidates(matmul, 2) == [(2, 1, 1), (1, 2, 1), (1, 1, 2)]


@given(st.data(), powers)
def test_a_contraction_costs_its_copied_inputs_and_summed_outputs(data, parts):
    program = data.draw(programs(parts=parts))
    for op in program.ops:
        for cut in candidates(op, parts)[:20]:
            assert contraction_cost(op, cut, parts) == naive_contraction_cost(op, cut, parts)


def test_the_cost_of_a_contraction_by_hand():
    program = chainmm(size=100)
    op = next(op for op in program.ops if op.name == "DE")
    # D: 10⁴ elements in 2·4 blocks, E: in 4·2, each block goes to 16 / 8 shards; the output in 4
    # blocks of 2500, of which 16 partials become 4.
    assert contraction_cost(op, (2, 2, 4), 16) == 10_000 * 2 + 10_000 * 2 + 2500 * 12


@st.composite
def point_sets(draw, shape):
    """Positions within each axis of a shape; 0 and the end may be among them or not."""
    return tuple(frozenset(draw(st.sets(st.integers(0, n), max_size=4))) for n in shape)


@given(
    st.data(),
    st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=3),
    st.sampled_from(["float32", "complex64"]),
)
def test_repartition_costs_are_those_of_the_formula_for_every_combination(data, shape, dtype):
    b = ProgramBuilder("one")
    op = b.ops[relu(b.input("x", shape, dtype=dtype)).op]
    pieces = data.draw(st.lists(cuts_of(op), min_size=1, max_size=4, unique=True))
    needs = data.draw(st.lists(st.lists(point_sets(shape), min_size=1, max_size=3), max_size=2))
    rest = data.draw(st.lists(point_sets(shape), max_size=2))
    costs = repartition_costs(op, pieces, needs, rest)
    assert costs.shape == (len(pieces), *map(len, needs))
    for index in np.ndindex(*costs.shape):
        chosen = [need[i] for need, i in zip(needs, index[1:], strict=True)]
        assert costs[index] == naive_repartition_cost(op, pieces[index[0]], [*chosen, *rest])


def test_a_repartition_by_hand():
    b = ProgramBuilder("one")
    op = b.ops[b.input("x", (8, 6)).op]
    rows = (frozenset({0, 2, 4, 6, 8}), frozenset({0, 6}))
    # Blocks of 4 × 3 become blocks of 2 × 6: 4 · 2 pieces of the finer cuts, 12 + 12 elements each.
    assert repartition_costs(op, [(2, 2), (4, 1)], [[rows]], []).tolist() == [[24 * 8], [0]]


@settings(max_examples=50)
@given(st.data(), st.sampled_from([2, 4]))
def test_names_change_neither_cuts_nor_costs(data, parts):
    program = data.draw(programs(parts=parts))
    names = data.draw(st.permutations([op.name for op in program.ops]))
    ops = tuple(replace(op, name=name) for op, name in zip(program.ops, names, strict=True))
    renamed = Program("another", ops, program.outputs)
    assert partition(renamed, parts) == partition(program, parts)
    graph, other = shard(program, parts), shard(renamed, parts)
    assert np.array_equal(graph.flops, other.flops)
    assert np.array_equal(graph.touched_bytes, other.touched_bytes)


@settings(max_examples=50)
@given(programs())
def test_one_part_cuts_nothing(program):
    for method in METHODS:
        cuts = partition(program, 1, method=method)
        assert cuts == [(1,) * len(op.join) for op in program.ops]


@settings(max_examples=50)
@given(st.data(), st.sampled_from([2, 4]))
def test_contractions_get_exactly_that_many_parts_and_nothing_more(data, parts):
    program = data.draw(programs(parts=parts))
    for op, cut in zip(program.ops, partition(program, parts), strict=True):
        assert np.prod(cut) == parts if op.is_contraction else np.prod(cut) <= parts


# Cuts by hand.


@pytest.mark.parametrize("method", METHODS)
def test_cuts_by_hand_are_kept(method):
    program = chainmm(size=24)
    by_hand = {"DE": (3, 2, 1), "A": (1, 8), "add": (1, 1)}
    cuts = partition(program, 4, method=method, partitions=by_hand)
    found = {op.name: cut for op, cut in zip(program.ops, cuts, strict=True)}
    assert {name: found[name] for name in by_hand} == by_hand


def test_a_list_is_as_good_as_a_tuple():
    program = chainmm(size=8)
    assert partition(program, 2, partitions={"DE": [1, 1, 2]})[5] == (1, 1, 2)


def test_what_is_around_a_cut_by_hand_adapts_to_it():
    b = ProgramBuilder("chain")
    program = b.build(relu(exp(relu(b.input("x", (8, 8))))))
    assert partition(program, 4) == [(4, 1)] * 4
    assert partition(program, 4, partitions={"exp": (1, 4)}) == [(1, 4)] * 4


# `even`.


def even(program: Program, parts: int) -> dict[str, tuple[int, ...]]:
    cuts = partition(program, parts, method="even")
    return {op.name: cut for op, cut in zip(program.ops, cuts, strict=True)}


def test_even_cuts_rows_and_inputs_as_they_are_read():
    assert even(chainmm(size=8), 4) == {
        "A": (4, 1),
        "B": (1, 1),
        "C": (4, 1),
        "D": (4, 1),
        "E": (1, 1),
        "DE": (4, 1, 1),
        "CDE": (4, 1, 1),
        "AB": (4, 1, 1),
        "add": (4, 1),
    }


def test_even_takes_the_first_axis_that_can_be_cut():
    b = ProgramBuilder("odd rows")
    program = b.build(relu(b.input("x", (5, 7)) @ b.input("w", (7, 6))))
    assert even(program, 3) == {"x": (1, 1), "w": (1, 3), "matmul": (1, 3, 1), "relu": (1, 3)}


def test_even_leaves_whole_what_cannot_be_cut():
    b = ProgramBuilder("odd")
    program = b.build(relu(b.input("x", (5, 7))).sum(1))
    assert even(program, 2) == {"x": (1, 1), "relu": (1, 1), "sum": (1, 1)}


def test_even_does_not_cut_an_input_of_which_a_part_is_read():
    b = ProgramBuilder("parts")
    x, y = b.input("x", (12, 8)), b.input("y", (4, 8))
    program = b.build(concat([x[2:6].named("part"), y], 0))
    assert even(program, 4) == {"x": (1, 1), "y": (1, 1), "part": (4, 1), "concat": (4, 1)}


def test_even_cuts_an_input_as_finely_as_any_reader():
    b = ProgramBuilder("two readers")
    x = b.input("x", (8, 8))
    program = b.build(relu(x) + relu(x.T).T)
    assert even(program, 4)["x"] == (4, 4)


# What cannot be.


def small() -> Program:
    b = ProgramBuilder("small")
    x = b.input("x", (6, 4))
    y = (x @ b.input("w", (4, 3))).named("product")
    pairs = to_complex(x, name="pairs")
    return b.build(relu(y), to_real(pairs, name="reals"))


BAD_CUTS = {
    "too short": ({"product": (2, 1)}, r"`product`: cut \(2, 1\) has 2 numbers for 3 axes"),
    "too long": ({"relu": (2, 1, 1)}, r"`relu`: cut \(2, 1, 1\) has 3 numbers for 2 axes"),
    "uneven": ({"product": (4, 1, 1)}, r"`product`: cut \(4, 1, 1\) does not divide .*\(6, 3, 4\)"),
    "an input": ({"x": (1, 3)}, r"`x`: cut \(1, 3\) does not divide its axes \(6, 4\) evenly"),
    "more than elements": ({"x": (12, 1)}, r"`x`: cut \(12, 1\) does not divide"),
    "zero": ({"relu": (0, 1)}, r"`relu`: cut \(0, 1\) does not divide"),
    "negative": ({"relu": (-1, 1)}, r"`relu`: cut \(-1, 1\) does not divide"),
    "a fraction": ({"relu": (2.0, 1)}, r"`relu`: cut \(2.0, 1\) is not a whole number for each"),
    "a text": ({"relu": "21"}, r"`relu`: cut '21' is not .*\nhint: its join axes are \(6, 3\)"),
    "a number": ({"relu": 2}, r"`relu`: cut 2 is not a whole number for each axis"),
    "half a complex number": ({"reals": (1, 4)}, r"`reals`: cut \(1, 4\) does not divide"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("cuts", "message"), BAD_CUTS.values(), ids=BAD_CUTS)
def test_a_cut_by_hand_that_cannot_be_made_is_named(cuts, message, method):
    with pytest.raises(ShardingError, match=message):
        partition(small(), 1, method=method, partitions=cuts)


def test_a_cut_of_the_wrong_length_is_told_the_axes():
    with pytest.raises(ShardingError, match=r"hint: its join axes are \(6, 3, 4\): those of the"):
        partition(small(), 1, partitions={"product": (2, 1)})


def test_an_unknown_operation_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="no operation named `prodct`\nhint: did you mean"):
        partition(small(), 1, partitions={"prodct": (1, 1, 1)})


def test_an_unknown_method_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="no partition method named `papre`") as caught:
        partition(small(), 1, method="papre")
    assert caught.value.hint == "did you mean `paper`? known: even, paper"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [0, -4])
def test_there_must_be_a_part(parts, method):
    with pytest.raises(ShardingError, match=f"parts is {parts}, must be at least 1"):
        partition(small(), parts, method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [2.0, "2", None])
def test_parts_are_a_whole_number(parts, method):
    with pytest.raises(ShardingError, match=f"parts is {parts!r}, must be a whole number"):
        partition(small(), parts, method=method)


def test_numbers_may_be_those_of_numpy():
    program, two = chainmm(size=8), np.int64(2)
    cuts = partition(program, 2, partitions={"DE": (1, 1, 2)})
    assert partition(program, two, partitions={"DE": np.array([1, 1, 2])}) == cuts
    assert shard(program, two, preaggregate=two) == shard(program, 2, preaggregate=2)


@pytest.mark.parametrize("parts", [3, 6, 12])
def test_the_paper_partitioner_wants_a_power_of_two(parts):
    with pytest.raises(ShardingError, match=f"parts is {parts}; .*powers of two") as caught:
        partition(chainmm(size=24), parts)
    assert "`even`" in caught.value.hint


def test_a_contraction_that_cannot_be_cut_into_that_many_parts_is_named():
    with pytest.raises(ShardingError, match=r"`product`, .*\(6, 3, 4\), .* 16 even") as caught:
        partition(small(), 16)
    assert caught.value.hint.startswith("choose fewer parts")
    with pytest.raises(ShardingError, match=r"`product`: no axis .*\(6, 3\) .* 4 parts") as caught:
        partition(small(), 4, method="even")
    assert caught.value.hint == "choose a divisor of one of them"


def test_a_contraction_cut_by_hand_need_not_be_cuttable():
    assert partition(small(), 16, partitions={"product": (1, 1, 1)})[2] == (1, 1, 1)


@pytest.mark.parametrize("preaggregate", [1, -1, 2.5])
def test_partials_cannot_be_summed_in_groups_of_one(preaggregate):
    with pytest.raises(ShardingError, match=f"preaggregate is {preaggregate}, must be 0 or"):
        shard(small(), 1, preaggregate=preaggregate)
