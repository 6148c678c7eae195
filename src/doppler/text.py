"""Text from files and users, made safe to show: names are data, not instructions to a terminal."""

import re

_ESCAPED = re.compile(r"\\(\\|[tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def visible(text: str) -> str:
    r"""The text with backslashes and every character that does not print as escapes: `\x1b`.

    Control characters, escape sequences, line breaks and bidirectional overrides are among those;
    `from_visible` gives the text back.
    """
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def from_visible(text: str) -> str:
    """The text that `visible` made this of."""
    return _ESCAPED.sub(lambda found: found[0].encode().decode("unicode_escape"), text)
