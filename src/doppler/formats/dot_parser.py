"""A parser of DOT: nodes and edges with their attributes, and the lines they are in.

It reads what Graphviz's grammar allows of directed graphs: defaults (`node […]`), subgraphs, also
as ends of edges, ports (which are dropped), quoted, concatenated and HTML texts, and comments.
Beyond that grammar, a number may have an exponent without being quoted: `1e9`.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, NoReturn

from doppler.base.text import visible
from doppler.errors import FormatError

_MAX_EDGES = 5_000_000
_MAX_DEPTH = 100  # of subgraphs in each other
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)
      | (?P<arrow>->|--)
      | (?P<mark>[{}\[\];,=:+])
      | (?P<quoted>"(?:[^"\\]|\\.)*")
      | (?P<word>[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff]*
               | -?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@dataclass(slots=True)
class DotNode:
    """A node; attributes by name, those given last."""

    name: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)

    def described(self) -> str:
        """What errors call it."""
        return f"node `{self.name[:80]}`"


@dataclass(slots=True)
class DotEdge:
    """An edge from a node to another."""

    source: str
    target: str
    line: int
    attributes: dict[str, str]

    def described(self) -> str:
        """What errors call it."""
        return f"edge `{self.source[:80]}` -> `{self.target[:80]}`"


@dataclass(slots=True)
class DotGraph:
    """What a text holds."""

    name: str
    nodes: list[DotNode]
    edges: list[DotEdge]


class _Token(NamedTuple):
    kind: str  # "mark", "arrow", "word", "quoted", "html" or "end"
    text: str
    line: int


class _Scope(NamedTuple):
    node: dict[str, str]  # defaults
    edge: dict[str, str]
    inside: dict[str, None]  # names of the nodes that were mentioned in it


def parse_dot(text: str, source: str) -> DotGraph:
    """The nodes and edges of a directed graph."""
    return _Parser(_tokens(text, source), source).graph()


def _tokens(text: str, source: str) -> list[_Token]:
    found, at, line = [], 0, 1
    while at < len(text):
        if text[at] == "<":
            end = _html_end(text, at, line, source)
            kind, value = "html", text[at + 1 : end - 1]
        else:
            match = _TOKEN.match(text, at)
            if match is None:
                raise FormatError(
                    f"{source}, line {line}: `{visible(text[at : at + 20])}` is no DOT",
                    hint="a text that is neither a word nor a number must be in quotes",
                )
            end, kind = match.end(), str(match.lastgroup)
            value = match.group()
        if kind == "quoted":
            value = re.sub(r'\\(["\\])', r"\1", value[1:-1].replace("\\\n", ""))
        if kind != "space":
            found.append(_Token(kind, value, line))
        line += text.count("\n", at, end)
        at = end
    found.append(_Token("end", "the end of the file", line))
    return found


def _html_end(text: str, at: int, line: int, source: str) -> int:
    depth = 0
    for match in re.compile(r"[<>]").finditer(text, at):
        depth += 1 if match.group() == "<" else -1
        if not depth:
            return match.end()
    raise FormatError(f"{source}, line {line}: `<` is never closed")


class _Parser:
    def __init__(self, tokens: list[_Token], source: str) -> None:
        self._tokens, self._source, self._at = tokens, source, 0
        self._nodes: dict[str, DotNode] = {}
        self._edges: list[DotEdge] = []

    def graph(self) -> DotGraph:
        """The whole graph."""
        strict = self._word_is("strict")
        if self._word_is("graph"):
            self._fail("the graph is not directed", "write `digraph` and `->`")
        if not self._word_is("digraph"):
            self._fail(f"`{visible(self._now.text[:40])}` where `digraph` should be")
        name = "" if self._is("{") else self._identifier("a name")
        self._expect("{")
        self._statements(_Scope({}, {}, {}), 0)
        if self._now.kind != "end":
            self._fail("there is something after the graph", "only one graph can be read")
        edges = self._edges
        if strict:
            edges = list({(each.source, each.target): each for each in edges}.values())
        return DotGraph(name, list(self._nodes.values()), edges)

    def _statements(self, scope: _Scope, depth: int) -> None:
        """Statements up to the brace that ends them."""
        if depth > _MAX_DEPTH:
            self._fail(f"subgraphs are nested more than {_MAX_DEPTH} deep")
        while not self._take("}"):
            if self._now.kind == "end":
                self._fail("the graph is not closed", "was the file cut off?")
            self._statement(scope, depth)
            self._take(";")

    def _statement(self, scope: _Scope, depth: int) -> None:
        for word, defaults in (("node", scope.node), ("edge", scope.edge), ("graph", {})):
            if self._word_is(word):
                defaults |= self._attributes()
                return
        line = self._now.line
        if self._now.kind in ("word", "quoted", "html") and self._after[:2] == ("mark", "="):
            self._at += 2  # an attribute of the graph
            self._identifier("a value")
            return
        ends = [self._end(scope, depth)]
        while self._now.kind == "arrow":
            if self._now.text == "--":
                self._fail("`--` is for graphs without directions", "write `->`")
            self._at += 1
            ends.append(self._end(scope, depth))
        attributes = self._attributes()
        if len(ends) == 1:
            for name in ends[0] if attributes else ():
                self._nodes[name].attributes |= attributes
            return
        for sources, targets in pairwise(ends):
            if len(self._edges) + len(sources) * len(targets) > _MAX_EDGES:
                self._fail(f"the graph has more than {_MAX_EDGES} edges")
            self._edges += [
                DotEdge(a, b, line, {**scope.edge, **attributes}) for a in sources for b in targets
            ]

    def _end(self, scope: _Scope, depth: int) -> list[str]:
        """The nodes at an end of an edge: one, or all of a subgraph."""
        if self._word_is("subgraph") and not self._is("{"):
            self._identifier("a name")
        if self._take("{"):
            inner = _Scope(dict(scope.node), dict(scope.edge), {})
            self._statements(inner, depth + 1)
            scope.inside.update(inner.inside)
            return list(inner.inside)
        line, name = self._now.line, self._identifier("a node")
        while self._take(":"):
            self._identifier("a port")
        if name not in self._nodes:
            self._nodes[name] = DotNode(name, line, dict(scope.node))
        scope.inside[name] = None
        return [name]

    def _attributes(self) -> dict[str, str]:
        found = {}
        while self._take("["):
            while not self._take("]"):
                name = self._identifier("an attribute")
                found[name] = self._identifier("a value") if self._take("=") else "true"
                if not self._take(","):
                    self._take(";")
        return found

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    @property
    def _after(self) -> _Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _is(self, mark: str) -> bool:
        return self._now.kind == "mark" and self._now.text == mark

    def _take(self, mark: str) -> bool:
        if self._is(mark):
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(f"`{visible(self._now.text[:40])}` where `{mark}` should be")

    def _word_is(self, word: str) -> bool:
        if self._now.kind == "word" and self._now.text.lower() == word:
            self._at += 1
            return True
        return False

    def _identifier(self, what: str) -> str:
        token = self._now
        if token.kind not in ("word", "quoted", "html"):
            self._fail(f"`{visible(token.text[:40])}` where {what} should be")
        self._at += 1
        text = token.text
        while token.kind == "quoted" and self._take("+"):
            if self._now.kind != "quoted":
                self._fail("`+` joins quoted texts only")
            text += self._now.text
            self._at += 1
        return text

    def _fail(self, message: str, hint: str | None = None) -> NoReturn:
        raise FormatError(f"{self._source}, line {self._now.line}: {message}", hint=hint)
