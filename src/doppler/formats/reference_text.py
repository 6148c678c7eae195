"""The text files that the paper's authors publish their graphs in.

```text
112                     all blocks
0, 1, 5, …              those that are inputs, numbered among all blocks
0, 0, 1, …              sources of the edges, numbered among the other blocks
4, 5, 9, …              their destinations
1000,4000,einsummable   compute cost, communication cost and, perhaps, kind; one line per block
```

Costs are abstract: one unit becomes one second. Sizes in bytes are not in the file and stay 0;
edges from inputs are not in it either. An edge listed twice is one edge.
"""

import re

from doppler.errors import FormatError, GraphError
from doppler.formats.registry import GraphFormat
from doppler.graph.builder import build_graph
from doppler.graph.graph import Graph
from doppler.graph.ops import OpKind

KINDS = (
    "input",
    "formation",
    "complexer",
    "squeezer",
    "fill",
    "select",
    "einsummable",
    "unknown",
)


def reference_text_graph(text: str, source: str, name: str) -> Graph:
    """The graph in the text of one of the authors' files."""
    lines = [line.strip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 4:
        raise FormatError(
            f"{source} has {len(lines)} lines, a reference text at least 4",
            hint="was the file cut off?",
        )
    (total,) = _integers(lines[0], f"{source}, line 1", count=1)
    inputs = _integers(lines[1], f"{source}, line 2")
    sources = _integers(lines[2], f"{source}, line 3")
    targets = _integers(lines[3], f"{source}, line 4")
    rows = [_cost_row(line, f"{source}, line {i}") for i, line in enumerate(lines[4:], start=5)]
    _check_counts(source, total, inputs, sources, targets, len(rows))
    try:
        return _build(name, total, inputs, list(zip(sources, targets, strict=True)), rows)
    except GraphError as error:
        raise GraphError(f"{source}: {error.message}", hint=error.hint) from None


def _build(
    name: str,
    total: int,
    inputs: list[int],
    edges: list[tuple[int, int]],
    rows: list[tuple[float, float, str]],
) -> Graph:
    is_input = [False] * total
    for block in inputs:
        is_input[block] = True
    blocks = [block for block in range(total) if not is_input[block]]  # by the edges' numbering
    exec_s = [0.0] * total
    kinds = [str(OpKind.INPUT)] * total
    for block, (compute, _, kind) in zip(blocks, rows, strict=True):
        exec_s[block] = compute
        kinds[block] = kind
    unique = list(dict.fromkeys(edges))
    return build_graph(
        name=name,
        kinds=kinds,
        exec_s=exec_s,
        tensor_producer=blocks,
        tensor_bytes=[0] * len(blocks),
        transfer_s=[row[1] for row in rows],
        edge_tensor=[source for source, _ in unique],
        edge_reader=[blocks[target] for _, target in unique],
    )


def _integers(line: str, where: str, count: int | None = None) -> list[int]:
    items = [item.strip() for item in line.split(",")]
    items = [item for item in items if item]
    for item in items:
        if not re.fullmatch(r"[0-9]{1,12}", item):
            raise FormatError(f"{where}: `{item[:40]}` is not a whole number ≥ 0")
    if count is not None and len(items) != count:
        raise FormatError(f"{where} has {len(items)} numbers, expected {count}")
    return [int(item) for item in items]


def _cost_row(line: str, where: str) -> tuple[float, float, str]:
    fields = [field.strip() for field in line.split(",")]
    if fields and not fields[-1]:
        fields.pop()
    if not 2 <= len(fields) <= 3:
        raise FormatError(
            f"{where} has {len(fields)} fields", hint="compute_cost,communication_cost[,type]"
        )
    kind = fields[2] if len(fields) == 3 else "unknown"
    if kind not in KINDS:
        raise FormatError(f"{where}: unknown type `{kind[:40]}`", hint=f"known: {', '.join(KINDS)}")
    try:
        compute, communication = float(fields[0]), float(fields[1])
    except ValueError:
        raise FormatError(f"{where}: `{line[:40]}` does not begin with two numbers") from None
    # A block that has a line is assigned, whatever its type says.
    return compute, communication, "unknown" if kind == "input" else kind


def _check_counts(
    source: str, total: int, inputs: list[int], sources: list[int], targets: list[int], rows: int
) -> None:
    if len(sources) != len(targets):
        raise FormatError(f"{source}: {len(sources)} edge sources but {len(targets)} destinations")
    if len(set(inputs)) != len(inputs):
        raise FormatError(f"{source}: an input block is listed twice")
    if inputs and max(inputs) >= total:
        raise FormatError(f"{source}: input block {max(inputs)}, but there are {total} blocks")
    if total - len(inputs) != rows:
        raise FormatError(
            f"{source}: {total} blocks less {len(inputs)} inputs leave {total - len(inputs)}, "
            f"but {rows} have costs",
            hint="was the file cut off?",
        )
    if sources and max(*sources, *targets) >= rows:
        raise FormatError(
            f"{source}: an edge names block {max(*sources, *targets)}, "
            f"but blocks run from 0 to {rows - 1}"
        )


FORMAT = GraphFormat(
    name="reference-text",
    description="the text files of the paper's authors, with abstract costs",
    matches=lambda head: re.match(r"\s*[0-9]{1,12}\s*\n[0-9, \t]*\r?\n", head) is not None,
    read=reference_text_graph,
)
