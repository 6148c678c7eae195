"""torch.compile with the backend doppler: what the module returns, by a plan or without."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from doppler.errors import ConfigError
from doppler.frontends.compilation import dynamo
from doppler.frontends.compiled import CompiledModule

OPTIONS = {"topology": "cpu2", "placer": "heft", "budget_s": None, "force": True}


@pytest.fixture
def parts(monkeypatch):
    """The parts that Dynamo hands over."""
    made = []

    def backend(graph, example_inputs, *, options=None):
        made.append(dynamo.backend(graph, example_inputs, options=options))
        return made[-1]

    torch._dynamo.reset()
    yield backend, made
    torch._dynamo.reset()
    for part in made:
        for each in part._found.values():
            if isinstance(each, CompiledModule):
                each.close()


def plans(part):
    return sum(isinstance(each, CompiledModule) for each in part._found.values())


class Broken(nn.Module):
    """Two graphs for Dynamo, and results that are no tensors."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        y = self.a(x) * self.scale
        torch._dynamo.graph_break()
        return {"y": self.b(y), "rows": len(y)}


def test_parts_between_breaks_and_other_sizes(parts):
    backend, made = parts
    module = Broken().eval()
    fast = torch.compile(module, backend=backend, options=OPTIONS)
    with torch.no_grad():
        for rows in (2, 2, 3, 3, 5, 5):
            x = torch.randn(rows, 4)
            found, expected = fast(x), module(x)
            assert torch.equal(found["y"], expected["y"])
            assert found["rows"] == rows
    assert len(made) == 4  # two graphs: for two rows, and for any number of rows
    assert [plans(part) for part in made] == [1, 1, 2, 2]
    (ready, *_) = made[0]._found.values()
    kinds = ready.plan.graph.is_resident
    assert int(kinds.sum()) == 3  # weight, bias and buffer stay on the devices


def test_weights_that_change_and_other_modules_of_one_code(parts):
    backend, made = parts
    a, b = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()

    def apply(module, x):
        return module(x)

    fast, x = torch.compile(apply, backend=backend, options=OPTIONS), torch.ones(2, 4)
    with torch.no_grad():
        for module in (a, b, a, b):
            assert torch.equal(fast(module, x), module(x))
        a.weight.mul_(2)
        b.weight.data = torch.zeros(4, 4)  # which no version counts
        for module in (a, b):
            assert torch.equal(fast(module, x), module(x))
    assert sum(map(plans, made)) == 2


def test_gradients_and_shared_memory_are_left_to_the_graph(parts):
    backend, made = parts
    module = nn.Linear(4, 4).eval()
    fast, x = torch.compile(module, backend=backend, options=OPTIONS), torch.ones(2, 4)
    fast(x).sum().backward()
    assert module.weight.grad is not None
    assert not made[0]._found

    @torch.compile(backend=backend, options=OPTIONS)
    def transposed(x):
        return x.t(), x + 1

    with torch.no_grad():
        for _ in range(2):
            view, _ = transposed(x)
            view.zero_()
            assert not x.any()
            x += 1
    assert not plans(made[-1])
    assert "share memory" in next(iter(made[-1]._found.values()))


def test_branches_on_values_and_random_numbers(parts):
    backend, made = parts

    @torch.compile(backend=backend, options=OPTIONS)
    def branch(x):
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    @torch.compile(backend=backend, options=OPTIONS)
    def drop(x):
        return nn.functional.dropout(x @ x, 0.5, training=True)

    x = torch.ones(8, 8)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(branch(x), 2 * x + 1)
            assert torch.equal(branch(-x), -2 * x - 1)
        found = [drop(x) for _ in range(4)]
    assert not all(torch.equal(found[0], each) for each in found[1:])
    assert "random numbers" in next(iter(made[-1]._found.values()))


def test_what_would_not_pay_runs_as_it_was_found(parts):
    backend, made = parts
    module, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast = torch.compile(module, backend=backend, options=OPTIONS | {"force": False})
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(fast(x), module(x))
    assert "less than 5 %" in next(iter(made[0]._found.values()))


def test_only_so_many_sizes_are_compiled(parts):
    backend, made = parts
    options = OPTIONS | {"max_shapes": 2}
    module = nn.Linear(4, 4).eval()
    fast = torch.compile(module, backend=backend, options=options, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 4, 4):
            x = torch.randn(rows, 4)
            assert torch.equal(fast(x), module(x))
    assert [plans(part) for part in made] == [2]


def test_the_entry_point_and_its_options():
    path = Path(__file__).parents[3] / "pyproject.toml"
    project = tomllib.loads(path.read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["doppler"].partition(":")
    assert getattr(import_module(module), name) is dynamo.backend
    with pytest.raises(ConfigError, match="no option `budget`"):
        dynamo.backend(torch.fx.symbolic_trace(nn.Identity()), [], options={"budget": 3})
