"""Compiled modules: the module's own results, by a plan or, where none pays, by the module."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import doppler as dp
from doppler.errors import (
    ConfigError,
    DopplerError,
    EngineError,
    ModelError,
    ShardingError,
    WrongTypeError,
)
from doppler.frontends.compilation.compiled_plans import best_parts
from doppler.frontends.gallery import make_example
from doppler.frontends.torch_export import exported, make_functional

QUICK = dp.CompileConfig(placer="heft", budget_s=None)


@pytest.fixture
def compiled():
    """Compiles modules that are closed at the end."""
    made = []

    def make(module, *args, **options):
        options = {"topology": "cpu2", "config": QUICK, "force": True} | options
        made.append(dp.compile(module, *args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("name", ["decoder", "lstm", "dlrm"])
def test_a_compiled_module_returns_what_the_module_does(compiled, name):
    module, args, kwargs = make_example(name)
    fast = compiled(module, args, kwargs)
    with torch.no_grad():
        for _ in range(2):
            found, expected = fast(*args, **kwargs), module(*args, **kwargs)
            assert type(found) is type(expected)
            pairs = zip(torch.utils._pytree.tree_leaves(found),
                        torch.utils._pytree.tree_leaves(expected), strict=True)  # fmt: skip
            assert all(torch.equal(a, b) for a, b in pairs)


def test_a_plan_explains_itself_and_can_be_traced(compiled):
    module, args, _ = make_example("decoder")
    fast = compiled(module, args)
    assert "has" not in fast.explain()
    fast(*args)
    plan = fast.plan
    assert plan.predicted_s <= plan.single_s
    assert 0 <= plan.gain < 1
    text = fast.explain()
    assert f"{len(plan.graph.assigned)} pieces on 2 devices" in text
    assert "cpu1" in text or "core1" in text
    assert int((~fast.trace().is_transfer).sum()) == len(plan.graph.assigned)


def test_a_plan_tells_of_each_piece_and_has_a_report(compiled, tmp_path):
    module, args, _ = make_example("mlp")
    fast = compiled(module, args)
    lines = fast.explain(pieces=True).splitlines()
    assert sum("; otherwise " in line for line in lines) == len(fast.plan.graph.assigned)
    fast(*args)
    fast.report(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "doppler-report" in page
    same = compiled(module, args, force=False)
    with pytest.raises(EngineError, match="no plan to report on: a plan would save"):
        same.report(tmp_path / "y.html")


def test_other_shapes_are_compiled_when_they_come(compiled):
    module = nn.Linear(4, 4).eval()
    fast = compiled(module, (torch.ones(2, 4),), config=dp.CompileConfig(
        placer="heft", budget_s=None, max_shapes=2))  # fmt: skip
    graphs = []
    for rows in (2, 3, 2, 5):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            assert torch.equal(fast(x), module(x))
        graphs.append(fast.plan and fast.plan.graph)
    assert graphs[0] is graphs[2] is not graphs[1]
    assert graphs[3] is None
    assert "2 sets of shapes" in fast.explain()


def test_where_a_plan_would_not_pay_the_module_runs(compiled):
    module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    same = compiled(module, (x,), force=False)
    assert same.plan is None
    assert "less than 5 %" in same.explain()
    assert torch.equal(same(x), module(x))
    with pytest.raises(EngineError, match="no plan"):
        same.trace()


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_exported_runs_as_it_is(compiled, caplog):
    same = compiled(Branch().eval(), (torch.ones(2),))
    assert torch.equal(same(-torch.ones(2)), torch.ones(2))
    assert "cannot trace" in same.explain()
    assert "cannot trace" in caplog.text


def test_training_and_gradients_are_the_modules(compiled):
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    fast = compiled(module, (x,))
    assert fast(x).requires_grad
    assert "training" in fast.explain()
    module.eval()
    x.requires_grad_()
    assert fast(x).requires_grad
    assert "gradient" in fast.explain()
    with torch.no_grad():
        assert not fast(x).requires_grad
    assert fast.plan is not None


@pytest.mark.parametrize("parts", [2, "auto"])
def test_a_module_in_parts_returns_what_the_module_does(compiled, parts):
    module, args, _ = make_example("mixer")
    fast = compiled(module, args, parts=parts)
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), module(*args), rtol=1e-5, atol=1e-6)


def test_parts_are_chosen_by_what_is_predicted():
    module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(2))).eval()
    program = make_functional(exported(module, (torch.ones(2048, 2048),)))
    topology, config = dp.Topology.preset("p100x4"), dp.CompileConfig(placer="heft", budget_s=None)
    plans = {}
    for parts in (None, 2, 4, "auto"):
        _, plans[parts] = best_parts(program, topology, replace(config, parts=parts), "chain")
    fastest = min((None, 2, 4), key=lambda parts: plans[parts].predicted_s)
    assert fastest is not None
    assert plans["auto"].predicted_s == plans[fastest].predicted_s
    assert plans["auto"].single_s == min(plans[parts].single_s for parts in (None, 2, 4))
    with pytest.raises(ShardingError):
        dp.CompileConfig(parts=3)
    searched = dp.CompileConfig(placer="annealing", parts="auto", budget_s=0.2)
    _, plan = best_parts(program, topology, searched, "chain")
    assert plan.predicted_s < plan.single_s == plans["auto"].single_s


def test_a_weight_that_fits_no_device_is_placed_in_parts():
    program = make_functional(exported(nn.Linear(1024, 1024, bias=False), (torch.ones(64, 1024),)))
    roomy = dp.Topology.preset("p100x4")
    tight = replace(roomy, devices=tuple(replace(d, memory_bytes=3e6) for d in roomy.devices))
    config = dp.CompileConfig(placer="m-etf", budget_s=None)
    with pytest.raises(DopplerError):
        best_parts(program, tight, config, "linear")
    model, plan = best_parts(program, tight, replace(config, parts="auto"), "linear")
    assert model.lifting.parts > 1
    assert max(load.peak_bytes for load in plan.loads) <= 3e6


def test_constants_are_guarded(compiled):
    class Scaled(nn.Module):
        def forward(self, x, by, *, words=("a",)):
            return x * by, words

    fast, x = compiled(Scaled().eval(), (torch.ones(2), 2)), torch.ones(2)
    assert fast(x, 2)[0].tolist() == [2, 2]
    assert fast(x, 3, words=("b",)) == (pytest.approx(torch.full((2,), 3.0)), ("b",))


def test_weights_that_change_are_seen(compiled):
    module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast = compiled(module, (x,))
    with torch.no_grad():
        module.weight.mul_(2)
        assert torch.equal(fast(x), module(x))


class Folded(nn.Module):
    """A product with weights that is computed ahead."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x @ (self.weight * 2)


