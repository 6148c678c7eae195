"""WfFormat, the JSON files of WfCommons, of the schema versions 1.4 to 1.6.

A task is a vertex, named by its id, whose kind is the program it runs and whose seconds are its
runtime. A file that a task writes is a tensor of its size; one that no task writes is an input, and
is everywhere. Where a task depends on another without reading a file of it, a tensor of no bytes
stands for that.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from doppler.base.arrays import rows
from doppler.base.files import parse_json, to_json
from doppler.errors import FormatError, GraphError
from doppler.formats.costs_of import seconds_of
from doppler.formats.registry import GraphFormat
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph
from doppler.graph.ops import OpKind

VERSIONS = ("1.4", "1.5", "1.6")
_FLAT = "1.4"  # with runtimes and files in the tasks themselves
_WRITTEN = "1.5"
_NOT_RUN = "1970-01-01T00:00:00Z"  # when a workflow was executed that never was
_ODD = re.compile(r"[^0-9a-zA-Z_.#:/-]")


class _Task(NamedTuple):
    id: str
    title: str  # by which older files name parents
    program: str
    where: str
    parents: list[str]
    reads: list[str]  # files
    writes: list[str]
    seconds: float


def wfformat_graph(text: str, source: str, name: str) -> Graph:
    """The graph of a workflow."""
    document = parse_json(text, source)
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if version not in VERSIONS:
        raise FormatError(
            f"{source}: `schemaVersion` is {version!r}, this reader knows {', '.join(VERSIONS)}"
        )
    workflow = _object(document.get("workflow"), f"{source}: workflow")
    is_flat = version == _FLAT and "specification" not in workflow
    tasks, sizes = _flat(workflow, source) if is_flat else _parted(workflow, source)
    title = document.get("name")
    try:
        return _build(title if isinstance(title, str) and title else name, tasks, sizes)
    except GraphError as error:
        raise GraphError(f"{source}: {error.message}", hint=error.hint) from None


def _flat(workflow: dict[str, Any], source: str) -> tuple[list[_Task], dict[str, float]]:
    """Tasks and sizes of files where a task has both in itself."""
    tasks, sizes = [], dict[str, float]()
    key = "tasks" if "tasks" in workflow else "jobs"
    for i, entry in enumerate(_list(workflow.get(key), f"{source}: workflow.{key}")):
        where = f"{source}: workflow.{key}[{i}]"
        row = _object(entry, where)
        files: dict[str, list[str]] = {"input": [], "output": []}
        for j, found in enumerate(_list(row.get("files", []), f"{where}.files")):
            file = _object(found, f"{where}.files[{j}]")
            link = file.get("link")
            if link not in files:
                raise FormatError(f"{where}.files[{j}].link is {link!r}, not input or output")
            title = _text(file, ("id", "name"), f"{where}.files[{j}]")
            sizes[title] = _number(file, ("sizeInBytes", "size"), f"{where}.files[{j}]")
            files[link].append(title)
        seconds = _number(row, ("runtimeInSeconds", "runtime"), where)
        tasks.append(_task(row, where, files["input"], files["output"], seconds))
    return tasks, sizes


def _parted(workflow: dict[str, Any], source: str) -> tuple[list[_Task], dict[str, float]]:
    """Tasks and sizes of files where what is specified and what was executed are apart."""
    at = f"{source}: workflow.specification"
    specification = _object(workflow.get("specification"), at)
    if "execution" not in workflow:
        raise FormatError(
            f"{source}: `workflow.execution` is missing, so tasks have no runtimes",
            hint="a workflow must have been executed, or have been given runtimes",
        )
    runtimes = {}
    execution = _object(workflow["execution"], f"{source}: workflow.execution")
    for i, entry in enumerate(_list(execution.get("tasks"), f"{source}: workflow.execution.tasks")):
        where = f"{source}: workflow.execution.tasks[{i}]"
        row = _object(entry, where)
        runtimes[_text(row, ("id",), where)] = _number(row, ("runtimeInSeconds",), where)
    sizes = {}
    for i, entry in enumerate(_list(specification.get("files", []), f"{at}.files")):
        file = _object(entry, f"{at}.files[{i}]")
        title = _text(file, ("id",), f"{at}.files[{i}]")
        sizes[title] = _number(file, ("sizeInBytes",), f"{at}.files[{i}]")
    tasks = []
    for i, entry in enumerate(_list(specification.get("tasks"), f"{at}.tasks")):
        where = f"{at}.tasks[{i}]"
        row = _object(entry, where)
        reads = _texts(row.get("inputFiles", []), f"{where}.inputFiles")
        writes = _texts(row.get("outputFiles", []), f"{where}.outputFiles")
        for title in (*reads, *writes):
            if title not in sizes:
                raise FormatError(f"{where}: file `{title[:80]}` is not in `files`")
        own = _text(row, ("id", "name"), where)
        if own not in runtimes:
            raise FormatError(f"{where}: task `{own[:80]}` is not in `workflow.execution.tasks`")
        tasks.append(_task(row, where, reads, writes, runtimes[own]))
    return tasks, sizes


def _task(
    row: dict[str, Any], where: str, reads: list[str], writes: list[str], seconds: float
) -> _Task:
    own = _text(row, ("id", "name"), where)
    parents = _texts(row.get("parents", []), f"{where}.parents")
    title = row.get("name") or own
    program = row.get("category") or title
    kind = program if isinstance(program, str) and program != OpKind.INPUT else "task"
    return _Task(own, str(title), kind, where, parents, reads, writes, seconds)


def _build(name: str, tasks: list[_Task], sizes: Mapping[str, float]) -> Graph:
    builder = GraphBuilder(name)
    number: dict[str, int] = {}
    for task in tasks:
        if task.id in number:
            raise FormatError(f"{task.where}: there are two tasks `{task.id[:80]}`")
        number[task.id] = builder.vertex(task.id, task.program, exec_s=task.seconds)
    titles = Counter(task.title for task in tasks)
    by_title = {task.title: task.id for task in tasks if titles[task.title] == 1}
    tensors: dict[str, int] = {}
    maker: dict[str, str] = {}
    for task in tasks:
        for title in dict.fromkeys(task.writes):
            if title in maker:
                raise FormatError(
                    f"{task.where}: file `{title[:80]}` is written by `{maker[title][:80]}` too"
                )
            maker[title] = task.id
            tensors[title] = builder.tensor(number[task.id], sizes[title], transfer_s=None)
    taken = set(number)
    orders: dict[str, int] = {}  # tensors that only say what comes first
    for task in tasks:
        heard = set()
        for title in dict.fromkeys(task.reads):
            if maker.get(title) == task.id:  # changed in place
                continue
            if title not in tensors:
                tensors[title] = builder.input(_unique(title, taken), output_bytes=sizes[title])
            heard.add(maker.get(title))
            builder.edge(tensors[title], number[task.id])
        for parent in dict.fromkeys(task.parents):
            found = parent if parent in number else by_title.get(parent)
            if found is None:
                raise FormatError(f"{task.where}: there is no parent `{parent[:80]}`")
            if found not in heard:
                if found not in orders:
                    orders[found] = builder.tensor(number[found], 0.0)
                heard.add(found)
                builder.edge(orders[found], number[task.id])
    return builder.build()


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def wfformat_text(graph: Graph) -> str:
    """A graph as a workflow: tensors are files, seconds are runtimes.

    No workflow was run, so it is executed in 1970 and takes no time.
    """
    seconds = seconds_of(graph, "wfformat")
    if graph.transfer_s is not None:
        raise GraphError(
            f"graph `{graph.name}` has seconds of transfers, and wfformat has only sizes",
            hint="write it as `stg` or `dot`",
        )
    taken: set[str] = set()
    ids = [_unique_id(name, taken) for name in graph.vertex_names]
    makers, sizes = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
    files, count = [], dict[int, int]()
    for v in makers:
        count[v] = count.get(v, 0) + 1
        is_alone = graph.is_input[v] and count[v] == 1
        files.append(ids[v] if is_alone else _unique_id(f"{ids[v]}/{count[v]}", taken))
    reads: dict[int, list[int]] = {}
    for t, v in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        reads.setdefault(v, []).append(t)
    tasks, runs, made = [], [], rows(graph.output_ptr, graph.output_tensor)
    children: dict[int, dict[str, None]] = {}
    for v, found in reads.items():
        for t in found:
            children.setdefault(makers[t], {})[ids[v]] = None
    for v in graph.assigned.tolist():
        parents = dict.fromkeys(makers[t] for t in reads.get(v, ()))
        tasks.append(
            {
                "name": graph.kinds[v],
                "id": ids[v],
                "parents": [ids[p] for p in parents if not graph.is_input[p]],
                "children": list(children.get(v, ())),
                "inputFiles": [files[t] for t in reads.get(v, ())],
                "outputFiles": [files[t] for t in made[v]],
            }
        )
        runs.append({"id": ids[v], "runtimeInSeconds": seconds[v]})
    listed = [{"id": f, "sizeInBytes": round(s)} for f, s in zip(files, sizes, strict=True)]
    workflow = {
        "specification": {"tasks": tasks, "files": listed},
        "execution": {"makespanInSeconds": 0, "executedAt": _NOT_RUN, "tasks": runs},
    }
    return to_json({"name": graph.name, "schemaVersion": _WRITTEN, "workflow": workflow})


def _unique_id(name: str, taken: set[str]) -> str:
    """A name with no characters but those that ids may have."""
    found, count = _ODD.sub("_", name) or "_", 1
    while found in taken:
        count += 1
        found = f"{_ODD.sub('_', name)}#{count}"
    taken.add(found)
    return found


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be an object, not {type(value).__name__}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{where} must be a list, not {type(value).__name__}")
    return value


def _texts(value: Any, where: str) -> list[str]:
    for i, each in enumerate(_list(value, where)):
        if not isinstance(each, str):
            raise FormatError(f"{where}[{i}] must be a text, not {type(each).__name__}")
    return list(value)


def _text(row: dict[str, Any], keys: Iterable[str], where: str) -> str:
    for key in keys:
        if key in row:
            if not isinstance(row[key], str) or not row[key]:
                raise FormatError(f"{where}.{key} must be a text, not {row[key]!r:.40}")
            return str(row[key])
    raise FormatError(f"{where}: key `{next(iter(keys))}` is missing")


def _number(row: dict[str, Any], keys: Iterable[str], where: str) -> float:
    for key in keys:
        if key in row:
            value = row[key]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= 1e30:
                raise FormatError(f"{where}.{key} must be a number ≥ 0, not {value!r:.40}")
            return float(value)
    raise FormatError(f"{where}: key `{next(iter(keys))}` is missing")


def _matches(text: str) -> bool:
    is_ours = re.search(r'"format"\s*:\s*"doppler-', text[:4096]) is not None
    is_json = re.match(r"\s*\{", text) is not None
    return is_json and not is_ours and re.search(r'"schemaVersion"\s*:', text) is not None


FORMAT = GraphFormat(
    name="wfformat",
    description="workflows of WfCommons (schema 1.4 to 1.6)",
    matches=_matches,
    read=wfformat_graph,
    write=wfformat_text,
)
