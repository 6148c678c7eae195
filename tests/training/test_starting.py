"""What training starts from where nobody says it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training.tiny import CONFIG, graph, trained  # noqa: E402

from doppler.datasets.recipe import Recipe  # noqa: E402
from doppler.placers.learned.doppler import DopplerPlacer  # noqa: E402
from doppler.policies.arrays import checkpoint  # noqa: E402
from doppler.policies.arrays.config import PolicyConfig  # noqa: E402
from doppler.runs.manifest import read_manifest  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.training.api import pretraining, train  # noqa: E402
from doppler.training.config import TrainConfig  # noqa: E402
from doppler.training.presets import preset  # noqa: E402
from doppler.training.starting import NOTHING, PRETRAINED, kind_of_start, usual_start  # noqa: E402

NO_EPISODES: Any = {
    "imitation": replace(CONFIG.imitation, episodes=0),
    "sim": replace(CONFIG.sim, episodes=0),
}
MACHINE = Topology.preset("p100x4")


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (TrainConfig(), PRETRAINED),
        (TrainConfig(seconds=2.0, seed=3), PRETRAINED),
        (TrainConfig(stages=("sim", "real")), PRETRAINED),
        (TrainConfig(stages=("real",)), PRETRAINED),
        (TrainConfig(stages=("imitation", "sim")), NOTHING),
        (TrainConfig(policy=PolicyConfig(width=32)), NOTHING),
        (TrainConfig(policy=PolicyConfig(select=False)), NOTHING),
        (preset("paper"), NOTHING),
        (replace(preset("paper"), policy=PolicyConfig(), stages=("sim",)), NOTHING),
        (preset("default", "gdp"), NOTHING),
        (preset("default", "placeto"), NOTHING),
    ],
)
def test_the_usual_start(config: TrainConfig, start: str) -> None:
    usual = usual_start(config)
    assert usual.start == start
    assert bool(usual.why) == (start == NOTHING)


def test_without_a_shipped_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    assert usual_start(TrainConfig()).start == NOTHING
    assert "this installation" in usual_start(TrainConfig()).why


def weights(placer: Any) -> Any:
    return placer.policy.state_dict()["encoder.embed.weight"]


def test_from_python(tmp_path: Path) -> None:
    """The config's stages, where it names none, follow from the start."""
    config = TrainConfig(**NO_EPISODES, threads=1)
    cases: list[tuple[Any, str | None, tuple[str, ...]]] = [
        (None, PRETRAINED, ("sim",)),
        (PRETRAINED, PRETRAINED, ("sim",)),
        (NOTHING, None, ("imitation", "sim")),
        (trained(tmp_path / "parent"), str(tmp_path / "parent/policy.safetensors"), ("sim",)),
    ]
    for number, (start, path, stages) in enumerate(cases):
        out = tmp_path / str(number)
        placer = train(graph(), MACHINE, config, start=start, out=out)
        document = read_manifest(out)
        assert document.config.stages == stages
        assert (document.parent or {}).get("path") == path
        assert torch.equal(weights(placer), weights(DopplerPlacer())) == (path == PRETRAINED)
    assert torch.equal(weights(train(graph(), MACHINE, config)), weights(DopplerPlacer()))


def test_pretraining_starts_from_nothing() -> None:
    manifest = pretraining(Recipe(problems=1, max_vertices=40, validation=0), TrainConfig())
    assert manifest.parent is None
    assert manifest.config.stages == ("imitation", "sim")


def test_the_kind_of_a_checkpoint(tmp_path: Path) -> None:
    assert kind_of_start(PRETRAINED) == "doppler"
    run = trained(tmp_path / "run")
    assert kind_of_start(run) == kind_of_start(str(run / "policy.safetensors")) == "doppler"
