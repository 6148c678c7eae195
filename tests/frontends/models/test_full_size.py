"""The gallery: each model by its name, small or at its published size."""

import pytest
import torch

import doppler as dp
from doppler.errors import MissingExtraError, UnknownNameError
from doppler.frontends.gallery import MODELS, TRANSFORMERS, make_example
from doppler.frontends.models.full_size import make_full_example
from doppler.frontends.models.names import DESCRIPTIONS


def test_every_model_is_listed():
    assert list(DESCRIPTIONS) == [*MODELS, *TRANSFORMERS]
    assert len(DESCRIPTIONS) >= 30


@pytest.mark.parametrize("name", ["gpt2", "clip"])
def test_models_of_transformers_run_as_they_are(name):
    pytest.importorskip("transformers")
    module, args, kwargs = make_example(name)
    model = dp.from_torch(module, args, kwargs)
    assignment = dp.place(model.graph, "cpu2", "round-robin")
    found = model.run("cpu2", assignment, *args, **kwargs)
    with torch.no_grad():
        expected = module(*args, **kwargs)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5)


def test_a_model_of_full_size_has_no_values():
    pytest.importorskip("transformers")
    module, _, kwargs = make_full_example("resnet")
    assert all(each.is_meta for each in module.parameters())
    assert kwargs["pixel_values"].shape == (1, 3, 224, 224)
    with pytest.raises(UnknownNameError, match="full size"):
        make_full_example("mlp")


def test_without_transformers_there_is_a_hint(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    for make in (make_example, make_full_example):
        with pytest.raises(MissingExtraError) as found:
            make("llama")
        assert "gallery" in found.value.hint
