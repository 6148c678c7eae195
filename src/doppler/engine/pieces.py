"""Pieces: kernels that are sequences of ATen calls and return tensors of their own.

A piece is data, so that a graph file holds it whole. Its kernel has the op `piece` and the
attributes

- `calls`: a list of `[name, arguments, keywords]`: `["aten.relu.default", [{"in": 0}], {}]`;
- `returns`: what the piece returns, a reference for each output;
- `results` and `modules`, for people and other programs: names of outputs, paths of modules.

`{"in": k}` is what fills input slot k, `{"at": i}` what call i returned, `{"at": [i, j]}` part j of
it. `{"dtype": "float32"}`, `{"memory_format": "channels_last"}`, `{"layout": "strided"}`,
`{"float": "-inf"}`, `{"complex": [0.0, 1.0]}` and `{"device": true}`, the device that the piece
runs on, stand for what JSON lacks. Other values are as they are.

What a piece returns is not copied into an arena: it stays in a cell until its readers are done.
Pieces of ONNX models, in `onnx_pieces`, are run in the same way.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from doppler.engine.operands import Launch
from doppler.errors import EngineError
from doppler.graph.graph import Kernel
from doppler.graph.ops import ONNX_PIECE

PIECE = "piece"  # op of the kernels
_PIECES = (PIECE, ONNX_PIECE)

Function = Callable[..., tuple[torch.Tensor, ...]]  # of the tensors in the input slots

# What computes with sizes of tensors, beside ATen.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"operator.{name}": getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"),
        )
    },
    "torch.sym_float": torch.sym_float,
    "torch.sym_int": torch.sym_int,
    "torch.sym_max": torch.sym_max,
    "torch.sym_min": torch.sym_min,
    "torch.sym_not": torch.sym_not,
    "torch.sym_ite": torch.sym_ite,
}
# Namespaces of torch itself that a piece has no use for: they reach beyond its tensors.
_CLOSED = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "prim", "profiler"}
    | {"debugprims", "rngprims", "higher_order", "streams", "inductor", "export", "air", "fsdp"}
    | {"_dtensor", "_caffe2", "static_runtime", "rpc", "cuda", "debug"}
)
_CLOSED_OPS = frozenset({"aten.from_file", "aten._print", "aten.save"})  # they reach files
_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")


class Cell:
    """A place for a tensor that is there only during a run, or is replaced between runs."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def take(self, other: "Cell") -> None:
        """Hold a copy of what another cell holds, with the same strides where they are dense."""
        self.value = other.value.clone()


def as_cell(value: "torch.Tensor | Cell") -> Cell:
    """A cell with a tensor, unless it is one."""
    return value if isinstance(value, Cell) else Cell(value)


class Cells:
    """The cells that the tasks of one assignment write, each emptied after its last use."""

    def __init__(self) -> None:
        self._cells: list[Cell] = []
        self._uses: list[int] = []  # of each cell in a run
        self._left: list[int] = []
        self._used_by: dict[int, list[int]] = {}  # by task

    def __len__(self) -> int:
        return len(self._cells)

    def new(self, writer: int, readers: Iterable[int], *, kept: bool) -> Cell:
        """A cell that a task writes and others read; one that is `kept` stays until the next run.

        >>> cells = Cells()
        >>> cell = cells.new(0, [1], kept=False)
        >>> cells.begin()
        >>> cell.value = "a tensor"
        >>> cells.release([0]); cell.value
        'a tensor'
        >>> cells.release([1]); cell.value is None
        True
        """
        users = [writer, *readers]
        for task in users:
            self._used_by.setdefault(task, []).append(len(self._cells))
        self._cells.append(Cell())
        self._uses.append(len(users) + kept)
        return self._cells[-1]

    def begin(self) -> None:
        """Empty all cells for another run."""
        for cell in self._cells:
            cell.value = None
        self._left = list(self._uses)

    def release(self, tasks: Iterable[int]) -> None:
        """Empty the cells that nobody uses now that these tasks have ended."""
        if not self._cells:
            return
        left = self._left
        for task in tasks:
            for i in self._used_by.get(task, ()):
                left[i] -= 1
                if not left[i]:
                    self._cells[i].value = None


def bind_piece(kernel: Kernel, inputs: Sequence[Cell], outputs: Sequence[Cell]) -> Launch:
    """What runs a piece: takes what the cells hold when it is called, and fills others."""
    function = compiled(kernel)

    def launch() -> None:
        made = function(*[cell.value for cell in inputs])
        for cell, value in zip(outputs, made, strict=True):
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"the piece returns a {type(value).__name__}, not a tensor")
            cell.value = value

    return launch


def is_piece(kernel: Kernel) -> bool:
    """Whether a kernel is a piece, of ATen calls or of an ONNX model."""
    return kernel.op in _PIECES


def check_piece(kernel: Kernel) -> None:
    """Raise an `EngineError` unless a kernel is a piece that can be run."""
    compiled(kernel)


def compiled(kernel: Kernel) -> Function:
    """The function of a piece, the same for all kernels with the same calls."""
    if kernel.op == ONNX_PIECE:
        from doppler.engine.onnx_pieces import onnx_function

        return onnx_function(kernel)
    attributes = kernel.attributes
    calls, returns = attributes.get("calls"), attributes.get("returns")
    if not isinstance(calls, (list, tuple)) or not isinstance(returns, (list, tuple)):
        raise EngineError("a piece needs lists of `calls` and of what it `returns`")
    if len(returns) != len(kernel.shapes):
        count = len(kernel.shapes)
        raise EngineError(f"a piece returns {len(returns)} values for {count} outputs")
    return _compiled(json.dumps([calls, returns]), len(kernel.inputs))


