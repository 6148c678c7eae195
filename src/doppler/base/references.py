"""NamedTuples that kernels take as pointers.

Numba passes each field of a tuple as arguments of its own, an array as seven of them. Fifty arrays
make 350 arguments of every helper that takes the tuple, and most of the time to compile it.

Read-only arrays in them have the type of writable ones, so a kernel is compiled once for both, and
takes those of a problem or a graph as they are. It must not write to them.
"""

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)


def by_reference(*classes: type) -> None:
    """Let kernels take these NamedTuples as pointers."""
    for cls in classes:
        typeof_impl.register(cls)(_type_of)


def _type_of(value: Any, context: Any) -> Any:
    cls: Any = type(value)
    return _reference(cls, tuple(_field_type(field, context) for field in value))


def _field_type(field: Any, context: Any) -> Any:
    found = typeof_impl(field, context)
    return found.copy(readonly=False) if isinstance(found, types.Array) else found


@cache
def _reference(cls: Any, fields: tuple[Any, ...]) -> "_Reference":
    return _Reference(cls, fields)


class _Reference(types.Type):
    """A pointer to the fields of a NamedTuple."""

    def __init__(self, cls: Any, fields: tuple[Any, ...]) -> None:
        self.cls, self.fields = cls, fields
        super().__init__(f"{cls.__module__}.{cls.__qualname__}({', '.join(map(str, fields))})")


class Fields(ir.LiteralStructType):
    """What a `_Reference` points to."""


@register_model(_Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: _Reference) -> None:
        fields = [dmm.lookup(field).get_value_type() for field in fe_type.fields]
        super().__init__(dmm, fe_type, Fields(fields).as_pointer())


@infer_getattr
class _ReferenceAttributes(AttributeTemplate):
    key = _Reference

    def generic_resolve(self, reference: Any, name: Any) -> Any:  # type: ignore[override]
        names = reference.cls._fields
        return reference.fields[names.index(name)] if name in names else None


@lower_getattr_generic(_Reference)
def _load_field(context: Any, builder: Any, reference: Any, pointer: Any, name: str) -> Any:
    index = reference.cls._fields.index(name)
    value = builder.load(cgutils.gep_inbounds(builder, pointer, 0, index))
    return impl_ret_borrowed(context, builder, reference.fields[index], value)


@unbox(_Reference)
def _store_fields(reference: _Reference, value: Any, c: Any) -> Any:
    pointer = cgutils.alloca_once(c.builder, c.context.get_value_type(reference).pointee)
    failed, clean_up = cgutils.false_bit, []
    for index, field in enumerate(reference.fields):
        native = c.unbox(field, c.pyapi.tuple_getitem(value, index))
        c.builder.store(native.value, cgutils.gep_inbounds(c.builder, pointer, 0, index))
        failed = c.builder.or_(failed, native.is_error)
        clean_up.append(native.cleanup)

    def clean() -> None:
        for function in clean_up:
            if function is not None:
                function()

    return NativeValue(pointer, cleanup=clean, is_error=failed)
