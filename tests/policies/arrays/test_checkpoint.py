"""Checkpoints without torch: whole ones are read, and nothing else shows a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.arrays.making import array_policy, file_of, header_of, metadata_of, write_policy
from strategies import examples

from doppler.errors import CheckpointError
from doppler.policies.arrays import checkpoint
from doppler.policies.arrays.checkpoint import read_policy, read_provenance, shipped_policy
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy

CONFIG = PolicyConfig(width=4, rounds=1, features="paper")
POLICY = array_policy(CONFIG)
HEADER = header_of(POLICY.tensors, metadata_of(CONFIG))
DATA = b"".join(array.tobytes() for array in POLICY.tensors.values())
LAST = list(POLICY.tensors)[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_policy(POLICY, tmp_path / "policy.safetensors")
    return tmp_path / "policy.safetensors"


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_policy(path)
    assert caught.value.hint
    assert str(path) in caught.value.message


def test_what_is_written_is_read(path: Path) -> None:
    again = read_policy(path)
    assert again.config == CONFIG
    assert again.tensors.keys() == POLICY.tensors.keys()
    for name, array in again.tensors.items():
        assert array.dtype == np.float32
        assert array.flags.owndata
        assert np.array_equal(array, POLICY.tensors[name])
    assert read_provenance(path) == {}


def test_no_file_and_no_plain_file(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", "does not exist")
    assert_refused(tmp_path, "is not a file")


def changed(**changes: Any) -> bytes:
    """A file whose header says something else about its last tensor; `...` takes a key away."""
    entry = {k: v for k, v in (HEADER[LAST] | changes).items() if v is not ...}
    return file_of(HEADER | {LAST: entry}, DATA)


BEGIN, END = HEADER[LAST]["data_offsets"]
BROKEN = {
    "empty": b"",
    "short": b"\x01\0\0",
    "no header": (5).to_bytes(8, "little"),
    "text": b'{"format": "doppler-policy"}',
    "ones": b"\xff" * 100,
    "header past the end": (len(DATA) * 9).to_bytes(8, "little") + b"{}" + DATA,
    "not JSON": file_of(b"{,}", DATA),
    "not UTF-8": file_of(b'{"\xff": 1}', DATA),
    "deep": file_of(b"[" * 200_000, DATA),
    "long number": file_of(b'{"a": ' + b"9" * 5000 + b"}", DATA),
    "a list": file_of([], DATA),
    "no object": file_of(HEADER | {"a": 3}, DATA),
    "metadata of numbers": file_of(HEADER | {"__metadata__": {"format": 1}}, DATA),
    "metadata in a list": file_of(HEADER | {"__metadata__": []}, DATA),
    "a name twice": file_of(json.dumps(HEADER)[:-1].encode() + b', "__metadata__": {}}', DATA),
    "no dtype": changed(dtype=...),
    "no shape": changed(shape=...),
    "no offsets": changed(data_offsets=...),
    "a number too long for Python": file_of(
        json.dumps(HEADER)[:-2].encode() + b', "stride": ' + b"9" * 5000 + b"}}", DATA
    ),
    "unknown dtype": changed(dtype="F8_E9M9"),
    "dtype is a number": changed(dtype=32),
    "shape is true": changed(shape=[True, 2]),
    "shape is negative": changed(shape=[-1, -2]),
    "shape is a fraction": changed(shape=[1.0, 2.0]),
    "shape is huge": changed(shape=[10**30, 2]),
    "three offsets": changed(data_offsets=[BEGIN, END, END]),
    "offsets backwards": changed(data_offsets=[END, BEGIN]),
    "offsets negative": changed(data_offsets=[-8, BEGIN]),
    "offsets overlap": changed(data_offsets=[BEGIN - 8, END]),
    "all offsets the same": changed(data_offsets=[0, END - BEGIN]),
    "a gap": changed(data_offsets=[BEGIN + 4, END]),
    "past the end": changed(data_offsets=[BEGIN, END + 4]),
    "far past the end": changed(data_offsets=[BEGIN, 1 << 62]),
    "more than its shape": file_of(
        HEADER | {LAST: HEADER[LAST] | {"data_offsets": [BEGIN, END + 4]}}, DATA + b"\0" * 4
    ),
    "more at the end": file_of(HEADER, DATA + b"\0"),
    "cut off": file_of(HEADER, DATA[:-1]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(path: Path, case: str) -> None:
    path.write_bytes(BROKEN[case])
    assert_refused(path, "not a safetensors file, or not all of one")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file_of({"__metadata__": {}}, b""), "holds no policy: `format` is None"),
        (file_of({}, b""), "holds no policy: `format` is None"),
        (
            file_of(header_of(POLICY.tensors, metadata_of(CONFIG, version="2")), DATA),
            "`version` is '2', this reader knows '1'",
        ),
        (
            file_of(header_of(POLICY.tensors, metadata_of(CONFIG, features_version="0")), DATA),
            "trained on version '0' of the features",
        ),
        (changed(dtype="I32"), f"tensor `{LAST}` is I32, expected F32"),
        (changed(shape=[2, 2]), f"tensor `{LAST}` has shape "),
        (changed(shape=[END - BEGIN >> 2] + [1] * 100_000), f"`{LAST}` has too many axes, "),
    ],
)
def test_whole_files_of_something_else(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    assert_refused(path, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 10**9}, "too few weights"),
        ({"width": 10**9}, "too few weights"),
        ({"rounds": 2}, "tensor `encoder.rounds.1.edge.weight` is missing"),
        ({"rounds": 0}, "tensor `encoder.rounds.0.edge.weight` is unknown"),
        ({"width": 1}, "width must be at least 2"),
        ({"width": "4"}, "`width` is missing, unknown or of another type"),
        ({"depth": 4}, "`depth` is missing, unknown or of another type"),
    ],
)
def test_another_config(path: Path, changes: dict[str, Any], message: str) -> None:
    values = json.loads(metadata_of(CONFIG)["config"]) | changes
    path.write_bytes(
        file_of(
            header_of(POLICY.tensors, metadata_of(CONFIG, config=json.dumps(values))),
            DATA,
        )
    )
    assert_refused(path, message)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(path: Path, value: float) -> None:
    tensors = dict(POLICY.tensors)
    tensors[LAST] = np.full_like(tensors[LAST], value)
    write_policy(ArrayPolicy(CONFIG, tensors), path)
    assert_refused(path, f"tensor `{LAST}` of .* not finite")


@settings(max_examples=examples(300))
@given(data=st.data())
def test_no_damage_shows_a_traceback(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "policy"
    whole = file_of(HEADER, DATA)
    start = data.draw(st.integers(0, 2500) | st.integers(0, len(whole)))
    end = min(start + data.draw(st.integers(0, 9) | st.just(len(whole))), len(whole))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=9)) + whole[end:])
    reads: list[Callable[[Path], object]] = [read_policy, read_provenance]
    for read in reads:
        try:
            found = read(path)  # the damage may be to nothing that matters
        except CheckpointError as error:
            found = error.hint
        assert isinstance(found, (ArrayPolicy, dict, str))


def test_the_policy_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda package: tmp_path / package)
    with pytest.raises(CheckpointError, match="no policy comes with") as caught:
        shipped_policy()
    assert caught.value.hint is not None
    assert "dop train" in caught.value.hint
    (tmp_path / "doppler" / "data").mkdir(parents=True)
    write_policy(POLICY, tmp_path / "doppler" / "data" / "policy.safetensors")
    assert shipped_policy().config == CONFIG
