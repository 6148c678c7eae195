"""Joint graphs: losses and gradients as autograd computes them."""

import numpy as np
import pytest
import torch
from torch import nn

import doppler as dp
from doppler.errors import ModelError
from doppler.frontends.gallery import Decoder
from doppler.frontends.joint import gradients, joint_model


class Loss(nn.Module):
    """The loss of a small decoder that predicts its own tokens."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(layers=1, width=16)

    def forward(self, tokens):
        logits = self.decoder(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def test_a_loss_and_its_gradients_are_those_of_autograd():
    torch.manual_seed(0)
    module, tokens = Loss(), torch.randint(0, 128, (2, 8))
    model = joint_model(module, (tokens,))
    assert set(model.gradients) == {name for name, _ in module.named_parameters()}
    topology = dp.Topology.preset("cpu2")
    devices = np.random.default_rng(0).integers(0, 2, model.graph.num_vertices)
    assignment = dp.Assignment(devices=np.where(model.graph.is_input, -1, devices))
    assert dp.simulate(model.graph, topology, assignment).makespan_s > 0
    loss = module(tokens)
    loss.backward()
    torch.testing.assert_close(model.run(topology, assignment, tokens), loss.detach())
    found = gradients(model, topology, assignment, tokens)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_what_has_no_loss_is_refused():
    with pytest.raises(ModelError, match="backward pass"):
        joint_model(nn.Linear(2, 2), (torch.ones(1, 2),))


def test_random_numbers_are_refused():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.dropout(self.inner(x), 0.5).sum()

    with pytest.raises(ModelError, match="random"):
        joint_model(Dropped(), (torch.ones(1, 4),))
