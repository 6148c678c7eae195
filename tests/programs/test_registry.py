"""The workloads by name, and their sizes from text."""

from typing import Any

import pytest

from doppler.errors import ConfigError, UnknownNameError
from doppler.graph import Graph
from doppler.programs import Program, chainmm, ffnn
from doppler.programs.registry import WORKLOADS, Workload, parse_sizes, workload

DEFAULTS = {  # operations or vertices, parts
    "attention": (19, 4),
    "chainmm": (9, 16),
    "cholesky": (156, 8),
    "ffnn": (11, 16),
    "llama-block": (58, 4),
    "llama-layer": (74, 4),
    "mlp": (20, 4),
    "moe-layer": (77, 4),
    "random-dag": (128, 1),
    "transformer": (2 + 4 * 56, 4),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_builds_at_its_default_size(name: str) -> None:
    built = workload(name).build()
    size = built.num_vertices if isinstance(built, Graph) else len(built.ops)
    assert (size, workload(name).parts) == DEFAULTS[name]
    assert built.name.startswith(name)


def test_names_are_in_order_and_each_has_a_description() -> None:
    assert list(WORKLOADS) == sorted(WORKLOADS)
    for found in WORKLOADS.values():
        assert 0 < len(found.description) < 100
        assert "\n" not in found.description


def test_the_papers_parts_are_the_defaults() -> None:
    assert WORKLOADS["chainmm"].parts == WORKLOADS["ffnn"].parts == 16  # App. D
    assert WORKLOADS["llama-block"].parts == WORKLOADS["llama-layer"].parts == 4


def test_sizes_are_the_parameters_and_their_defaults() -> None:
    assert WORKLOADS["chainmm"].sizes == {"size": 10_000, "dtype": "float16"}


def test_an_unknown_workload_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="no workload named `chainm`") as caught:
        workload("chainm")
    assert caught.value.hint.startswith("did you mean `chainmm`? known: attention, chainmm,")


def test_sizes_are_read_with_the_types_of_their_defaults() -> None:
    sizes = parse_sizes(WORKLOADS["ffnn"], ["hidden=64", "batch=1e3", "bias=True", "dtype=float64"])
    assert sizes == {"hidden": 64, "batch": 1000, "bias": True, "dtype": "float64"}
    assert [type(value) for value in sizes.values()] == [int, int, bool, str]
    program = ffnn(**sizes)
    assert program.ops[0].shape == (1000, 32)
    sizes = parse_sizes(WORKLOADS["random-dag"], ["flops=2", "seed=7", "bytes_per_flop=1e-3"])
    assert sizes == {"flops": 2.0, "seed": 7, "bytes_per_flop": 1e-3}
    assert [type(value) for value in sizes.values()] == [float, int, float]


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("false", False)])
def test_a_switch_is_true_or_false(text: str, value: bool) -> None:
    assert parse_sizes(WORKLOADS["ffnn"], [f"bias={text}"]) == {"bias": value}


def test_the_last_of_two_settings_counts() -> None:
    assert parse_sizes(WORKLOADS["ffnn"], ["hidden=1", "hidden=2"]) == {"hidden": 2}
    assert parse_sizes(WORKLOADS["ffnn"], []) == {}


BAD_SETTINGS: dict[str, tuple[str, str, str | None]] = {
    "no value": ("hidden", "size `hidden` is not of the form name=value", None),
    "empty": ("", "size `` is not of the form name=value", None),
    "empty value": ("hidden=", "size hidden=`` is not a int", "such as 65536"),
    "text": ("hidden=big", "size hidden=`big` is not a int", "such as 65536"),
    "fraction": ("hidden=1.5", "size hidden=`1.5` is not a int", "such as 65536"),
    "not a number": ("hidden=nan", "size hidden=`nan` is not a int", "such as 65536"),
    "infinite": ("hidden=1e999", "size hidden=`1e999` is not a int", "such as 65536"),
    "yes": ("bias=yes", "size bias=`yes` is not a bool", "such as False"),
}


@pytest.mark.parametrize(("setting", "message", "hint"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_a_setting_that_is_no_size_is_named(setting: str, message: str, hint: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sizes(WORKLOADS["ffnn"], [setting])
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_an_unknown_size_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="no size named `hiden`\nhint: did you mean `hidden"):
        parse_sizes(WORKLOADS["ffnn"], ["hiden=4"])


def test_a_workload_of_ones_own_has_sizes_too() -> None:
    def squares(*, size: int = 8) -> Program:
        """A product.

        More about it.
        """
        return chainmm(size=size)

    found = Workload(squares, 2)
    assert found.description == "A product."
    assert found.build(**parse_sizes(found, ["size=4"])).ops[0].shape == (4, 4)
