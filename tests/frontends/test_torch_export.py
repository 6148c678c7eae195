"""Modules as graphs: what the engine computes under any assignment is what the module returns."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import doppler as dp
from doppler.engine.pieces import PIECE
from doppler.errors import ConfigError, GraphError, ModelError
from doppler.frontends.gallery import MODELS, Decoder, make_example
from doppler.graph.io import graph_from_json, graph_to_json
from doppler.graph.signatures import signatures


def random_assignment(graph, seed, devices=2):
    chosen = np.random.default_rng(seed).integers(0, devices, graph.num_vertices)
    return dp.Assignment(devices=np.where(graph.is_input, -1, chosen))


def eager(module, args, kwargs):
    """What a module returns, its buffers left as they were."""
    state = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        found = module(*args, **kwargs)
    after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(state[name])
    return found, after


def assert_same(found, expected):
    assert type(found) is type(expected)
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_equals_eager_bit_for_bit(name):
    module, args, kwargs = make_example(name)
    expected, after = eager(module, args, kwargs)
    model = dp.from_torch(module, args, kwargs)
    graph = model.graph
    assert all(graph.kernels[v].op == PIECE for v in graph.assigned.tolist())
    mode = "fixed" if len(name) % 2 else "dynamic"
    with dp.Engine("cpu2", "cpu", dp.EngineConfig(mode=mode)) as engine:
        inputs = model.inputs(*args, **kwargs)
        results = engine.execute(graph, random_assignment(graph, 0), inputs).outputs
        assert_same(model.outputs(results, inputs), expected)
    for buffer, value in module.named_buffers():
        assert torch.equal(value, after[buffer]), buffer


@pytest.mark.parametrize("coarsen", ["none", 1, 3])
def test_any_grain_equals_eager(coarsen):
    module, args, kwargs = make_example("decoder")
    model = dp.from_torch(module, args, kwargs, coarsen=coarsen)
    count = len(model.graph.assigned)
    assert count > 40 if coarsen == "none" else count == coarsen
    assignment = random_assignment(model.graph, 1)
    assert_same(model.run("cpu2", assignment, *args), eager(module, args, kwargs)[0])


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_arguments_are_in_place_where_the_machine_has_links_to_the_host(mode):
    module, args, kwargs = make_example("mixer")
    model = dp.from_torch(module, args, kwargs)
    topology = dp.Topology.preset("p100x4")
    assert topology.has_host_links
    with dp.Engine(topology, "cpu", dp.EngineConfig(mode=mode)) as engine:
        inputs = model.inputs(*args)
        assignment = random_assignment(model.graph, 3, devices=4)
        results = engine.execute(model.graph, assignment, inputs).outputs
    assert_same(model.outputs(results, inputs), eager(module, args, kwargs)[0])


def test_layers_that_are_alike_share_their_pieces():
    tokens = torch.zeros(1, 8, dtype=torch.long)
    three, five = (dp.from_torch(Decoder(n).eval(), (tokens,)).graph for n in (3, 5))
    assert len(five.assigned) - len(three.assigned) == 2 * 8
    assert set(signatures(three)) == set(signatures(five))


def test_costs_are_those_of_the_shapes():
    model = dp.from_torch(nn.Linear(32, 16), (torch.ones(8, 32),))
    graph = model.graph
    (v,) = graph.assigned.tolist()
    assert graph.flops[v] == 2 * 8 * 32 * 16
    assert graph.touched_bytes[v] == 4 * (8 * 32 + 32 * 16 + 16 + 8 * 16)
    assert graph.kinds[v] == "matmul"


def test_weights_stay_and_arguments_come():
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16))
    graph = dp.from_torch(module, (torch.ones(8, 32),), coarsen=1).graph
    kinds = dict(zip(graph.vertex_names, graph.input_kinds, strict=True))
    assert kinds.pop("input") == "streamed"
    assert sorted(kinds.values()) == ["", *["resident"] * 4]
    assert graph.temporary_bytes[graph.assigned].tolist() == [2 * 4 * 8 * 16]


def test_nothing_is_allocated_for_a_model_on_meta():
    with torch.device("meta"):
        module = Decoder(layers=2, width=4096, heads=32, groups=8).eval()
        tokens = torch.zeros(1, 512, dtype=torch.long)
    model = dp.from_torch(module, (tokens,))
    assert model.graph.flops.sum() > 1e10
    assignment = dp.place(model.graph, "p100x4", "critical-path")
    assert dp.simulate(model.graph, "p100x4", assignment).makespan_s > 0
    with pytest.raises(ModelError, match="meta"):
        model.inputs(tokens)


def test_a_graph_file_runs_without_the_module():
    module, args, kwargs = make_example("lstm")
    model = dp.from_torch(module, args, kwargs)
    again = graph_from_json(graph_to_json(model.graph))
    inputs = model.inputs(*args, **kwargs)
    found = dp.execute(again, "cpu2", random_assignment(again, 2), inputs=inputs)
    assert_same(model.outputs(found.outputs, inputs), eager(module, args, kwargs)[0])


class Odd(nn.Module):
    """Returns inputs, constants, weights, one tensor twice, and views."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, x, flag, *, y):
        z = x + y["a"]
        return {"z": (z, z.T), "x": x, "flag": flag, "again": z, "w": self.weight[1:], "n": None}


