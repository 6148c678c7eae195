"""Configs as files: exact there and back, and every mistake is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from doppler.errors import ConfigError, FormatError
from doppler.policies.dual import PolicyConfig
from doppler.sim import Noise
from doppler.training.config import ExpertConfig, ReinforceConfig, TrainConfig
from doppler.training.config_io import config_from, config_to, read_document
from doppler.training.presets import PRESETS, preset

ODD = TrainConfig(
    stages=("sim",),
    policy=PolicyConfig(width=7, features="paper", select=False),
    sim=ReinforceConfig(lr=(0.1, 1 / 3), expert=ExpertConfig(hot=0.1)),
    noise=Noise(0.1, 0.2, 0.3, (1.0, 2.0)),
    seconds=1.5,
    threads=3,
)


@pytest.mark.parametrize("config", [*PRESETS.values(), ODD])
@pytest.mark.parametrize("base", [*PRESETS.values(), ODD])
def test_there_and_back(config: TrainConfig, base: TrainConfig) -> None:
    document = json.loads(json.dumps(config_to(config), allow_nan=False))
    assert config_from(document, base) == config


def test_what_is_left_out_keeps_its_value(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'stages = ["sim"]\nseconds = 10\n[sim]\nlr = [1e-3, 0]\n[sim.expert]\nmoves = 5\n'
    )
    config = config_from(read_document(tmp_path / "c.toml"), preset("default"))
    default = preset("default")
    expert = replace(default.sim.expert or ExpertConfig(), moves=5)
    assert config == replace(
        default,
        stages=("sim",),
        seconds=10.0,
        sim=replace(default.sim, lr=(1e-3, 0.0), expert=expert),
    )
    assert type(config.seconds) is float


def test_what_may_be_absent_is_switched_on_and_off() -> None:
    assert config_from({"sim": {"expert": False}}, preset("default")).sim.expert is None
    assert config_from({"sim": {"expert": None}}, preset("default")).sim.expert is None
    assert config_from({"sim": {"expert": True}}, preset("paper")).sim.expert == ExpertConfig()
    with_moves = config_from({"sim": {"expert": {"moves": 7}}}, preset("paper"))
    assert with_moves.sim.expert == ExpertConfig(moves=7)
    assert config_from({"threads": False, "seconds": False}, ODD).seconds is None


@pytest.mark.parametrize(
    ("document", "message", "hint"),
    [
        ({"sed": 1}, "unknown key `sed`", "did you mean `seed`?"),
        ({"lr": [1, 1]}, "unknown key `lr`", "did you mean `imitation.lr`?"),
        ({"sim": {"epsiode": 1}}, "unknown key `sim.epsiode`", "did you mean `sim.episodes`?"),
        ({"sim": {"expert": {"move": 1}}}, "unknown key `sim.expert.move`", "sim.expert.moves"),
        ({"seed": 1.5}, "`seed` is 1.5, must be a whole number", None),
        ({"seed": True}, "`seed` is True, must be a whole number", None),
        ({"seed": -1}, "seed is -1", None),
        ({"seed": 10**300}, "must be a whole number", None),
        ({"clip": float("nan")}, "`clip` is nan, must be a finite number", None),
        ({"clip": 10**400}, "must be a finite number", None),
        ({"clip": 0}, "clip is 0", None),
        ({"clip": "1"}, "`clip` is '1'", None),
        ({"limit_memory": 1}, "`limit_memory` is 1, must be true or false", None),
        ({"device": 0}, "`device` is 0, must be text", None),
        ({"sim": 3}, "`sim` is 3, must be a table", None),
        ({"policy": False}, "`policy` is False, must be a table", None),
        ({"sim": {"expert": 3}}, "`sim.expert` is 3, must be a table", None),
        ({"sim": {"lr": [0.1]}}, r"`sim.lr` is \[0.1\], must be a list of 2", None),
        ({"sim": {"lr": [0.1, "x"]}}, r"`sim.lr\[1\]` is 'x'", None),
        ({"sim": {"lr": [0.1, 2]}}, "lr is", None),
        ({"sim": {"batch": 0}}, "batch at least 1", None),
        ({"sim": {"epsilon": [0, 2]}}, "sim.epsilon", None),
        ({"sim": {"temperature": [-1, 0]}}, "sim.temperature", None),
        ({"sim": {"expert": {"pool": 0}}}, "sim.expert.pool is 0", None),
        ({"sim": {"expert": {"lessons": -1}}}, "sim.expert.lessons is -1", None),
        ({"sim": {"expert": {"cold": 0}}}, "cold is 0", None),
        ({"sim": {"expert": {"until": 1.5}}}, "sim.expert.until is 1.5", None),
        ({"sim": {"guide": {"no_share": 0.9}}}, "sim.guide: .* add up to above 1", None),
        ({"sim": {"guide": {"list_share": -0.1}}}, "sim.guide.list_share is -0.1", None),
        ({"sim": {"guide": {"least_gap": 1.5}}}, "sim.guide.least_gap is 1.5", None),
        ({"sim": {"guide": {"gaps": 1}}}, "unknown key `sim.guide.gaps`", None),
        ({"stages": "sim"}, "`stages` is 'sim', must be a list", None),
        ({"stages": ["simm"]}, "no stage named `simm`", "did you mean `sim`?"),
        ({"strategy": "fife"}, "no strategy named `fife`", "did you mean `fifo`?"),
        ({"strategy": "order"}, "strategy `order`", None),
        ({"threads": 0}, "threads is 0", None),
        ({"seconds": 0}, "seconds is 0", None),
        ({"policy": {"width": 0}}, "width must be", None),
        ({"noise": {"exec_sigma": -1}}, "noise.exec_sigma", None),
    ],
)
def test_mistakes(document: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config_from(document, preset("default"), source="`c.toml`")
    assert caught.value.message.startswith("`c.toml`: ")
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize("content", ["", "[sim", '{"sim": ', "x = 1e", "\0"])
def test_files_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.toml").write_text(content)
    with pytest.raises(FormatError, match=r"c\.toml"):
        read_document(tmp_path / "c.toml")