def test_what_was_computed_ahead_is_computed_again(compiled):
    module, x = Folded().eval(), torch.ones(2, 4)
    fast = compiled(module, (x,))
    with torch.no_grad():
        assert torch.equal(fast(x), module(x))
        module.weight.add_(1)
        assert torch.equal(fast(x), module(x))
    assert fast.plan is not None


def test_other_parameters_parts_and_dtypes_are_compiled_again(compiled):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), torch.ones(2, 4)
    fast = compiled(module, (x,))
    with torch.no_grad():
        module[0].weight = nn.Parameter(torch.zeros(4, 4))
        assert torch.equal(fast(x), module(x))
        module[0] = nn.Linear(4, 3).eval()
        assert torch.equal(fast(x), module(x))
        module.double()
        assert torch.equal(fast(x.double()), module(x.double()))
        assert fast.plan is not None
        module[0].weight.data = torch.ones(3, 4, dtype=torch.float64)  # no version counts that
        assert torch.equal(fast(x.double()), module(x.double()))
        module[1].train()
        fast(x.double())
        assert "random" in fast.explain()


def test_a_module_without_values_has_a_plan_and_cannot_be_called(compiled):
    with torch.device("meta"):
        module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast = compiled(module, (x,))
    assert fast.plan is not None
    with pytest.raises(ModelError, match="has no values"):
        fast(x)


