"""Sharded models: what the shards compute, put together, is what the module returns."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import doppler as dp
from doppler.engine.pieces import PIECE
from doppler.errors import ShardingError
from doppler.frontends.gallery import MODELS, make_example
from doppler.frontends.torch_export import exported, from_functional, make_functional
from doppler.graph.io import graph_from_json, graph_to_json

NEAR = 1e-5  # largest error, relative to the largest value


class Wrapped(nn.Module):
    """A function as a module with a weight."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(shape, generator=generator))

    def forward(self, *args):
        return self.function(self.weight, *args)


@pytest.fixture(scope="module")
def decoder():
    """A module, its arguments, and its functional program."""
    module, args, _ = make_example("decoder")
    return module, args, make_functional(exported(module, args))


def random_assignment(graph, seed, devices=2):
    chosen = np.random.default_rng(seed).integers(0, devices, graph.num_vertices)
    return dp.Assignment(devices=np.where(graph.is_input, -1, chosen))


def assert_near(found, expected):
    for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = a.detach(), b.detach()
        if b.dtype.is_floating_point:
            near = 2e-2 if b.dtype == torch.bfloat16 else NEAR
            scale = b.double().abs().max().clamp_min(1e-30)
            assert float((a.double() - b.double()).abs().max() / scale) <= near
        else:
            assert torch.equal(a, b)


