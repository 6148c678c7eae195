"""Names are data: what is printed of them cannot act on a terminal, and can be read back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.base.text import json_visible, visible

ANY = st.text(st.characters())  # surrogates and control characters too


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("matmul_3", "matmul_3"),
        ("été 日本", "été 日本"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb", r"a\nb"),
        (r"a\nb", r"a\\nb"),
        ("safe\u202egnp.exe", r"safe\u202egnp.exe"),
        ("\x9b31m", r"\x9b31m"),
        ("\udc80", r"\udc80"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_by_example(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(ANY, ANY)
def test_it_is_printable_can_be_read_back_and_goes_character_by_character(a: str, b: str) -> None:
    assert visible(a).isprintable()
    assert visible(a).encode("latin-1", "backslashreplace").decode("unicode_escape") == a
    assert visible(a + b) == visible(a) + visible(b)


@given(ANY)
def test_json_keeps_its_value(text: str) -> None:
    value = {"key": [text]}
    for indent in (None, 2):
        shown = json_visible(json.dumps(value, ensure_ascii=False, indent=indent))
        assert shown.replace("\n", "").isprintable()
        assert json.loads(shown) == value
