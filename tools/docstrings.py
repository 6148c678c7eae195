"""A griffe extension: docstrings as the reference shows them.

The fields of a dataclass or an enum become a table below its docstring. What a field means is the
comment behind it, or above it if there is none behind. Examples become blocks of code.
"""

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import griffe

TABULATED = re.compile(r"\b(dataclass|StrEnum|NamedTuple)\b")
HEADINGS = ["field", "type", "default", "meaning"]
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to an empty line
SECTION = re.compile(r"^\w+\n-{3,}$", re.MULTILINE)  # of a docstring in numpy's style


class Docstrings(griffe.Extension):
    """Adds tables of fields, and marks examples as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark the examples before the first section; sections mark their own."""
        if obj.docstring is not None:
            text, sections = split(obj.docstring.value)
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
            obj.docstring.value = text + sections

    def on_class_members(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """Move the public fields of a dataclass or an enum into its docstring."""
        makers = [*(str(d.value) for d in cls.decorators), *map(str, cls.bases)]
        if not any(TABULATED.search(maker) for maker in makers) or cls.docstring is None:
            return
        comments = comments_of(cls.filepath)
        rows = []
        for field in node.body:
            target = field_name(field)
            if target is None or target.startswith("_"):
                continue
            attribute = cls.members[target]
            cells = [target, str(attribute.annotation or ""), default_of(attribute)]
            rows.append([code(cell) for cell in cells] + [meaning_of(field, comments)])
            cls.del_member(target)
        if rows:
            text, sections = split(cls.docstring.value)
            cls.docstring.value = f"{text.strip()}\n\n{table(rows)}\n\n{sections}"


def comments_of(path: Path) -> dict[int, tuple[str, bool]]:
    """The comments of a file by line, and whether each has the line to itself."""
    source = io.StringIO(path.read_text("utf-8"))
    return {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(source.readline)
        if token.type == tokenize.COMMENT
    }


def field_name(statement: ast.stmt) -> str | None:
    """The name that a statement of a class body assigns or annotates."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    return target.id if isinstance(target, ast.Name) else None


def meaning_of(field: ast.stmt, comments: dict[int, tuple[str, bool]]) -> str:
    """The comment behind a field, or the lines of comments above it."""
    if behind := comments.get(field.end_lineno or 0):
        return behind[0]
    above: list[str] = []
    line = field.lineno - 1
    while line in comments and comments[line][1]:
        above.insert(0, comments[line][0])
        line -= 1
    return " ".join(above)


def default_of(attribute: griffe.Attribute) -> str:
    """The default of a field; `X()` where a factory makes it."""
    return re.sub(r"^field\(default_factory=(\w+)\)$", r"\1()", str(attribute.value or ""))


def code(text: str) -> str:
    """Text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def split(docstring: str) -> tuple[str, str]:
    """What comes before the first section of a docstring, and the sections."""
    section = SECTION.search(docstring)
    end = section.start() if section else len(docstring)
    return docstring[:end], docstring[end:]


def table(rows: list[list[str]]) -> str:
    """A table of the columns that have something in them."""
    columns = [[head, "---", *cells] for head, *cells in zip(HEADINGS, *rows, strict=True)]
    kept = [column for column in columns if any(column[2:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*kept, strict=True))
