"""Tiny valid files of every kind that `dop` reads, and strategies that break them."""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from io import BytesIO
from math import inf, isfinite, nan
from typing import Any
from warnings import catch_warnings, simplefilter
from zipfile import ZipFile

import numpy as np
from hypothesis import strategies as st
from policies.arrays.making import array_policy, file_of, header_of, metadata_of
from strategies import broken_files, changed, edited

from doppler import programs
from doppler.assignment import assignment_document, assignment_for
from doppler.base.files import to_json
from doppler.graph import graph_from_json, graph_to_json
from doppler.memory_plan import MemoryPlan
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.scheduler.list_scheduling import list_schedule
from doppler.sharding import shard
from doppler.sim import simulate
from doppler.topology import topology_from_text, topology_to_json
from doppler.trace import trace_to_json

# Sums and products of larger ones overflow; numbers that are not finite are of any size.
LARGEST = 1e308

# What must stay as it is, for the file to be read at all.
FIXED = re.compile(r"doppler-|shard|reduce|float|F32|relu|sha256:|[0-9{]|default")

NUMBERS = [0, -0.0, 5e-324, 1e-310, 0.1, -1, 1, 7, 1e15, 2**53, 1e30]
NUMBERS += [2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**25, 10**400, inf, -inf, nan, True, None, "1"]
NUMBERS += [x for x in (1e154, 1e200, 1e308, 10**300) if x <= LARGEST]
TEXTS = ["", " ", "\0", "\n", "\r", "\t", "\x1b[2J", "\x9b1m", "\x1b]0;title\x07", "\x7f", "\x85"]
TEXTS += ["[/bold]", "[bold]", "[link=x]y", ":smile:", "\\", "\\x1b", "{0}", "%s", "`", '"', "'"]
TEXTS += ["x\u202ey", "\u2066", "\u200b", "\ufeff", "\u2028", "\ud800", "\udcff", "\U000e0001"]
TEXTS += ["e\u0301", "\u0600", "漢字", "🏳️‍🌈", "a" * 5000, "é" * 300, "-", "/dev/null"]
TEXTS += ["../x", "a,b"]
TEXTS += [
    "input",
    "streamed",
    "others",
    "p100x4",
    "reference:2",
    "reference:0",
    "doppler-graph",
    "null",
    "nan",
    "0",
]

