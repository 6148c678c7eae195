"""Ways to cut: what each cuts, and that the model computes the same."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

import doppler as dp
from doppler.errors import UnknownNameError
from doppler.frontends.fold import fold
from doppler.frontends.gallery import make_example
from doppler.frontends.lifting.cut_rules import METHODS, choose_cuts
from doppler.frontends.lifting.lift import lift
from doppler.frontends.nodes import VertexNames
from doppler.frontends.torch_export import exported, from_functional, make_functional

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def decoder():
    """A module, its arguments for one request, and its functional program."""
    module, (tokens,), _ = make_example("decoder")
    args = (tokens[:1],)
    return module, args, make_functional(exported(module, args))


def cuts_of(program, method, parts):
    """The cut of each operation, with its shape, by name."""
    folded = fold(program)
    lifted = lift(folded, list(program.graph.nodes), VertexNames(folded.names.values()))
    cuts = choose_cuts(method)(lifted, parts)
    return {op.name: (op.join, cut) for op, cut in zip(lifted.program.ops, cuts, strict=True)}


def near_eager(model, topology, assignment, decoder):
    module, args, _ = decoder
    with torch.no_grad():
        expected = module(*args)
    found = model.run(topology, assignment, *args)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_cut_computes_the_same(decoder, method):
    model = from_functional(decoder[2], parts=2, method=method)
    graph = model.graph
    devices = np.random.default_rng(0).integers(0, 2, graph.num_vertices)
    near_eager(model, "cpu2", dp.Assignment(np.where(graph.is_input, -1, devices)), decoder)


def test_all_is_cut_along_the_tokens(decoder):
    cuts = cuts_of(decoder[2], "tokens", 4)
    for name in ("layers.0.q", "layers.0.before", "layers.0.o", "layers.0.down", "head"):
        join, cut = cuts[name]
        assert (join[0], cut) == (16, (4, *(1 for _ in join[1:])))
    join, cut = cuts["layers.0.scaled_dot_product_attention"]
    assert (join[:2], cut[:2], max(cut[2:])) == ((2, 2), (2, 2), 1)  # causal: by heads


def test_products_are_cut_by_columns_and_then_by_rows(decoder):
    cuts = cuts_of(decoder[2], "columns", 2)
    assert cuts["layers.0.q"][1][0] == 1  # tokens stay together
    for name in ("layers.0.q", "layers.0.gate", "layers.0.up", "head"):
        cut = cuts[name][1]
        assert cut[-1] == 1  # the summed axis
        assert sorted(cut, reverse=True)[:2] == [2, 1]
    for name in ("layers.0.o", "layers.0.down"):
        cut = cuts[name][1]
        assert cut[0] == 2  # tokens, so that sums are where they are read
        assert 2 in cut[2:]
    assert cuts["layers.0.before"][1][0] == 2


def test_tensor_parallelism_runs_and_uses_all_devices(decoder, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    splits = importlib.import_module("model_splits")
    for by_tokens in (True, False):
        model, assignment = splits.tensor_parallel(decoder[2], 2, by_tokens=by_tokens)
        graph = model.graph
        near_eager(model, "cpu2", assignment, decoder)
        work = np.bincount(assignment.devices[graph.assigned], graph.flops[graph.assigned], 2)
        assert work.max() < 1.01 * work.min()


def test_an_unknown_way_to_cut(decoder):
    module, args, _ = decoder
    with pytest.raises(UnknownNameError, match="way to cut a model named `token`"):
        dp.from_torch(module, args, parts=2, method="token")
    with pytest.raises(UnknownNameError):
        dp.CompileConfig(method="token")
