"""Text that is safe to print: names and paths are data, and may hold any character."""


def visible(text: str) -> str:
    r"""The text with every character that a terminal might obey or hide written as an escape.

    Control characters, escape sequences, bidirectional overrides, invisible characters and
    unpaired surrogates become `\x1b`, `\u202e` and so on; a backslash becomes two. Each
    character is replaced by itself alone, so `visible(a + b) == visible(a) + visible(b)`.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_visible_character, text))


def json_visible(text: str) -> str:
    r"""A JSON text with such characters, which only strings can hold, as its own `\u` escapes."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _json_escape(one) for one in text)


def _visible_character(one: str) -> str:
    if one.isprintable() and one != "\\":
        return one
    return one.encode("unicode_escape").decode("ascii")


def _json_escape(one: str) -> str:
    data = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[i]:02x}{data[i + 1]:02x}" for i in range(0, len(data), 2))