GRAPH = {
    "format": "doppler-graph",
    "version": 1,
    "name": "tiny",
    "vertices": {
        "name": ["x", "a", "b", "c"],
        "kind": ["input", "matmul", "matmul", "add"],
        "flops": [0, 2000000000, 1000000, 7],
        "bytes": [0, 3000000, 1000, 7],
        "meta_op": ["", "m", "m", ""],
        "role": ["", "shard", "shard", "reduce"],
        "input_kind": ["resident", "", "", ""],
        "temporary_bytes": [0, 0, 9, 0],
    },
    "tensors": {"producer": [0, 1, 2, 3], "bytes": [4000, 5000, 6000, 8]},
    "edges": {"tensor": [0, 0, 1, 2], "reader": [1, 2, 3, 3]},
}
TIMED = changed(GRAPH, {"vertices.exec_s": [0, 2, 3, 0.5], "tensors.transfer_s": [0, 1, 1, 0]})
KERNELS = [
    None,
    {"op": "relu", "inputs": [0], "shapes": [[2, 3]], "dtypes": ["float32"]},
    {"op": "relu", "inputs": [0], "shapes": [[2, 3]], "dtypes": ["float32"]},
    {"op": "add", "inputs": [1, 2], "shapes": [[2, 3]], "dtypes": ["float32"], "attributes": {}},
]
COMPUTED = changed(GRAPH, {"vertices.kernel": KERNELS, "vertices.dtype": ["float32"] * 4})
PER_DEVICE = changed(GRAPH, {"vertices.exec_s": [0, [2, 1], [3, 3], [0.5, 1]]})
IMPORTED = {"format": "pt2", "file": "m.pt2", "sha256": "0" * 64, "coarsen": "pieces"}
IMPORTED = changed(COMPUTED, {"provenance": IMPORTED})
EMPTY = {
    "format": "doppler-graph",
    "version": 1,
    "vertices": {"kind": []},
    "tensors": {"producer": [], "bytes": []},
    "edges": {"tensor": [], "reader": []},
}
STANDARD = "2\n0 0 0\n1 20 1 0 5\n2 10 1 1 7\n3 0 1 2 0\n# information\n"
DOT = 'digraph "g" { node [cost=2]; a -> {b; "c d"} [size=1000]; b [kind="mat" + "mul"] }\n'
WORKFLOW = {
    "name": "w",
    "schemaVersion": "1.4",
    "workflow": {
        "tasks": [
            {"name": "t1", "runtime": 1.5, "parents": [], "children": ["t2"], "files": []},
            {
                "name": "t2",
                "runtime": 2,
                "parents": ["t1"],
                "files": [{"link": "input", "name": "f", "size": 7}],
            },
        ]
    },
}
REFERENCE = "5\n0, 2,\n0, 1,\n1, 2,\n1000,4000,einsummable\n10,20,select\n3,4\n"
TOML = """\
format = "doppler-topology"
version = 1
name = "pair"
description = "two devices"
host = { dispatch_s = 0.000001, completion_s = 0.000002, ahead = 1 }
[[devices]]
name = "d"
count = 2
flops_per_s = { float32 = 2000000000000, float16 = 4000000000000 }
memory_bytes_per_s = 100000000000
memory_bytes = 16000000000
slots = 2
launch_s = 0.000005
group = "left"
[[links]]
name = "bus"
bandwidth_bytes_per_s = 1000000000
latency_s = 0.00001
lanes = 1
shared = true
pairs = "others"
[[links]]
name = "pcie"
bandwidth_bytes_per_s = 1000000000
host = "others"
[contention]
elementwise = 1.3
"""
CONFIG = """\
preset = "default"
stages = ["imitation", "sim"]
seed = 3
episodes_per_batch = 4
[policy]
kind = "doppler"
width = 8
rounds = 1
[sim]
episodes = 10
[imitation]
episodes = 10
"""

_graph, _topology = graph_from_json(json.dumps(GRAPH)), topology_from_text(TOML, "pair")
_devices = np.array([-1, 0, 1, 0])
_assignment = assignment_for(
    _graph, _topology, _devices, order=np.array([1, 2, 3]), placer="single"
)
ASSIGNMENT = assignment_document(_assignment)
_schedule = list_schedule(Problem(_graph, _topology), _assignment)
SCHEDULED = assignment_document(replace(_assignment, schedule=_schedule))
# Vertex 1's output leaves for the host, makes room for a transfer, and comes back for vertex 3.
_plan = MemoryPlan([1, 1], [0, 0], [False, True], [0, 0, 1], [3], [5], [4])
PLANNED = assignment_document(replace(_assignment, memory=_plan))
UNNAMED = {"format": "doppler-assignment", "version": 1, "devices": [None, 0, 1, 0]}
UNNAMED |= {"placer": "me", "order": [2, 1, 3]}
_program = shard(programs.chainmm(size=4), parts=2)
PROGRAM = json.loads(graph_to_json(_program))  # with kernels that can run
PROGRAM_DEVICES = [None if is_input else v % 2 for v, is_input in enumerate(_program.is_input)]
TRACE = json.loads(trace_to_json(simulate(_graph, _topology, _assignment)))
TOPOLOGY = json.loads(topology_to_json(_topology))
GRAPHS = (GRAPH, TIMED, COMPUTED, PER_DEVICE, IMPORTED, EMPTY)

_config = PolicyConfig(width=2, rounds=1)
_policy = array_policy(_config)
_weights = b"".join(array.tobytes() for array in _policy.tensors.values())
HEADER = header_of(_policy.tensors, metadata_of(_config, provenance='{"graphs": ["g"]}'))
CHECKPOINT = file_of(HEADER, _weights)

_arrays = BytesIO()
np.savez(_arrays, x=np.zeros((2, 3), np.float32), y=np.arange(3))
ARRAYS = _arrays.getvalue()
_packed = BytesIO()
np.savez_compressed(_packed, x=np.zeros((2, 3), np.float32), y=np.arange(300))
PACKED = _packed.getvalue()