def check(module, args, kwargs=None, parts=(2, 4)):
    """Run a module in parts under random assignments; returns the models."""
    kwargs, models = kwargs or {}, []
    state = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        expected = module(*args, **kwargs)
    after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    program = make_functional(exported(module, args, kwargs))
    for count in parts:
        for name, buffer in module.named_buffers():
            buffer.copy_(state[name])
        models.append(from_functional(program, parts=count))
        assignment = random_assignment(models[-1].graph, count)
        assert_near(models[-1].run("cpu2", assignment, *args, **kwargs), expected)
        for name, buffer in module.named_buffers():
            assert torch.equal(buffer, after[name]), name
    return models


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_in_parts_is_near_eager(name):
    for model in check(*make_example(name)):
        graph, lifting = model.graph, model.lifting
        assert all(graph.kernels[v].op == PIECE for v in graph.assigned.tolist())
        assert 0 <= lifting.cut_flops <= lifting.lifted_flops <= lifting.flops
        assert {graph.roles[v] for v in graph.assigned.tolist()} <= {"shard", "reduce"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_transformers_in_parts_are_near_eager(name):
    pytest.importorskip("transformers")
    for model in check(*make_example(name)):
        assert model.lifting.lifted_share == model.lifting.cut_share == 1
        assert model.lifting.left_whole == {}


def test_heads_are_cut_where_views_show_them(decoder):
    model = from_functional(decoder[2], parts=2)
    names = [n for n in model.graph.vertex_names if n.startswith("layers.0.scaled_dot")]
    assert len(names) == 2
    weights = [
        graph_kernel.attributes["block"]
        for v, graph_kernel in enumerate(model.graph.kernels)
        if model.graph.meta_ops[v] == "layers.0.q.weight" and model.graph.is_input[v]
    ]
    assert all(high - low <= 64 for block in weights for low, high in block)


def test_a_shard_and_what_reduces_it_are_one_meta_op():
    module = Wrapped(lambda w, x: (x @ w).relu(), 64, 4)
    (model,) = check(module, (torch.randn(2, 64),), parts=(4,))
    graph = model.graph
    rows = sorted((graph.roles[v], graph.kinds[v]) for v in graph.assigned.tolist())
    assert rows.count(("shard", "matmul")) == 4
    assert ("reduce", "formation") in rows
    bound = dp.place(graph, "p100x4", "enumerative")
    assert len(set(bound.devices[graph.assigned].tolist())) > 1


def test_partial_results_are_no_results():
    (model,) = check(Wrapped(lambda w, x: x @ w, 64, 4), (torch.randn(2, 64),), parts=(4,))
    kernels = [model.graph.kernels[v] for v in model.graph.assigned.tolist()]
    named = [name for kernel in kernels for name in kernel.result_names() if name]
    assert len(named) == len({id(k) for k in kernels if any(k.result_names())})
    roles = [model.graph.roles[v] for v in model.graph.assigned.tolist()]
    assert len(named) == roles.count("reduce") > 0


def rotate(w, x):
    first, second = (x @ w).unflatten(-1, (4, 8)).transpose(0, 1).chunk(2, -1)
    return torch.cat([-second, first], -1).flatten(1)


FUNCTIONS = {
    "rotate": (rotate, (16, 32), (8, 16)),
    "norms": (
        lambda w, x: (
            functional.layer_norm(x @ w, (16,), w[0], w[1])
            + functional.rms_norm(x @ w, (16,), w[2])
        ),
        (16, 16),
        (8, 16),
    ),
    "softmax": (lambda w, x: (x @ w).softmax(0).log_softmax(-1), (16, 16), (8, 16)),
    "reductions": (
        lambda w, x: (x.amax(0), x.sum(), (x @ w).mean((0, 1)), x.var(1), x.argmax(1), x.prod(0)),
        (16, 16),
        (8, 16),
    ),
    "logic": (
        lambda w, x: (torch.where(x @ w > 0, x.sin(), x.cos() ** 2), (x > 0).any(0), (x < 9).all()),
        (16, 16),
        (8, 16),
    ),
    "matmul": (
        lambda w, x: (torch.matmul(x[:, None], w), x[0, 0] @ w[0], w[0] @ x[0, 0]),
        (4, 8, 8),
        (2, 8, 8),
    ),
    "einsum": (lambda w, x: torch.einsum("bij,kj->bik", x, w), (4, 8), (2, 4, 8)),
    "bias": (
        lambda w, x: functional.linear(x, w, w[:, 0]) + torch.addmm(w[0], x, w.T),
        (32, 32),
        (4, 32),
    ),
    "attention": (
        lambda w, x: functional.scaled_dot_product_attention(
            x @ w, x[:, :2], x[:, :2], enable_gqa=True, scale=0.5
        ),
        (8, 8),
        (2, 4, 8, 8),
    ),
    "masked": (
        lambda w, x: functional.scaled_dot_product_attention(x, x, x, attn_mask=w.tril() > -1),
        (8, 8),
        (2, 4, 8, 8),
    ),
    "indices": (
        lambda w, x: (
            w[(x[0] > 0).long()],
            x.gather(1, (x[:, :4] > 0).long()),
            x.index_select(0, (x[0, :3] > 0).long()),
        ),
        (4, 8),
        (4, 8),
    ),
    "shapes": (
        lambda w, x: (x.T, x[2], x[:, 1:4], x[None].expand(3, 4, 8) * w, x.repeat(2, 1), w.T),
        (4, 8),
        (4, 8),
    ),
    "twice": (lambda w, x: (lambda y: (y, y.flatten(), {"same": y}))(x @ w), (8, 8), (4, 8)),
    "convolution": (
        lambda w, x: functional.max_pool2d(functional.conv2d(x, w, w[:, 0, 0, 0], 1, 1), 2),
        (8, 8, 3, 3),
        (2, 8, 8, 8),
    ),
    "casts": (lambda w, x: (x.bfloat16() @ w.bfloat16(), (x > 0).long().cumsum(1)), (8, 8), (4, 8)),
    "qkv": (
        lambda w, x: (lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v)(
            *(t.unflatten(-1, (4, 4)).transpose(1, 2) for t in (x @ w).split(16, -1))
        ),
        (16, 48),
        (2, 8, 16),
    ),
    "odd": (lambda w, x: functional.linear(x, w, w[:, 0]) * w[0, 0], (9, 7), (3, 5, 7)),
    "empty": (lambda w, x: torch.cat([x @ w, x[:, 8:]], 1), (8, 8), (4, 8)),
    "whole": (lambda w, x: (x @ w).sort(-1)[0] + x.flatten().roll(1).view(4, 8), (8, 8), (4, 8)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_in_parts_are_near_eager(name):
    function, weight, shape = FUNCTIONS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    models = check(Wrapped(function, *weight).eval(), (x,))
    if name == "whole":
        assert models[0].lifting.left_whole == {"sort": 1, "roll": 1}


@pytest.mark.parametrize("coarsen", ["none", 3])
def test_any_grain_is_near_eager(decoder, coarsen):
    module, args, program = decoder
    with torch.no_grad():
        expected = module(*args)
    model = from_functional(program, parts=2, coarsen=coarsen)
    count = len(model.graph.assigned)
    assert count > 80 if coarsen == "none" else count == coarsen
    assert_near(model.run("cpu2", random_assignment(model.graph, 0), *args), expected)


def test_the_graph_is_the_same_each_time_and_in_a_file(decoder):
    graph = from_functional(decoder[2], parts=2).graph
    again = from_functional(decoder[2], parts=2).graph
    assert graph.digest() == again.digest()
    assert graph_from_json(graph_to_json(graph)).digest() == graph.digest()


def test_one_part_is_the_graph_of_pieces():
    module, args, kwargs = make_example("mlp")
    whole = dp.from_torch(module, args, kwargs)
    assert dp.from_torch(module, args, kwargs, parts=1).graph.digest() == whole.graph.digest()
    assert whole.lifting is None


def test_flops_of_shards_are_those_of_the_model(decoder):
    whole = from_functional(decoder[2]).graph
    shards = from_functional(decoder[2], parts=4).graph
    heavy = [v for v in shards.assigned.tolist() if shards.kinds[v] == "matmul"]
    assert shards.flops[heavy].sum() == pytest.approx(
        sum(whole.flops[v] for v in whole.assigned.tolist() if whole.kinds[v] == "matmul"), rel=0.01
    )


def test_weights_on_the_meta_device_are_blocks_where_they_are_read():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU())
        x = torch.empty(64, 1024)
    graph = dp.from_torch(module, (x,), parts=4).graph
    held = [v for v in range(graph.num_vertices) if graph.input_kinds[v] == "resident"]
    assert len(held) == 4
    assert graph.tensor_bytes[np.isin(graph.tensor_producer, held)].sum() == 4 * 1024 * 1024


def test_inputs_that_have_not_changed_stay_where_they_are():
    module = Wrapped(lambda w, x: x @ w, 16, 16)
    x = torch.randn(8, 16)
    model = dp.from_torch(module, (x,), parts=4)
    assignment = random_assignment(model.graph, 0)
    with dp.Engine("cpu2", "cpu") as engine, torch.no_grad():
        first = engine.compute(model.graph, assignment, model.inputs(x))
        module.weight.mul_(2)
        second = engine.compute(model.graph, assignment, model.inputs(x))
        for found, scale in ((first, 1), (second, 2)):
            result = model.outputs(found, model.inputs(x))
            assert_near(result * (2 / scale), module(x))


@pytest.mark.parametrize("parts", [0, 3, -2, 1 << 20, 2.0, True])
def test_parts_that_are_no_power_of_two_are_refused(parts):
    with pytest.raises(ShardingError, match="parts is"):
        dp.from_torch(nn.Linear(2, 2), (torch.ones(1, 2),), parts=parts)
