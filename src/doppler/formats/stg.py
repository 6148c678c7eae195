"""Kasahara's Standard Task Graphs, without and with communication costs.

```text
2                 tasks, two dummies not counted
0  0  0           entry: number, processing time, number of predecessors
1  20  1  0       a task, and its predecessors
2  10  1  1       with communication costs, each predecessor is followed by its cost: 2 10 1 1 5
3  0  1  2        exit
# …               information, which is not read
```

Costs are abstract: one unit becomes one second. A vertex has the number of its task as its name.
Without communication costs a task makes one tensor, which takes no time to move; with them it makes
one for every successor. Numbers may run over lines as they like.
"""

import re
from typing import NamedTuple

from doppler.errors import FormatError, GraphError
from doppler.formats.costs_of import number_text, seconds_of
from doppler.formats.registry import GraphFormat
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph

_HEAD = re.compile(
    r"\s*(?:#[^\n]*\n\s*)*[0-9]{1,9}[ \t]*\r?\n\s*0[ \t]+[0-9.eE+-]+[ \t]+0[ \t]*(?:\r?\n|$)"
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
_DUMMIES = 2


class _Token(NamedTuple):
    text: str
    line: int


class _Task(NamedTuple):
    seconds: float
    reads: list[tuple[int, float]]  # predecessor, and what it costs to hear from it
    line: int


class _LineError(FormatError):
    """A mistake in a line, to tell which reading of a file got further."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def stg_graph(text: str, source: str, name: str) -> Graph:
    """The graph in the text of a standard task graph."""
    tokens = [
        _Token(word, number)
        for number, line in enumerate(text.splitlines(), start=1)
        if not line.lstrip().startswith("#")
        for word in line.split()
    ]
    try:
        tasks, moves = _Reader(tokens, source, costs=False).tasks(), False
    except _LineError as plain:
        try:
            tasks, moves = _Reader(tokens, source, costs=True).tasks(), True
        except _LineError as costly:
            raise FormatError(max((plain, costly), key=lambda e: e.line).message) from None
    builder = GraphBuilder(name)
    for number, task in enumerate(tasks):
        builder.vertex(str(number), "task", exec_s=task.seconds)
    shared = {} if moves else {i: builder.tensor(i, 0.0, transfer_s=0.0) for i in range(len(tasks))}
    for number, task in enumerate(tasks):
        for before, seconds in task.reads:
            made = builder.tensor(before, 0.0, transfer_s=seconds) if moves else shared[before]
            builder.edge(made, number)
    try:
        return builder.build()
    except GraphError as error:
        raise GraphError(f"{source}: {error.message}", hint=error.hint) from None


class _Reader:
    """Reads the numbers of a file, with or without a cost after each predecessor."""

    def __init__(self, tokens: list[_Token], source: str, *, costs: bool) -> None:
        self._tokens, self._source, self._costs = tokens, source, costs
        self._at = 0

    def tasks(self) -> list[_Task]:
        """The tasks in the order of their numbers."""
        count = self._integer("number of tasks")
        found: list[_Task] = []
        while self._at < len(self._tokens):
            line = self._tokens[self._at].line
            number = self._integer("task number")
            if number != len(found):
                raise self._error(f"task {number}, expected task {len(found)}", line)
            seconds = self._number("processing time")
            reads = {}
            for _ in range(self._integer("number of predecessors")):
                before = self._integer("predecessor")
                if before in reads:
                    raise self._error(f"task {number} has predecessor {before} twice", line)
                reads[before] = self._number("communication cost") if self._costs else 0.0
            found.append(_Task(seconds, list(reads.items()), line))
        if len(found) not in (count, count + _DUMMIES):
            last = self._tokens[-1].line
            raise self._error(
                f"{len(found)} tasks, expected {count} and two dummies; was the file cut off?", last
            )
        for number, task in enumerate(found):
            for before, _ in task.reads:
                if before >= len(found):
                    raise self._error(f"task {number} has predecessor {before}", task.line)
        return found

    def _next(self, what: str) -> _Token:
        if self._at >= len(self._tokens):
            last = self._tokens[-1].line if self._tokens else 1
            raise self._error(f"the file ends where a {what} should be", last)
        self._at += 1
        return self._tokens[self._at - 1]

    def _integer(self, what: str) -> int:
        token = self._next(what)
        if not re.fullmatch(r"[0-9]{1,9}", token.text):
            raise self._error(f"{what} is `{token.text[:40]}`, no whole number", token.line)
        return int(token.text)

    def _number(self, what: str) -> float:
        token = self._next(what)
        if not _NUMBER.fullmatch(token.text):
            raise self._error(f"{what} is `{token.text[:40]}`, no number ≥ 0", token.line)
        return float(token.text)

    def _error(self, message: str, line: int) -> _LineError:
        return _LineError(f"{self._source}, line {line}: {message}", line)


def stg_text(graph: Graph) -> str:
    """A graph as a standard task graph: its seconds, and what depends on what.

    A first and a last task that take no time are the dummies, where all others lie between them;
    else dummies are added. Transfers with seconds of their own become communication costs.
    """
    seconds = seconds_of(graph, "stg")
    size, moves = graph.num_vertices, graph.transfer_s
    reads: list[dict[int, float]] = [{} for _ in range(size)]
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        before = int(graph.tensor_producer[tensor])
        cost = 0.0 if moves is None else float(moves[tensor])
        reads[reader][before] = reads[reader].get(before, 0.0) + cost
    last = {v for row in reads for v in row}
    ends = [v for v in range(size) if v not in last]
    if not _has_dummies(seconds, reads, ends):
        seconds = [0.0, *seconds, 0.0]
        reads = [{before + 1: cost for before, cost in row.items()} or {0: 0.0} for row in reads]
        reads = [{}, *reads, {v + 1: 0.0 for v in ends} or {0: 0.0}]
    with_costs = any(cost for row in reads for cost in row.values())
    lines = [str(len(seconds) - _DUMMIES)]
    for number, row in enumerate(reads):
        words = [str(number), number_text(seconds[number]), str(len(row))]
        for before, cost in sorted(row.items()):
            words += [str(before), number_text(cost)] if with_costs else [str(before)]
        lines.append("  ".join(words))
    return "\n".join([*lines, ""])


def _has_dummies(seconds: list[float], reads: list[dict[int, float]], ends: list[int]) -> bool:
    size = len(seconds)
    if size < _DUMMIES or seconds[0] or seconds[-1]:
        return False
    return ends == [size - 1] and [v for v in range(size) if not reads[v]] == [0]


FORMAT = GraphFormat(
    name="stg",
    description="standard task graphs, with or without communication costs",
    matches=lambda text: _HEAD.match(text) is not None,
    read=stg_graph,
    write=stg_text,
)
