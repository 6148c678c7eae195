"""The values of a program, computed unsharded: what sharding and running must reproduce."""

from collections.abc import Mapping

import numpy as np

from doppler.errors import ProgramError
from doppler.graph.ops import OpKind
from doppler.programs.numpy_ops import Array, compute
from doppler.programs.program import Op, Program


def evaluate_program(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a program by name, for inputs by name."""
    values: list[Array] = []
    for op in program.ops:
        if op.kind == OpKind.INPUT:
            values.append(_given(op, inputs))
        else:
            operands = [values[read.op] for read in op.reads]
            values.append(_value(op, operands))
    return {program.ops[i].name: values[i] for i in program.outputs}


def random_inputs(program: Program, seed: int = 0) -> dict[str, Array]:
    """Standard normal values for every input, scaled so that long sums stay small."""
    rng = np.random.default_rng(seed)
    values = {}
    for op in program.ops:
        if op.kind == OpKind.INPUT:
            x = rng.standard_normal(op.shape) / max(op.shape, default=1) ** 0.5
            if "complex" in op.dtype:
                x = np.exp(1j * x)
            values[op.name] = x.astype(op.dtype)
    return values


def _given(op: Op, inputs: Mapping[str, Array]) -> Array:
    if op.name not in inputs:
        given = ", ".join(inputs) or "none"
        raise ProgramError(f"input `{op.name}` is missing", hint=f"given: {given}")
    value = np.asarray(inputs[op.name])
    if value.shape != op.shape or value.dtype != op.dtype:
        raise ProgramError(
            f"input `{op.name}` is {value.dtype} {value.shape}, expected {op.dtype} {op.shape}"
        )
    return value


def _value(op: Op, operands: list[Array]) -> Array:
    axes = [[axis.join for axis in read.axes] for read in op.reads]
    if op.kind == OpKind.SELECT:
        operands, axes = [_selected(op, operands)], [list(range(len(op.shape)))]
    return compute(op.kind, op.attributes, operands, axes, op.shape, op.dtype)


def _selected(op: Op, operands: list[Array]) -> Array:
    """The output of a select: the wanted part of each operand, put in its place."""
    result = np.empty(op.shape, op.dtype)
    for read, operand in zip(op.reads, operands, strict=True):
        source = tuple(slice(a.offset, a.offset + a.end - a.begin) for a in read.axes)
        result[tuple(slice(a.begin, a.end) for a in read.axes)] = operand[source]
    return result