def _is_moderate(data: bytes) -> bool:
    """Whether no finite number in a text is above the largest."""
    for found in re.findall(rb"[0-9][0-9_.]*(?:[eE]\+?[0-9_]+)?", data):
        digits = found.replace(b"_", b"")
        try:
            number = float(digits) if len(digits) < 400 else inf
        except ValueError:
            continue
        if isfinite(number) and number > LARGEST:
            return False
    return True


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def dumped(document: Any) -> bytes:
    """JSON as people may write it: halves of surrogate pairs as escapes or as they are."""
    return json.dumps(document).encode()


@st.composite
def mostly(draw: st.DrawFn, *strategies: st.SearchStrategy[bytes]) -> bytes:
    """One of some strategies, the first three times as often as the second, and so on."""
    chosen = 0
    while chosen < len(strategies) - 1 and draw(st.integers(0, 2)) == 0:
        chosen += 1
    return draw(strategies[chosen])


garbage = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(encoded),
    st.sampled_from(
        [b"", b"\xef\xbb\xbf", b"\0", b"null", b"[]", b"{}", b"1", b'"x"', b"PK\x03\x04"]
    ),
    st.sampled_from([b"\xff\xfe{\0}\0", b"{" * 3000, b"[" * 100_000, b"1\n\n\n\n", b"0\n\n\n\n"]),
    st.sampled_from([b'{"a":' * 3000, b"a = " + b"[" * 3000, b"7" * 5000, b"a=" + b"1" * 5000]),
)


