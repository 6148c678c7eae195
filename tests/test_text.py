"""What is shown of text: no character that does not print, and it can be read back."""

from hypothesis import given
from hypothesis import strategies as st

from doppler.text import from_visible, visible

any_text = st.text(st.characters() | st.sampled_from("\\\x1b\n\t\u202e\ud800xu0"))


@given(any_text)
def test_what_is_visible_prints_and_can_be_read_back(text: str) -> None:
    assert visible(text).isprintable()
    assert from_visible(visible(text)) == text


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="\\")))
def test_printable_text_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_by_example() -> None:
    assert visible("conv[same]\x1b[2J") == "conv[same]\\x1b[2J"
    assert visible("a\\b\n") == "a\\\\b\\n"
    assert visible("é → \u202e") == "é → \\u202e"
