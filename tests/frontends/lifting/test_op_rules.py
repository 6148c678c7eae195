"""Rules: the axes that operations can be cut along are those of DTensor, on all that both know."""

import pytest
import torch
from torch.fx import Graph

from doppler.frontends.lifting.op_rules import rule_of
from doppler.frontends.nodes import tensor_leaves

aten = torch.ops.aten


def floats(*shape):
    return torch.empty(shape, device="meta")


def positions(*shape):
    return torch.empty(shape, device="meta", dtype=torch.long)


CASES = [
    (aten.mm.default, floats(4, 6), floats(6, 8)),
    (aten.bmm.default, floats(2, 4, 6), floats(2, 6, 8)),
    (aten.addmm.default, floats(8), floats(4, 6), floats(6, 8)),
    (aten.addmm.default, floats(4, 8), floats(4, 6), floats(6, 8)),
    (aten.baddbmm.default, floats(2, 4, 8), floats(2, 4, 6), floats(2, 6, 8)),
    (aten.embedding.default, floats(10, 8), positions(2, 4)),
    (aten.index_select.default, floats(4, 6, 8), 1, positions(3)),
    (aten.index.Tensor, floats(4, 6, 8), [None, positions(2, 3)]),
    (aten.gather.default, floats(4, 6), 1, positions(4, 3)),
    (aten._softmax.default, floats(4, 6), -1, False),
    (aten._log_softmax.default, floats(4, 6), 0, False),
    *(
        (op, floats(4, 6, 8), *more)
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
        for more in (([1],), ([-1], True), ([0, 2],))
    ),
    *((op, floats(4, 6)) for op in (aten.sum.default, aten.mean.default, aten.max.default)),
    *((op, floats(4, 6)) for op in (aten.prod.default, aten.any.default, aten.all.default)),
    *((op, floats(4, 6), 1) for op in (aten.prod.dim_int, aten.any.dim, aten.all.dim)),
    *((op, floats(4, 6), 1) for op in (aten.argmax.default, aten.argmin.default)),
    *((op, floats(4, 6), [1]) for op in (aten.var.correction, aten.std.correction)),
    (aten.logsumexp.default, floats(4, 6), [1]),
    (aten.cat.default, [floats(4, 6), floats(4, 8)], 1),
    (aten.cumsum.default, floats(4, 6), 1),
    (aten.cumprod.default, floats(4, 6), 0),
    (aten.slice.Tensor, floats(4, 6), 1, 0, 4),
    (aten.flip.default, floats(4, 6), [1]),
    (aten.roll.default, floats(4, 6), [1], [1]),
    (aten.constant_pad_nd.default, floats(4, 6), [1, 1]),
    (aten._to_copy.default, floats(4, 6)),
    (aten.where.self, positions(4, 6) > 0, floats(4, 6), floats(6)),
    (aten.zeros_like.default, floats(4, 6)),
    (aten.full_like.default, floats(4, 6), 1.0),
]


@pytest.fixture(scope="module")
def oracle():
    """DTensor's rules, with a mesh of two devices that are not there."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield Oracle(distributed.DeviceMesh("cpu", [0, 1]))
    torch.distributed.destroy_process_group()


class Oracle:
    """What DTensor allows of one operation: a placement for the result and every operand."""

    def __init__(self, mesh):
        from torch.distributed.tensor import DTensor

        self.mesh = mesh
        propagator = DTensor._op_dispatcher.sharding_propagator
        self.single, self.full = (
            propagator.op_single_dim_strategy_funcs,
            propagator.op_strategy_funcs,
        )

    def rules(self, op, args):
        if op in self.single:
            return self.single[op](op, tuple(_mapped(a, self.meta) for a in args), {})
        from torch.distributed.tensor._op_schema import OpSchema

        schema = OpSchema(op, tuple(self.choices(a) for a in args), {})
        return [
            [spec.output_spec.placements[0], *(i.placements[0] for i in spec.input_specs)]
            for spec in self.full[op](schema).strategies
        ]

    def choices(self, value):
        """Every placement of a tensor, for rules that follow those of their operands."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec
        from torch.distributed.tensor._op_schema import OpSpec, OpStrategy, TupleStrategy

        def strategy(x):
            placements = [Replicate(), *map(Shard, range(x.dim()))]
            specs = [DTensorSpec(self.mesh, (p,), self.meta(x)) for p in placements]
            return OpStrategy([OpSpec(spec) for spec in specs])

        if isinstance(value, list) and any(isinstance(x, torch.Tensor) for x in value):
            return TupleStrategy([strategy(x) for x in value])
        return _mapped(value, strategy)

    @staticmethod
    def meta(x):
        from torch.distributed.tensor._dtensor_spec import TensorMeta

        return TensorMeta(x.shape, x.stride(), x.dtype)


