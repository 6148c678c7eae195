"""Ways to cut the operations of a model, by name.

`paper`, the default, counts the elements that are moved and no other work, so it may leave what is
between products whole. The others are rules that cut all that they can:

- `tokens`: everything along the tokens, so that only attention reads what others computed;
  every device needs all weights;
- `columns`: tensor parallelism. A product with a weight is cut by columns where it reads
  complete rows, and by rows where what it reads is cut by then; attention by heads. All else is cut
  along the tokens, so that partial results are summed where their tokens are.
"""

from dataclasses import replace

from doppler.errors import UnknownNameError
from doppler.frontends.lifting.lift import Lifted
from doppler.frontends.lifting.shards import ChooseCuts, cut_axes
from doppler.graph.ops import OpKind
from doppler.programs.program import Op, Read
from doppler.sharding.cuts import Cut, candidates, divides

PAPER = "paper"
Axes = list[int | None]  # a join axis of each operation


def choose_cuts(method: str | ChooseCuts) -> ChooseCuts:
    """The way to cut of that name; one that is given is itself."""
    if not isinstance(method, str):
        return method
    if method not in METHODS:
        raise UnknownNameError("way to cut a model", method, METHODS)
    return METHODS[method]


def cut_tokens(lifted: Lifted, parts: int) -> list[Cut]:
    """The cuts along the tokens; where these cannot be cut, along the first axes that can.

    Causal attention is cut by heads, as its mask depends on the positions of tokens.
    """
    found = []
    for op, axis, step in zip(
        lifted.program.ops, token_axes(lifted, parts), lifted.steps, strict=True
    ):
        cut = one_axis(op, axis, parts) if axis is not None else _first_cut(op, parts)
        found.append(cut if step is not None and step.rule is not None else (1,) * len(op.join))
    return found


def _first_cut(op: Op, parts: int) -> Cut:
    """The first cut into as many parts as may be."""
    found = candidates(replace(op, kind=OpKind.INPUT_ELEMWISE), parts)
    return found[0] if found else (1,) * len(op.join)


def cut_columns(lifted: Lifted, parts: int) -> list[Cut]:
    """The cuts of tensor parallelism; what cannot be cut like this is cut along the tokens."""
    tokens, features = token_axes(lifted, parts), feature_axes(lifted, parts)
    found = []
    for op, own, token, step in zip(
        lifted.program.ops, features, tokens, lifted.steps, strict=True
    ):
        is_summed = own is not None and own >= len(op.shape)
        axes = {own, token} if is_summed else {token if own is None else own}
        may = step is not None and step.rule is not None
        found.append(tuple(parts if may and j in axes else 1 for j in range(len(op.join))))
    return found


def token_axes(lifted: Lifted, parts: int) -> Axes:
    """The axis of each output along which tokens, or requests, lie; None where it cannot be cut.

    It is the first axis of what the model is given that can be cut, wherever that goes.
    """
    axes, found = Axes(), Axes()
    for op in lifted.program.ops:
        read = _followed(op, axes)
        axis = next((j for j in read if j < len(op.shape)), None)
        if not read and not op.is_weight:
            axis = _first(op, parts)
        axes.append(axis)
        found.append(axis if axis is not None and fits(op, axis, parts) else None)
    return found


def feature_axes(lifted: Lifted, parts: int) -> Axes:
    """The join axis of each operation along which tensor parallelism cuts it, beside tokens."""
    axes, found = Axes(), Axes()
    for number, op in enumerate(lifted.program.ops):
        axis = None if number in lifted.inputs else _feature_axis(op, lifted, axes, parts)
        found.append(axis)
        axes.append(axis if axis is not None and axis < len(op.shape) else None)
    return found


def _feature_axis(op: Op, lifted: Lifted, axes: Axes, parts: int) -> int | None:
    for j in _followed(op, axes):
        if fits(op, j, parts) and (j < len(op.shape) or op.is_contraction):
            return j
    weights = [r for r in op.reads if r.op in lifted.inputs and len(r.axes) > 1]
    if not op.is_contraction or not weights:
        return None
    others = {j for read in op.reads if read.op not in lifted.inputs for j in _joins(read)}
    own = sorted({j for read in weights for j in _joins(read)} - others)
    return next((j for j in own if j < len(op.shape) and fits(op, j, parts)), None)


def _followed(op: Op, axes: Axes) -> list[int]:
    """The join axes by which an operation reads what others have along these axes."""
    pairs = ((read, axes[read.op]) for read in op.reads)
    found = (read.axes[axis].join for read, axis in pairs if axis is not None)
    return [j for j in found if j is not None]


def _joins(read: Read) -> set[int]:
    return {axis.join for axis in read.axes if axis.join is not None}


def _first(op: Op, parts: int) -> int | None:
    return next((j for j in range(len(op.shape)) if fits(op, j, parts)), None)


METHODS: dict[str, ChooseCuts] = {
    PAPER: cut_axes,
    "tokens": cut_tokens,
    "columns": cut_columns,
}


def fits(op: Op, axis: int, parts: int) -> bool:
    """Whether a join axis of an operation can be cut evenly."""
    return axis not in op.whole and divides(op, one_axis(op, axis, parts))


def one_axis(op: Op, axis: int, parts: int) -> Cut:
    """The cut of one join axis."""
    return tuple(parts if j == axis else 1 for j in range(len(op.join)))