def test_odd_arguments_and_results():
    module, x, y = Odd(), torch.randn(4, 4), {"a": torch.randn(4)}
    model = dp.from_torch(module, (x, True), {"y": y})
    found = model.run("cpu2", random_assignment(model.graph, 0), x, True, y=y)
    assert_same(found, eager(module, (x, True), {"y": y})[0])
    with pytest.raises(ModelError, match="imported with True"):
        model.inputs(x, False, y=y)
    with pytest.raises(ModelError, match="structure"):
        model.inputs(x, True)
    with pytest.raises(ModelError, match="not a tensor"):
        model.inputs(1.0, True, y=y)
    assignment = random_assignment(model.graph, 0)
    with pytest.raises(GraphError, match="expected"):
        model.run("cpu2", assignment, torch.randn(5, 4), True, y=y)


def test_half_precision_needs_no_numpy():
    module = nn.Linear(4, 4).to(torch.bfloat16)
    x = torch.randn(2, 4, dtype=torch.bfloat16)
    model = dp.from_torch(module, (x,))
    assert model.run("cpu2", random_assignment(model.graph, 0), x).dtype == torch.bfloat16


class Counter(nn.Module):
    """Two buffers that are read before and after they are written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.linear, self.other = nn.Linear(3, 3), nn.Linear(2, 2)

    def forward(self, x):
        before = self.count[:2]
        y = self.linear(x + self.last)
        z = self.other(before) @ self.other(before + 1)
        self.count.add_(1)
        self.last.copy_(y)
        return before, self.count, y, z


def test_a_buffer_that_is_written_keeps_its_value_from_run_to_run():
    module, twin, x = Counter(), Counter(), torch.randn(3)
    twin.load_state_dict(module.state_dict())
    model = dp.from_torch(module, (x,))
    assert sorted(model.mutated) == ["count", "last"]
    with dp.Engine("cpu2", "cpu") as engine, torch.no_grad():
        for _ in range(3):
            inputs = model.inputs(x)
            found = engine.execute(model.graph, random_assignment(model.graph, 0), inputs)
            assert_same(model.outputs(found.outputs, inputs), twin(x))
    assert torch.equal(module.count, torch.full((3,), 3.0))


def test_tied_weights_are_one_input():
    module = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)).eval()
    module[1].weight = module[0].weight
    tokens = torch.arange(3)
    model = dp.from_torch(module, (tokens,))
    assert len(model.weights) == 1
    found = model.run("cpu2", random_assignment(model.graph, 0), tokens)
    assert_same(found, eager(module, (tokens,), {})[0])


def test_a_module_that_computes_nothing():
    model = dp.from_torch(nn.Identity(), (torch.ones(2),))
    assert not len(model.graph.assigned)
    assert model.run("cpu2", random_assignment(model.graph, 0), torch.ones(2)).tolist() == [1, 1]


class Choice(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class InPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout()), "random numbers"),
        (InPlace(), "in place"),
        (Branch(), "cannot trace"),
        (Choice(), "`cond`"),
    ],
    ids=["dropout in training", "an input that is changed", "a branch on values", "torch.cond"],
)
def test_what_cannot_be_imported_is_refused(module, says):
    with pytest.raises(ModelError, match=says):
        dp.from_torch(module, (torch.ones(2, 3),))


@pytest.mark.parametrize("coarsen", ["all", 0, True, 1.5])
def test_a_grain_that_is_none(coarsen):
    with pytest.raises(ConfigError, match="coarsen"):
        dp.from_torch(nn.Linear(3, 3), (torch.ones(2, 3),), coarsen=coarsen)


def test_dropout_in_evaluation_is_nothing():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    assert len(dp.from_torch(module, (torch.ones(2, 3),)).graph.assigned) == 1
