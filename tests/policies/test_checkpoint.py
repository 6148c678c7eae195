"""Checkpoints: what is saved is what is loaded, and nothing else is."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from doppler.errors import CheckpointError, OutputError

torch = pytest.importorskip("torch")

from safetensors.torch import load, save  # noqa: E402

from doppler.policies.checkpoint import (  # noqa: E402
    load_any,
    load_policy,
    read_provenance,
    save_policy,
)
from doppler.policies.configs import GdpConfig, PlacetoConfig, Seq2SeqConfig  # noqa: E402
from doppler.policies.dual import DualPolicy, PolicyConfig, make_policy  # noqa: E402
from doppler.policies.kinds import make_any  # noqa: E402

CONFIG = PolicyConfig(width=4, rounds=1, features="paper")
PROVENANCE = {"graphs": ["ffnn"], "episodes": 12, "best_s": 0.5, "note": "größer"}


def policy(seed: int = 0) -> DualPolicy:
    return make_policy(CONFIG, seed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_policy(policy(), tmp_path / "policy.safetensors", PROVENANCE)
    return tmp_path / "policy.safetensors"


def parts(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a file, and what it says about itself but for its checksum."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    del metadata["checksum"]
    return load(data), metadata


def assert_refused(path: Path, message: str, load: Callable[[Path], Any] = load_policy) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert caught.value.hint
    assert str(path) in caught.value.message


@pytest.mark.parametrize("features", ["paper", "default"])
def test_what_is_saved_is_loaded(tmp_path: Path, features: str) -> None:
    mine = make_policy(PolicyConfig(width=6, rounds=2, features=features), 3)
    save_policy(mine, str(tmp_path / "a"), PROVENANCE)
    again = load_policy(str(tmp_path / "a"))
    assert again.config == mine.config
    for name, tensor in mine.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    assert read_provenance(tmp_path / "a") == PROVENANCE
    assert all(parameter.requires_grad for parameter in again.parameters())
    save_policy(again, tmp_path / "b", PROVENANCE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "config",
    [
        PlacetoConfig(width=4, rounds=1, devices=3),
        GdpConfig(width=4, layers=1, devices=3),
        Seq2SeqConfig(width=4, groups=5, devices=3),
    ],
    ids=lambda config: config.kind,
)
def test_every_kind_is_loaded_as_it_was(tmp_path: Path, config: Any) -> None:
    mine = make_any(config, 3)
    save_policy(mine, tmp_path / "a", PROVENANCE)
    again = load_any(tmp_path / "a")
    assert type(again) is type(mine)
    assert again.config == config
    for name, tensor in mine.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    assert_refused(tmp_path / "a", f"holds a policy of kind `{config.kind}`, not `doppler`")
    tensors, metadata = parts(tmp_path / "a")
    assert metadata["kind"] == config.kind
    (tmp_path / "a").write_bytes(save(tensors, metadata | {"kind": "gpd"}))
    assert_refused(tmp_path / "a", "holds a policy of unknown kind 'gpd'", load_any)
    more = json.dumps(json.loads(metadata["config"]) | {"devices": 4})
    (tmp_path / "a").write_bytes(save(tensors, metadata | {"config": more}))
    assert_refused(tmp_path / "a", "expected", load_any)
    huge = json.dumps(json.loads(metadata["config"]) | {"devices": 10**9})
    (tmp_path / "a").write_bytes(save(tensors, metadata | {"config": huge}))
    assert_refused(tmp_path / "a", "too few weights", load_any)


def test_files_of_the_dual_policy_are_as_they_were(path: Path) -> None:
    assert "kind" not in parts(path)[1]
    assert isinstance(load_any(path), DualPolicy)


def test_a_loaded_policy_has_memory_of_its_own(path: Path) -> None:
    mine = load_policy(path)
    with torch.no_grad():
        mine.place.out.weight += 1
    assert not torch.equal(load_policy(path).place.out.weight, mine.place.out.weight)
    path.write_bytes(b"")
    assert torch.isfinite(mine.place.out.weight).all()


def test_loading_leaves_torchs_generator_alone(path: Path) -> None:
    before = torch.random.get_rng_state()
    load_policy(path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_file_and_no_plain_file(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", "does not exist")
    assert_refused(tmp_path, "is not a file")
    with pytest.raises(CheckpointError, match="does not exist"):
        read_provenance(tmp_path / "none")


@pytest.mark.parametrize("data", [b"", b"x", b'{"format": "doppler-policy"}', b"\xff" * 100])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "other").write_bytes(data)
    assert_refused(tmp_path / "other", "not a safetensors file")


def test_a_file_cut_off_anywhere(path: Path) -> None:
    data = path.read_bytes()
    for size in (4, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert_refused(path, "not all of one")
    path.write_bytes(data + b"\0")
    assert_refused(path, "not a safetensors file")


def test_tensors_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(save({"a": torch.zeros(2)}))
    assert_refused(tmp_path / "other", "holds no policy: `format` is None")


def config(**changes: Any) -> dict[str, str]:
    """What a file says about the shape of its policy, with some values changed or taken away."""
    values = asdict(CONFIG) | changes
    return {"config": json.dumps({k: v for k, v in values.items() if v is not None})}


METADATA = {
    "another format": ({"format": "doppler-graph"}, "`format` is 'doppler-graph'"),
    "a later version": ({"version": "2"}, "`version` is '2', this reader knows '1'"),
    "no version": ({"version": None}, "`version` is None"),
    "other features": ({"features_version": "0"}, "trained on version '0' of the features"),
    "no features": ({"features_version": None}, "trained on version None"),
    "no config": ({"config": None}, "`config` is not a JSON object"),
    "broken config": ({"config": "{"}, "`config` is not a JSON object"),
    "a list": ({"config": "[]"}, "`config` is not a JSON object"),
    "deep config": ({"config": "[" * 100_000}, "`config` is not a JSON object"),
    "no width": (config(width=None), "`width` is missing, unknown or of another type"),
    "unknown key": (config(depth=2), "`depth` is missing, unknown or of another type"),
    "half a round": (config(rounds=1.5), "`rounds` is missing, unknown or of another type"),
    "true": (config(width=True), "`width` is missing, unknown or of another type"),
    "zero width": (config(width=0), "width must be at least 2"),
    "unknown set": (config(features="x"), "no feature set named `x`"),
    "no number of devices": (config(most_devices=None), "`most_devices` is missing"),
    "negative devices": (config(most_devices=-1), "most_devices is -1, must not be negative"),
    "other width": (
        config(width=8),
        r"tensor `encoder.embed.bias` has shape \(4,\), expected \(8,\)",
    ),
    "huge width": (config(width=10**9), "too few weights"),
    "more rounds": (config(rounds=2), "tensor `encoder.rounds.1.edge.weight` is missing"),
    "fewer rounds": (config(rounds=0), "tensor `encoder.rounds.0.edge.weight` is unknown"),
    "endless rounds": (config(rounds=10**9), "too few weights"),
}


@pytest.mark.parametrize("case", METADATA)
def test_what_a_file_says_about_itself(path: Path, case: str) -> None:
    changes, message = METADATA[case]
    tensors, metadata = parts(path)
    metadata = {k: v for k, v in (metadata | changes).items() if v is not None}
    path.write_bytes(save(tensors, metadata))
    assert_refused(path, message)


def without(tensors: dict[str, Any]) -> None:
    del tensors["select.head.0.bias"]


def renamed(tensors: dict[str, Any]) -> None:
    tensors["select.tail"] = tensors.pop("select.head.0.bias")


def reshaped(tensors: dict[str, Any]) -> None:
    tensors["place.out.weight"] = tensors["place.out.weight"].reshape(2, 1)


def halved(tensors: dict[str, Any]) -> None:
    tensors["place.out.weight"] = tensors["place.out.weight"].half()


def not_a_number(tensors: dict[str, Any]) -> None:
    tensors["place.out.weight"][0, 1] = torch.nan


def infinite(tensors: dict[str, Any]) -> None:
    tensors["place.out.weight"][0, 1] = torch.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "tensor `select.head.0.bias` is missing"),
        (renamed, "tensor `select.head.0.bias` is missing"),
        (lambda t: t.update(more=torch.zeros(1)), "tensor `more` is unknown"),
        (reshaped, r"tensor `place.out.weight` has shape \(2, 1\), expected \(1, 2\)"),
        (halved, "tensor `place.out.weight` is F16, expected F32"),
        (not_a_number, "tensor `place.out.weight` of .* not finite"),
        (infinite, "tensor `place.out.weight` of .* not finite"),
    ],
)
def test_tensors_that_do_not_fit(
    path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    tensors, metadata = parts(path)
    change(tensors)
    path.write_bytes(save(tensors, metadata))
    assert_refused(path, message)


@settings(max_examples=examples(200))
@given(data=st.data())
def test_no_damage_shows_a_traceback(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "policy"
    save_policy(policy(), path, PROVENANCE)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, 700) | st.integers(0, len(whole)))
    end = min(start + data.draw(st.integers(0, 9) | st.just(len(whole))), len(whole))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=9)) + whole[end:])
    for read in (load_policy, read_provenance):
        try:
            found: object = read(path)  # the damage may be to nothing that matters
        except CheckpointError as error:
            found = error.hint
        assert isinstance(found, (DualPolicy, dict, str))


def test_weights_that_are_not_finite_are_not_saved_over_good_ones(path: Path) -> None:
    mine, before = policy(1), path.read_bytes()
    with torch.no_grad():
        mine.place.out.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        save_policy(mine, path, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("provenance", [{"a": object()}, {"a": float("nan")}, {(1, 2): 3}])
def test_provenance_is_json(path: Path, provenance: dict[Any, Any]) -> None:
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="is not JSON"):
        save_policy(policy(), path, provenance)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_provenance_that_is_no_object(path: Path, text: str) -> None:
    tensors, metadata = parts(path)
    path.write_bytes(save(tensors, metadata | {"provenance": text}))
    with pytest.raises(CheckpointError, match="`provenance` is not a JSON object"):
        read_provenance(path)
    load_policy(path)  # its weights are good


def test_an_interrupted_write_leaves_the_last_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save_policy(policy(1), path, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        save_policy(policy(), tmp_path / "none" / "policy", {})


def test_the_version_of_the_features_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doppler.policies.arrays.checkpoint.FEATURE_VERSION", 6)
    assert_refused(path, "version '5' of the features, this doppler computes version '6'")