@st.composite
def mutated_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes exchanged, cut out, put in, or cut off at the end."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(result) - 1, 0)))
        match draw(st.sampled_from(["set", "insert", "cut", "end"])):
            case "set":
                result[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                result[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "cut":
                del result[at : at + draw(st.integers(1, 9))]
            case _:
                del result[at:]
    return bytes(result)


@st.composite
def renamed(draw: st.DrawFn, document: Any) -> Any:
    """A document in which some names, wherever they occur, are others; now and then, any text."""
    values, keys = (sorted(set(texts)) for texts in _texts(document))
    names = [text for text in values if not FIXED.match(text)]
    some = names if names and draw(st.integers(0, 5)) else values + keys
    old = draw(st.lists(st.sampled_from(some), min_size=1, max_size=4, unique=True))
    new = st.sampled_from(TEXTS) | st.text(max_size=8) | st.sampled_from(TEXTS).map("a".__add__)
    return _exchanged(document, {name: draw(new) for name in old})


def _texts(value: Any) -> tuple[list[str], list[str]]:
    """The texts that are values in a JSON value, and those that are keys."""
    if isinstance(value, str):
        return [value], []
    if not isinstance(value, dict | list):
        return [], []
    below = [_texts(item) for item in (value.values() if isinstance(value, dict) else value)]
    keys = list(value) if isinstance(value, dict) else []
    return [text for one, _ in below for text in one], keys + [k for _, two in below for k in two]


def _exchanged(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {texts.get(k, k): _exchanged(v, texts) for k, v in value.items()}
    if isinstance(value, list):
        return [_exchanged(item, texts) for item in value]
    return texts.get(value, value) if isinstance(value, str) else value


@st.composite
def renumbered(draw: st.DrawFn, document: Any) -> Any:
    """A document with other numbers, and with lists that are longer or shorter than they were."""
    document = deepcopy(document)
    spots = [spot for spot in _spots(document) if not isinstance(spot[0][spot[1]], str | dict)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(spots))
        if isinstance(value := holder[key], list):
            if draw(st.integers(0, 2)):
                continue  # the other columns are as long as they were
            changes = [value * 2, value[:1], value[1:], value[::-1], [], (value * 1000)[:2000]]
            holder[key] = draw(st.sampled_from(changes))
        else:
            holder[key] = draw(st.sampled_from(NUMBERS) | st.integers(0, 5))
    return document


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    below = [s for k in keys if isinstance(value[k], dict | list) for s in _spots(value[k])]
    return [(value, key) for key in keys] + below


def json_files(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Files that hold, about, one of some JSON documents."""
    some = st.sampled_from(documents)
    broken = some.flatmap(lambda document: broken_files(json.dumps(document))).map(encoded)
    mutated = some.flatmap(lambda document: mutated_bytes(dumped(document)))
    whole = st.one_of(
        some.flatmap(renamed).map(dumped),
        some.flatmap(renumbered).map(dumped),
        some.flatmap(renumbered).flatmap(renamed).map(dumped),
        some.map(to_json).map(encoded),
    )
    return mostly(whole, broken | mutated, garbage).filter(_is_moderate)


def text_files(text: str) -> st.SearchStrategy[bytes]:
    """Files that hold, about, a text that is not JSON."""
    broken = edited(text).map(encoded) | mutated_bytes(text.encode())
    whole = _reworded(text).map(encoded) | st.just(text.encode())
    return mostly(whole, broken, garbage).filter(_is_moderate)


@st.composite
def _reworded(draw: st.DrawFn, text: str) -> str:
    """The text with some of its numbers and words exchanged."""
    words = re.split(r'("[^"\n]*"|[0-9.]+)', text)
    for _ in range(draw(st.integers(1, 3))):
        at = 2 * draw(st.integers(0, (len(words) - 3) // 2)) + 1
        new = draw(st.sampled_from(NUMBERS).map(str) | st.sampled_from(TEXTS))
        quoted = words[at].startswith('"') and draw(st.integers(0, 5)) > 0
        words[at] = json.dumps(new, ensure_ascii=draw(st.booleans())) if quoted else new
    return "".join(words)


def _checkpoint_file(document: Any) -> bytes:
    return file_of(document, _weights)


@st.composite
def mutated_weights(draw: st.DrawFn) -> bytes:
    """A checkpoint with other weights, of which some are not numbers."""
    weights = np.frombuffer(_weights, np.float32).copy()
    values = [0.0, -0.0, 1e-45, 1e-30, 1e10, 1e30, 3e38, inf, -inf, nan]
    value = draw(st.sampled_from([x for x in values if x <= LARGEST / 1e20 or not isfinite(x)]))
    weights[draw(st.integers(0, len(weights) - 1)) :: draw(st.integers(1, 50))] = value
    return file_of(HEADER, weights.tobytes())


@st.composite
def rewired(draw: st.DrawFn, document: Any) -> Any:
    """A graph whose kernels have parts of each other, or odd ones; none that takes much memory."""
    document = deepcopy(document)
    kernels = [kernel for kernel in document["vertices"]["kernel"] if kernel is not None]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(_spots(draw(st.sampled_from(kernels)))))
        other, its_key = draw(st.sampled_from(_spots(draw(st.sampled_from(kernels)))))
        odd = [None, True, -1, 0, 1, 2, 100, 1.5, "", "x", "sum", "\x1b[2J", [], {}, [0, 1], [[1]]]
        holder[key] = deepcopy(draw(st.just(other[its_key]) | st.sampled_from(odd)))
    return document


@cache
def piece_graph() -> Any:
    """A graph of pieces, which needs torch."""
    from engine.two_outputs import two_outputs

    return json.loads(graph_to_json(two_outputs()))


@cache
def model_file() -> bytes:
    """A small model as torch saves it, with a size that is a symbol."""
    import torch

    module, x, file = torch.nn.Linear(2, 2), torch.ones(3, 2), BytesIO()
    shapes = ({0: torch.export.Dim("n", max=9)},)
    with catch_warnings():
        simplefilter("ignore")
        program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
        torch.export.save(program, file)
    return file.getvalue()


@cache
def onnx_file() -> bytes:
    """A small ONNX model, with a loop, constants, and a size that is a symbol."""
    from onnx_models import make

    text = (
        "m (float[n, 4] x) => (float[n, 4] y) { s = Shape(x)  r = Reshape(x, s)"
        " z = Loop (count, , r) <body = step (int64 i, bool go, float[n, 4] state)"
        "   => (bool on, float[n, 4] new) { on = Identity(go)  new = Tanh(state) }>"
        " y = MatMul(z, w) }"
    )
    data: bytes = make(text, {"w": (4, 4)}, count=np.array(3)).SerializeToString()
    return data


@st.composite
def _remade_onnx(draw: st.DrawFn) -> bytes:
    """An ONNX model with a name, a kind of operation, a size or a number exchanged."""
    from onnx_models import onnx

    model = onnx.ModelProto.FromString(onnx_file())
    nodes = list(model.graph.node)
    names = [name for node in nodes for name in (*node.input, *node.output)]
    name = draw(st.sampled_from([*names, "w", *(t for t in TEXTS if t.isprintable())]))
    number = draw(st.sampled_from([-1, 0, 1, 3, 2**31, 2**62]))
    node = draw(st.sampled_from(nodes))
    match draw(st.sampled_from(["read", "make", "op", "weight", "size", "number", "drop"])):
        case "read":
            node.input[draw(st.integers(0, len(node.input) - 1))] = name
        case "make":
            node.output[0] = name
        case "op":
            node.op_type = draw(
                st.sampled_from(["Relu", "If", "Constant", "Einsum", "Tile", "Odd"])
            )
        case "weight":
            model.graph.initializer[0].dims[0] = number
        case "size":
            model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = number
        case "number":
            model.graph.initializer[1].raw_data = np.array(number).tobytes()
        case _:
            model.graph.node.remove(node)
    data: bytes = model.SerializeToString()
    return data


@st.composite
def remodelled(draw: st.DrawFn) -> bytes:
    """A model in which one of the documents is another."""
    file = BytesIO()
    with ZipFile(BytesIO(model_file())) as old, ZipFile(file, "w") as new:
        documents = ("model.json", "weights_config.json")
        parts = [name for name in old.namelist() if name.endswith(documents)]
        changed_part = draw(st.sampled_from(parts))
        for name in old.namelist():
            data = old.read(name)
            if name == changed_part:
                document = json.loads(data)
                data = dumped(draw(renamed(document) | renumbered(document)))
            new.writestr(name, data)
    return file.getvalue()


models = st.deferred(
    lambda: mostly(remodelled(), mutated_bytes(model_file()) | st.just(model_file()), garbage)
)
pieces = st.deferred(lambda: (rewired(piece_graph()) | renamed(piece_graph())).map(dumped))
kernels = rewired(PROGRAM).map(dumped) | renamed(PROGRAM).map(dumped)
others = text_files(REFERENCE) | text_files(STANDARD) | text_files(DOT) | json_files([WORKFLOW])
graphs = mostly(json_files(GRAPHS), others)
onnx_models = st.deferred(lambda: mostly(mutated_bytes(onnx_file()), st.just(onnx_file()), garbage))
topologies = mostly(json_files([TOPOLOGY]) | text_files(TOML))
assignments = json_files([ASSIGNMENT, SCHEDULED, PLANNED, UNNAMED])
traces = json_files([TRACE])
configs = text_files(CONFIG) | json_files([{"seed": 3, "sim": {"episodes": 5}, "stages": ["sim"]}])
_told = st.sampled_from(TEXTS) | st.text(max_size=8)
_provenance = st.dictionaries(_told, _told | st.integers() | st.just([1, None]), max_size=3)
_documented = _provenance.map(
    lambda told: changed(HEADER, {"__metadata__.provenance": json.dumps(told)})
)
checkpoints = mostly(
    st.one_of(
        _documented.map(_checkpoint_file),
        renamed(HEADER).map(_checkpoint_file),
        renumbered(HEADER).map(_checkpoint_file),
        mutated_weights(),
    ),
    st.one_of(
        broken_files(json.dumps(HEADER)).map(encoded).map(_checkpoint_file),
        mutated_bytes(CHECKPOINT),
        mutated_bytes(CHECKPOINT[:200]),
    ),
    garbage | garbage.map(_checkpoint_file),
)
arrays = mostly(
    mutated_bytes(ARRAYS) | mutated_bytes(PACKED),
    st.just(ARRAYS) | mutated_bytes(ARRAYS[:90]),
    garbage,
)
