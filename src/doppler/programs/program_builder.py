"""ProgramBuilder: collects the operations of a program."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from doppler.base.arrays import unboxed
from doppler.errors import ProgramError
from doppler.graph.ops import OpKind
from doppler.programs.program import Op, Program, Read
from doppler.programs.tensor import Shape, Tensor, json_number

DTYPES = ("float16", "float32", "float64", "complex64", "complex128")


class ProgramBuilder:
    """Collects the operations of a program.

    >>> import doppler as dp
    >>> b = dp.ProgramBuilder("ffnn")
    >>> x, w = b.input("x", (8, 4)), b.input("w", (4, 2))
    >>> b.build(dp.programs.relu(x @ w))
    <Program 'ffnn': 4 ops (2 inputs)>
    """

    def __init__(self, name: str, *, dtype: str = "float32") -> None:
        self.name = name
        self.dtype = _checked_dtype(dtype, "program")
        self.ops: list[Op] = []
        self._names: set[str] = set()

    def input(
        self, name: str, shape: Sequence[int], *, dtype: str | None = None, weight: bool = False
    ) -> Tensor:
        """A tensor that is given: data, or a `weight`, which is the same in every run."""
        tensor = self.add(OpKind.INPUT, tuple(shape), dtype or self.dtype, (), name=name)
        self.ops[tensor.op] = replace(self.ops[tensor.op], is_weight=weight)
        return tensor

    def fill(
        self,
        shape: Sequence[int],
        value: float,
        *,
        above: float | None = None,
        dtype: str | None = None,
        name: str = "fill",
    ) -> Tensor:
        """A tensor of one value; with `above`, that value above the diagonal of the last axes."""
        if above is not None and len(shape) < 2:
            raise ProgramError(f"`{name}`: shape {tuple(shape)} has no diagonal to be above")
        attributes = {"value": json_number(value, name)}
        if above is not None:
            attributes["above"] = json_number(above, name)
        return self.add(
            OpKind.FILL, tuple(shape), dtype or self.dtype, (), name=name, attributes=attributes
        )

    def add(
        self,
        kind: OpKind,
        shape: Shape,
        dtype: str,
        reads: Sequence[Read],
        *,
        name: str,
        aggregated: Shape = (),
        attributes: dict[str, Any] | None = None,
    ) -> Tensor:
        """Add an operation; its name is made unique by a number."""
        shape, aggregated = unboxed(shape), unboxed(aggregated)
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise ProgramError(f"`{name}`: shape {shape} must be whole numbers > 0")
        self.ops.append(
            Op(
                name=self._unique(name),
                kind=kind,
                shape=shape,
                dtype=_checked_dtype(dtype, name),
                join=shape + aggregated,
                reads=tuple(reads),
                attributes=attributes or {},
            )
        )
        return Tensor(self, len(self.ops) - 1, tuple(range(len(shape))))

    def rename(self, op: int, name: str) -> None:
        """Give an operation another name."""
        self._names.discard(self.ops[op].name)
        self.ops[op] = replace(self.ops[op], name=self._unique(name))

    def _unique(self, name: str) -> str:
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}.{count}"
        self._names.add(unique)
        return unique

    def build(self, *outputs: Tensor) -> Program:
        """The program that computes these tensors."""
        if not outputs:
            raise ProgramError(f"program `{self.name}` has no outputs")
        for output in outputs:
            if output.builder is not self:
                raise ProgramError(f"`{output.name}` is of another program than `{self.name}`")
            if output.dims != tuple(range(len(output.dims))):
                raise ProgramError(
                    f"an output must be the result of an operation, not a view of `{output.name}`"
                )
        return Program(self.name, tuple(self.ops), tuple(output.op for output in outputs))


def _checked_dtype(dtype: str, where: str) -> str:
    if dtype not in DTYPES:
        raise ProgramError(f"`{where}`: no dtype `{dtype}`", hint=f"known: {', '.join(DTYPES)}")
    return dtype