def _mapped(value, of):
    if isinstance(value, torch.Tensor):
        return of(value)
    return [_mapped(each, of) for each in value] if isinstance(value, list) else value


def make_node(op, args, **kwargs):
    """A call on tensors of which only the shapes are known."""
    graph = Graph()

    def put(x):
        node = graph.placeholder("x")
        node.meta["val"] = x
        return node

    node = graph.call_function(op, tuple(_mapped(a, put) for a in args), kwargs)
    node.meta["val"] = op(*args, **kwargs)
    return node


def our_placements(node):
    """For every axis that can be cut: the dimension of the result and of each operand.

    `R` where a tensor lacks the axis, `P` where the result is partial, and where an operand is
    added to one partial result only, as if it were zero for the others.
    """
    rule = rule_of(node)
    found = set()
    for axis in rule.sizes.keys() - rule.whole:
        at = [
            next((d for d, names in enumerate(dims) if axis in names), "R")
            for dims in (rule.output, *rule.operands)
        ]
        if at[0] == "R":
            once = rule.rest and len(rule.operands) - len(rule.rest[1])
            at = ["P", *(["P"] if once else []), *at[1 + bool(once) :]]
        found.add(tuple(at))
    return found


def their_placements(rules, shapes):
    """Those of DTensor that shard an operand, along more than one element."""
    found = set()
    for rule in rules:
        at = [_short(placement) for placement in rule]
        pairs = list(zip(at, shapes, strict=True))
        if "masked" in at or not any(isinstance(d, int) for d in at[1:]):
            continue
        if any(isinstance(d, int) and shape[d] == 1 for d, shape in pairs):
            continue
        found.add(tuple(d % len(shape) if isinstance(d, int) else d for d, shape in pairs))
    return found


def _short(placement):
    kind = type(placement).__name__
    if kind in ("_ShardingPlaceholder", "Shard"):
        return placement.dim
    return {"Replicate": "R", "Partial": "P"}.get(kind, "masked")


def _shapes(node):
    return [n.meta["val"].shape for n in (node, *tensor_leaves(node))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_axes_are_those_of_dtensor(oracle, case):
    op, *args = case
    node = make_node(op, args)
    assert our_placements(node) == their_placements(oracle.rules(op, args), _shapes(node))


def test_axes_of_all_pointwise_operations_are_those_of_dtensor(oracle):
    compared = 0
    for op in oracle.single:
        if torch.Tag.pointwise not in op.tags or op._schema.is_mutable or op.namespace != "aten":
            continue
        shapes, args = [(4, 6, 8), (6, 1), (8,)], []
        for parameter in op._schema.arguments:
            if str(parameter.type) == "Tensor":
                args.append(floats(*shapes.pop(0)))
            elif not parameter.has_default_value():
                args.append(1.0)
        try:
            node = make_node(op, args)
        except Exception:  # its arguments are of other kinds
            continue
        if isinstance(node.meta["val"], torch.Tensor):
            assert our_placements(node) == their_placements(oracle.rules(op, args), _shapes(node))
            compared += 1
    assert compared > 150


def test_grouped_heads_are_an_axis_of_their_own():
    q, k = floats(2, 8, 16, 4), floats(2, 2, 16, 4)
    node = make_node(aten.scaled_dot_product_attention.default, (q, k, k), enable_gqa=True)
    rule = rule_of(node)
    assert rule.output[1] == ("b", "g")
    assert (rule.sizes["b"], rule.sizes["g"]) == (2, 4)
    assert rule.whole == {"s", "e"}


def test_what_has_no_rule_stays_whole():
    assert rule_of(make_node(aten.sort.default, (floats(4, 6),))) is None
    assert rule_of(make_node(aten.relu.default, (floats(0, 6),))) is None
    assert rule_of(make_node(aten.roll.default, (floats(4, 6), [1]))) is None
