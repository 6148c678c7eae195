"""Types of tensors as ONNX writes them, and as graphs name them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_ELEMENTS = {  # number in ONNX: name, bits of an element
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
}
FLOAT32, INT64 = 1, 7
FLOATS = frozenset({1, 10, 11, 14, 15, 16, 17, 18, 19, 20, 23, 24})
# Those that onnxruntime and torch hand to each other without a copy.
HANDED_OVER = frozenset({1, 2, 3, 5, 6, 7, 9, 10, 11, 16})


@dataclass(frozen=True, slots=True)
class TensorType:
    """The element type, by its number in ONNX, and the shape of a tensor."""

    element: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return _ELEMENTS[self.element][0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements, packed."""
        return -(-self.size * _ELEMENTS[self.element][1] // 8)

    def proto(self, *, with_shape: bool = True) -> Any:
        """The type as a TypeProto, perhaps without the shape."""
        from onnx import helper

        return helper.make_tensor_type_proto(self.element, self.shape if with_shape else None)


def is_element(number: int) -> bool:
    """Whether a number stands for elements of which the size is known; strings' is not."""
    return number in _ELEMENTS


def bits_of(element: int) -> int:
    """Bits of an element."""
    return _ELEMENTS[element][1]


def tensor_type(proto: Any, unknown: int = 0) -> TensorType | None:
    """The type in a TypeProto, sizes that are not given being `unknown`; None if it is no tensor.

    A tensor without a shape is none here, nor is one of strings.
    """
    if proto is None or not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    if not is_element(tensor.elem_type) or not tensor.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else unknown for d in tensor.shape.dim]
    return TensorType(tensor.elem_type, tuple(sizes))


def is_whole(proto: Any) -> bool:
    """Whether a TypeProto is of a tensor with all its sizes."""
    found = tensor_type(proto, unknown=-1)
    return found is not None and min(found.shape, default=0) >= 0


def filled(proto: Any, sizes: Sequence[int]) -> Any:
    """A TypeProto of a tensor with these sizes in place of its own."""
    return TensorType(proto.tensor_type.elem_type, tuple(sizes)).proto()
