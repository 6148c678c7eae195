"""Maps of modules: whole modules, all weights, as accelerate reads them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import doppler as dp
from doppler.errors import ConfigError, GraphError
from doppler.frontends.device_map import places_of, write_operations
from doppler.frontends.gallery import make_example

TWO = dp.Topology.preset("cpu2")


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.unused = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.second(self.first(x)) * self.scale


def mapped(graph, device_of):
    """The map where `device_of` gives each vertex a device, by its name."""
    devices = [-1 if i else device_of(name)
               for name, i in zip(graph.vertex_names, graph.is_input, strict=True)]  # fmt: skip
    return dp.device_map(graph, dp.Assignment(devices=np.array(devices)), TWO)


def test_whole_modules_get_a_device():
    graph = dp.from_torch(Nested(), (torch.ones(2, 4),)).graph
    assert mapped(graph, lambda _: 1).devices == {"": 1}
    found = mapped(graph, lambda name: int(name.startswith("second")))
    assert found.devices == {"first": 0, "second": 1, "unused": 0, "scale": 1}
    found = mapped(graph, lambda name: int(name == "second.1"))
    assert found.devices["second.0"] == 0
    assert found.devices["second.1"] == 1
    assert found.split == ()


class Twice(nn.Module):
    """One module that is called on two devices."""

    def __init__(self):
        super().__init__()
        self.inner, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x):
        return self.act(self.inner(self.act(self.inner(x))))


def test_split_modules_are_named():
    graph = dp.from_torch(Twice(), (torch.ones(2, 4),)).graph
    names = [name for name, i in zip(graph.vertex_names, graph.is_input, strict=True) if not i]
    found = mapped(graph, names.index)
    assert found.split == ("inner",)
    assert found.devices["inner"] == 0


def test_a_model_in_parts_has_no_map():
    graph = dp.from_torch(Nested(), (torch.ones(2, 4),), parts=2).graph
    with pytest.raises(GraphError, match="is a model in parts") as raised:
        mapped(graph, lambda _: 0)
    assert "without `parts`" in raised.value.hint


def test_tied_weights_split_nothing():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens).tanh() @ torch.ones(4, 4))

    graph = dp.from_torch(Tied(), (torch.zeros(2, dtype=torch.long),)).graph
    found = mapped(graph, lambda name: int("head" in name))
    assert found.devices["embed"] == 0
    assert found.devices["head"] == 1
    assert found.split == ()


def test_very_deep_paths():
    graph = dp.from_torch(nn.Linear(4, 4), (torch.ones(2, 4),)).graph
    deep = {"modules": [".".join("a" * 9999)]}
    kernels = [k if i else replace(k, attributes={**k.attributes, **deep})
               for k, i in zip(graph.kernels, graph.is_input, strict=True)]  # fmt: skip
    assert mapped(replace(graph, kernels=tuple(kernels)), lambda _: 1).devices == {"": 1}


def test_accelerate_loads_the_map():
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils.modeling import check_device_map

    module, args, _ = make_example("unet")
    graph = dp.from_torch(module, args).graph
    rng = np.random.default_rng(0)
    found = mapped(graph, lambda _: int(rng.integers(2)))
    check_device_map(module, found.devices)
    everywhere = dict.fromkeys(found.devices, "cpu")
    loaded = accelerate.dispatch_model(module, everywhere, main_device="cpu", force_hooks=True)
    fresh, _, _ = make_example("unet")
    with torch.no_grad():
        assert torch.equal(loaded(*args), fresh(*args))


def test_places_are_gpus_by_address():
    topology = dp.Topology.preset("p100x4")
    addresses = ("cuda:2", "cuda:0/1of4", "cpu:0", "")
    devices = [replace(d, address=a) for d, a in zip(topology.devices, addresses, strict=True)]
    assert places_of(replace(topology, devices=tuple(devices))) == [2, 0, "cpu", 3]


def test_a_graph_without_modules_has_no_map():
    graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    with pytest.raises(GraphError, match="which modules"):
        dp.device_map(graph, dp.place(graph, TWO, "single"), TWO)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_operations([], "x.txt")