@lru_cache(maxsize=4096)
def _compiled(text: str, num_inputs: int) -> Function:
    calls, returns = json.loads(text)
    try:
        return _Source(num_inputs).function(calls, returns)
    except RecursionError:
        raise EngineError("a piece has arguments nested too deeply") from None


def find_op(name: Any) -> Callable[..., Any]:
    """The operation of that name: of ATen, one that a module registered, or of sizes."""
    if isinstance(name, str) and name in FUNCTIONS:
        return FUNCTIONS[name]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise EngineError(f"a piece calls {name!r}, which is no name of an operation")
    space, op, overload = name.split(".")
    if space in _CLOSED or f"{space}.{op}" in _CLOSED_OPS:
        raise EngineError(f"a piece calls `{name}`, which pieces may not")
    try:
        return getattr(getattr(getattr(torch.ops, space), op), overload)  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError):
        raise EngineError(
            f"no operation `{name}` is registered",
            hint="import the module that registers it: `--import MODULE` on the command line",
        ) from None


class _Source:
    """Writes the function of a piece: names are its own, values are bound to names."""

    def __init__(self, num_inputs: int) -> None:
        self._num_inputs, self._num_calls = num_inputs, 0
        self._names: dict[str, Any] = {}
        self._last: dict[str, int] = {}  # call that reads a value last
        self._needs_device = False

    def function(self, calls: Any, returns: Any) -> Function:
        """The function itself."""
        lines = []
        for row in calls:
            lines.append(self._call(row))
            self._num_calls += 1
        returned = "".join(f"{self._value(each)}, " for each in returns)
        body = []
        for i, line in enumerate(lines):
            body.append(line)
            body += [f"del {name}" for name, last in self._last.items() if last == i]
        inputs = ", ".join(f"i{k}" for k in range(self._num_inputs))
        if self._needs_device:
            if not self._num_inputs:
                raise EngineError("a piece without inputs names the device it runs on")
            body.insert(0, "device = i0.device")
        text = "\n    ".join([f"def piece({inputs}):", *body, f"return ({returned})"])
        exec(text, self._names)
        function: Function = self._names.pop("piece")
        return function

    def _call(self, row: Any) -> str:
        if not (
            isinstance(row, list)
            and len(row) == 3
            and isinstance(row[1], list)
            and isinstance(row[2], dict)
        ):
            raise EngineError("a call of a piece is not `[name, arguments, keywords]`")
        name, arguments, keywords = row
        if not all(word.isidentifier() for word in keywords):
            raise EngineError(f"a piece calls `{name}` with keywords that are none")
        function = self._bound(find_op(name))
        words = [self._value(each) for each in arguments]
        if keywords:
            named = (f"{self._bound(word)}: {self._value(v)}" for word, v in keywords.items())
            words.append(f"**{{{', '.join(named)}}}")
        return f"v{self._num_calls} = {function}({', '.join(words)})"

    def _value(self, value: Any) -> str:
        """An expression for an argument."""
        if value is None or isinstance(value, bool):
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(self._value(each) for each in value)}]"
        if not isinstance(value, dict):
            return self._bound(value)
        if len(value) != 1:
            raise EngineError(f"a piece has the argument {value!r}, which stands for nothing")
        ((what, inner),) = value.items()
        if what == "in":
            return f"i{self._index(inner, self._num_inputs)}"
        if what == "at":
            return self._made(inner)
        if what == "device":
            self._needs_device = True
            return "device"
        return self._bound(_constant(what, inner))

    def _made(self, inner: Any) -> str:
        """What a call made, or a part of it."""
        call, part = (inner, None) if isinstance(inner, int) else (*_pair(inner),)
        name = f"v{self._index(call, self._num_calls)}"
        self._last[name] = self._num_calls
        return name if part is None else f"{name}[{self._index(part, 1 << 16)}]"

    def _index(self, value: Any, size: int) -> int:
        if type(value) is not int or not 0 <= value < size:
            raise EngineError(f"a piece refers to number {value!r} of {size}")
        return value

    def _bound(self, value: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


def _pair(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise EngineError(f"a piece refers to {value!r}, not to a call and a part of it")
    return value


def _constant(what: str, value: Any) -> Any:
    """A value that JSON has no word for."""
    try:
        if what == "float" and value in ("inf", "-inf", "nan"):
            return float(value)
        if what == "complex":
            return complex(*value)
        found = _WORDS[what][value]
    except (KeyError, TypeError, ValueError):
        raise EngineError(f"a piece has the argument {{{what!r}: {value!r}}}") from None
    return found


def _words(kind: type, names: Iterable[str]) -> dict[str, Any]:
    found = ((name, getattr(torch, name, None)) for name in names)
    return {name: value for name, value in found if isinstance(value, kind)}


_WORDS: Mapping[str, Mapping[str, Any]] = {
    "dtype": _words(torch.dtype, dir(torch)),
    "layout": _words(torch.layout, dir(torch)),
    "memory_format": _words(torch.memory_format, dir(torch)),
}