def test_keywords_may_come_in_any_order(compiled):
    class Difference(nn.Module):
        def forward(self, a, b):
            return a - b

    a, b = torch.ones(2), torch.zeros(2)
    fast = compiled(Difference().eval(), (), {"b": b, "a": a})
    assert fast(b=b, a=a).tolist() == fast(a=a, b=b).tolist() == [1, 1]
    assert fast.plan is not None


def test_a_module_that_changes_too_often_runs_as_it_is(compiled):
    module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    config = dp.CompileConfig(placer="heft", budget_s=None, max_shapes=1)
    fast = compiled(module, (x,), config=config)
    with torch.no_grad():
        for _ in range(2):
            module.weight = nn.Parameter(torch.randn(4, 4))
            assert torch.equal(fast(x), module(x))
    assert "changed 1 times" in fast.explain()


def test_under_autocast_the_module_runs(compiled):
    module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast = compiled(module, (x,))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype == torch.bfloat16
    assert "autocast" in fast.explain()


def test_a_cache_in_buffers_advances_as_the_modules(compiled):
    module, (x, _), _ = make_example("kv-cache")
    twin, _, _ = make_example("kv-cache")
    fast = compiled(module, (x, torch.tensor([0])))
    with torch.no_grad():
        for step in range(3):
            position = torch.tensor([step])
            assert torch.equal(fast(x + step, position), twin(x + step, position))
            fast.trace()
    assert torch.equal(module.keys, twin.keys)


def memories(*sizes):
    """Two CPU devices with that much memory each."""
    topology = dp.Topology.preset("cpu2")
    pairs = zip(topology.devices, sizes, strict=True)
    return replace(topology, devices=tuple(replace(d, memory_bytes=m) for d, m in pairs))


def test_a_model_that_no_device_can_hold_is_placed_within_limits_or_refused(compiled, caplog):
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).eval()
    x, weights = torch.ones(2, 64), 8 * (64 * 64 + 64) * 4
    config = dp.CompileConfig(budget_s=0.3)
    fast = compiled(module, (x,), topology=memories(0.7 * weights, 0.7 * weights), config=config)
    with torch.no_grad():
        assert torch.equal(fast(x), module(x))
    assert fast.plan is not None
    assert all(load.operations and load.peak_bytes <= 0.7 * weights for load in fast.plan.loads)
    assert "no device has the memory" in fast.explain()
    refused = compiled(module, (x,), topology=memories(0.3 * weights, 0.3 * weights), config=config)
    assert refused.plan is None
    assert "memory" in refused.explain()
    assert "memory" in caplog.text
    with torch.no_grad():
        assert torch.equal(refused(x), module(x))  # as it is, on its own device


def test_mistakes():
    with pytest.raises(WrongTypeError, match="module"):
        dp.compile(3)
    with pytest.raises(ConfigError, match="min_gain"):
        dp.CompileConfig(min_gain=1.5)
    with pytest.raises(ConfigError, match="max_shapes"):
        dp.CompileConfig(max_shapes=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("parts", [None, 4])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_gpu_partitions_run_a_compiled_module(compiled, where, parts):
    topology = dp.Topology.uniform(4, flops_per_s=1e6, bandwidth_bytes_per_s=1e11)
    addresses = [f"cuda:0/{i}of4" for i in range(4)]
    devices = [replace(d, address=a) for d, a in zip(topology.devices, addresses, strict=True)]
    topology = replace(topology, devices=tuple(devices))
    module, args, _ = make_example("decoder")
    module, args = module.to(where), tuple(x.to(where) for x in args)
    fast = compiled(module, args, topology=topology, parts=parts)
    with torch.no_grad():
        for tokens in (args[0], args[0].flip(1)):
            found = fast(tokens)
            assert found.device.type == where
            torch.testing.assert_close(found, module(tokens), rtol=1e-5, atol=1e-5)


def test_arguments_of_other_kinds_are_named() -> None:
    module, x = torch.nn.Linear(4, 2).eval(), torch.ones(3, 4)
    with pytest.raises(WrongTypeError, match="example_inputs"):
        dp.compile(module, x, topology="cpu2")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="example_kwargs"):
        dp.compile(module, (x,), "cpu2")  # type: ignore[arg-type]
