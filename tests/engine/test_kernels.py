"""Every kernel computes in torch what it computes in numpy, and leaves its inputs alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding.random_programs import cut_programs, whole_inputs
from sharding.test_evaluate import SIZES, positive_definite
from strategies import examples
from torch.utils._python_dispatch import TorchDispatchMode

from doppler.engine.kernels import (
    BINARY,
    KEEP,
    UNARY,
    bind_kernel,
    output_like,
    scratch_bytes,
    torch_dtype,
)
from doppler.engine.kernels import DTYPES as TORCH_DTYPES
from doppler.engine.operands import as_integers
from doppler.errors import EngineError
from doppler.graph import Graph, Kernel, OpKind
from doppler.graph.signatures import signatures
from doppler.programs import (
    Program,
    ProgramBuilder,
    Tensor,
    binary,
    cholesky,
    concat,
    einsum,
    numpy_ops,
    random_inputs,
    reduce,
    to_complex,
    to_real,
    unary,
)
from doppler.programs.registry import WORKLOADS
from doppler.sharding import METHODS, shard
from doppler.sharding.evaluate import input_blocks, kernel_of, output_of, run_kernel
from doppler.sharding.temporaries import aligned_bytes

Array = Any
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def run_torch(kernel: Kernel, inputs: list[Array], device: str = "cpu") -> Array:
    """The output of the compiled kernel, after checking that it left its inputs as they were."""
    tensors = [torch.tensor(x, device=device) for x in inputs]
    shape, dtype = output_like(kernel)
    with torch.inference_mode():
        out = torch.full(shape, 77, dtype=dtype, device=device)
        place = out.data_ptr()
        for launch in bind_kernel(kernel, tensors, out):
            launch()
    assert (out.shape, out.dtype, out.data_ptr()) == (shape, dtype, place)
    for x, tensor in zip(inputs, tensors, strict=True):
        assert np.array_equal(x, tensor.cpu().numpy(), equal_nan=True)
    return out.cpu().numpy()


def assert_same(kernel: Kernel, inputs: list[Array], device: str = "cpu") -> None:
    """Within some units in the last place of the largest element."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        expected = run_kernel(kernel, inputs)
    found = run_torch(kernel, inputs, device)
    assert found.dtype == expected.dtype
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True), kernel
    limits = np.finfo(expected.dtype)
    error = np.abs(found[finite] - expected[finite]).max(initial=0)
    largest = np.abs(expected[finite]).max(initial=0)
    assert error <= 8 * float(limits.eps) * largest + float(limits.smallest_subnormal), kernel


def assert_graph_same(graph: Graph, inputs: dict[str, Array], device: str = "cpu") -> set[str]:
    """Run every vertex on what numpy makes of the vertices before it; returns the ops it ran."""
    values, ops = dict(input_blocks(graph, inputs)), set()
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            kernel = kernel_of(graph, v)
            read = [values[t] for t in kernel.inputs]
            assert_same(kernel, read, device)
            values[output_of(graph, v)] = run_kernel(kernel, read)
            ops.add(kernel.op)
    return ops


# Whole workloads.


@cache
def small_program(name: str, dtype: str) -> Program:
    program = WORKLOADS[name].build(**SIZES[name], dtype=dtype)
    assert isinstance(program, Program)
    return program


def test_every_workload_with_kernels_is_run_here() -> None:
    assert set(SIZES) | {"cholesky", "random-dag"} == set(WORKLOADS)
    assert not WORKLOADS["random-dag"].build().kernels


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", SIZES)
def test_every_vertex_of_a_workload_computes_the_same(name, dtype, method, parts, device):
    program = small_program(name, dtype)
    graph = shard(program, parts, method=method, preaggregate=3 if parts == 8 else 0)
    assert_graph_same(graph, random_inputs(program, seed=parts), device)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_every_tile_of_a_cholesky_factorisation_computes_the_same(parts, dtype, device):
    graph = cholesky(size=24, parts=parts, dtype=dtype)
    ops = assert_graph_same(graph, {"A": positive_definite(24, dtype)}, device)
    assert ops == {"potrf"} if parts == 1 else ops >= {"potrf", "trsm", "syrk"}
    assert ("gemm" in ops) == (parts > 2)


def test_a_tile_that_is_not_positive_definite_raises_nothing(device):
    kernel = Kernel("potrf", (0,), ((2, 2),), ("float64",), {"operands": [0]})
    run_torch(kernel, [-np.eye(2)], device)


@settings(max_examples=examples(150))
@given(cut_programs(), st.sampled_from([0, 2, 3]), st.integers(0, 2**32 - 1))
def test_every_vertex_of_a_random_program_computes_the_same(cut_program, preaggregate, seed):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts, preaggregate=preaggregate)
    assert_graph_same(graph, whole_inputs(program, seed))


def test_the_programs_here_use_every_kind_of_operation() -> None:
    used = {op.kind for name in SIZES for op in small_program(name, "float16").ops}
    alone = {OpKind.MIN_REDUCTION, OpKind.PRODUCT_REDUCTION, OpKind.FORMATION}  # tested below
    assert used | alone == set(OpKind)


# Programs of one operation.

DTYPES = ["float16", "float32", "float64", "complex64"]


def assert_program_same(
    write: Callable[..., Tensor],
    shapes: dict[str, tuple[int, ...]],
    *,
    dtype: str = "float32",
    cuts: dict[str, tuple[int, ...]] | None = None,
    device: str = "cpu",
    positive: bool = False,
) -> None:
    b = ProgramBuilder("one", dtype=dtype)
    result = write(*(b.input(name, shape) for name, shape in shapes.items())).named("result")
    program = b.build(result)
    inputs = random_inputs(program)
    if positive:
        inputs = {name: np.abs(x) + np.asarray(0.1, x.dtype) for name, x in inputs.items()}
    assert_graph_same(shard(program, 1, partitions=cuts or {}), inputs, device)


def test_every_function_of_numpy_is_there() -> None:
    assert {*UNARY, "cast"} == numpy_ops.UNARY.keys()
    assert {*BINARY, *KEEP} == numpy_ops.BINARY.keys()


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
def test_bits_as_integers_are_all_there_is_to_copy(dtype: torch.dtype) -> None:
    source = torch.randint(0, 256, (4, 3, 16), dtype=torch.uint8)
    source = (source % 2).bool() if dtype == torch.bool else source.view(dtype)
    target = torch.zeros_like(source)
    torch.bitwise_or(as_integers(source), 0, out=as_integers(target))
    assert bytes(target.view(torch.uint8).numpy()) == bytes(source.view(torch.uint8).numpy())


REAL_ONLY = {"relu", "gelu", "maximum", "minimum", "keep_if_at_least", "keep_if_below"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", sorted(numpy_ops.UNARY))
@pytest.mark.parametrize("transposed", [False, True])
def test_functions_of_one_tensor(fn, dtype, transposed, device):
    if dtype.startswith("complex") and fn in REAL_ONLY:
        pytest.skip("of real numbers only")

    def write(x):
        return unary(fn, x.T if transposed else x)

    positive = fn in ("sqrt", "rsqrt")
    assert_program_same(write, {"x": (5, 6)}, dtype=dtype, device=device, positive=positive)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("scale", "shift"), [(2.5, 0.0), (1.0, 0.3), (-2.5, 0.3), (1e-3, -1.0), (1e5, 2.0)]
)
def test_scale_and_shift(scale, shift, dtype, device):
    shapes = {"x": (5, 6)}
    assert_program_same(
        lambda x: x.affine(1e-4).affine(scale, shift), shapes, dtype=dtype, device=device
    )


def test_scale_and_shift_of_a_single_number(device):
    assert_program_same(lambda x: x.sum(0).affine(2.0, 1.0), {"x": (4,)}, device=device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", sorted(numpy_ops.BINARY))
@pytest.mark.parametrize("shape", [(4, 6), (6,), (4, 1), (1, 1)])
def test_functions_of_two_tensors(fn, dtype, shape, device):
    if dtype.startswith("complex") and fn in REAL_ONLY:
        pytest.skip("of real numbers only")
    shapes = {"x": (4, 6), "y": shape}
    assert_program_same(lambda x, y: binary(fn, x, y), shapes, dtype=dtype, device=device)


ODD = np.array([np.nan, np.inf, -np.inf, 0, 1, 2], np.float32)


@pytest.mark.parametrize("fn", ["relu", "keep_if_at_least", "keep_if_below", "maximum"])
def test_infinities_and_nan_are_treated_as_numpy_does(fn, device):
    count = 1 if fn == "relu" else 2
    op = "input-elemwise" if count == 1 else "straight-elemwise"
    attributes = {"fn": fn, "operands": list(range(count)), "axes": [[0]] * count}
    kernel = Kernel(op, tuple(range(count)), ((36,),), ("float32",), attributes)
    pairs = [np.repeat(ODD, 6), np.tile(ODD, 6)]
    assert_same(kernel, pairs[:count], device)


def test_a_function_of_a_narrower_dtype_is_not_rounded_too_early(device):
    shapes = {"x": (8, 8)}
    assert_program_same(
        lambda x: unary("exp", x, dtype="float32"), shapes, dtype="float16", device=device
    )
    assert_program_same(
        lambda x: unary("silu", x, dtype="float16"), shapes, dtype="float32", device=device
    )


CONTRACTIONS = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "ij,jk->k", "ij,ij->", "i,j->", "ij,kl->ik",
    "bij,bjk->bik", "bij,bkj->bki", "bij,bjk->ibk", "ibj,jbk->ikb", "bihj,bkhj->bhik",
    "bhij,klhj->bikl", "ij,jkl->kil", "ijk,kl->lij", "abc,abd->cb", "ab,bc->b",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("subscripts", CONTRACTIONS)
def test_contractions(subscripts, dtype, device):
    sizes = dict(zip("abcdhijkl", (2, 3, 4, 5, 3, 2, 4, 5, 2), strict=True))
    terms = subscripts.partition("->")[0].split(",")
    shapes = {f"x{i}": tuple(sizes[x] for x in term) for i, term in enumerate(terms)}
    assert_program_same(lambda x, y: einsum(subscripts, x, y), shapes, dtype=dtype, device=device)


def test_a_large_contraction_of_float16_does_not_add_up_in_float16(device):
    shapes = {"x": (2, 4096), "y": (4096, 2)}
    assert_program_same(lambda x, y: x @ y, shapes, dtype="float16", device=device, positive=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", ["sum", "max", "min", "product"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 0), (0, 1, 2)])
def test_reductions_and_the_formation_of_their_parts(fn, axes, dtype, device):
    if dtype.startswith("complex") and fn in ("max", "min"):
        pytest.skip("of real numbers only")
    for cut in (1, 2, 4):
        rank = 3 - len(axes)
        cuts = {"result": (*(1,) * rank, *(cut if i == 0 else 1 for i in range(len(axes))))}
        assert_program_same(
            lambda x: reduce(fn, x, axes), {"x": (4, 4, 4)}, dtype=dtype, cuts=cuts, device=device
        )


def test_a_reduction_of_float16_does_not_add_up_in_float16(device):
    for cuts in ({}, {"result": (1, 64)}):
        assert_program_same(
            lambda x: x.sum(1), {"x": (2, 4096)}, dtype="float16", cuts=cuts, device=device,
            positive=True,
        )  # fmt: skip


def test_a_reduction_over_a_new_axis_is_a_copy(device):
    assert_program_same(lambda x: x[:, None].sum(1), {"x": (4, 3)}, device=device)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cut", [(1, 1, 1), (2, 1, 2), (1, 3, 1)])
def test_pairs_and_complex_numbers(dtype, cut, device):
    def write(x):
        y = to_complex(x.transpose(1, 0, 2)).named("y")
        return to_real(y.transpose(1, 0, 2))

    shapes = {"x": (3, 4, 8)}
    assert_program_same(write, shapes, dtype=dtype, cuts={"y": cut[::-1]}, device=device)
    assert_program_same(write, shapes, dtype=dtype, cuts={"result": (*cut[1:], 1)}, device=device)


@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"x": (2, 4)},
        {"x": (4, 1), "y": (1, 2)},
        {"x": (1, 2), "y": (2, 2), "result": (2, 2)},
        {"x": (2, 2), "y": (4, 2), "result": (3, 1)},
    ],
    ids=str,
)
def test_operands_and_results_made_of_pieces(cuts, device):
    shapes = {"x": (4, 8), "y": (8, 8)}
    together = {"x": (4, 8), "y": (8, 8)}
    assert_program_same(lambda x, y: concat([x, y], 0), shapes, cuts=cuts, device=device)
    cuts = {name: cut for name, cut in cuts.items() if name != "result"}
    assert_program_same(
        lambda x, y: concat([y, x], 0)[1:5, 2:7], together, cuts=cuts, device=device
    )
    assert_program_same(lambda x, y: x @ y.T, shapes, cuts=cuts, device=device)
    assert_program_same(lambda x, y: x @ y[:, 3:6], shapes, cuts=cuts, device=device)
    assert_program_same(lambda x, y: x * y[2:3], shapes, cuts=cuts, device=device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 1.5, "-inf"])
@pytest.mark.parametrize("above", [None, 0.0, -2.0, "-inf"])
@pytest.mark.parametrize("corner", [(0, 0), (0, 3), (3, 0), (3, 2), (1, 5), (5, 1), (2, 0)])
def test_fills(value, above, corner, dtype, device):
    block = [[at, at + n] for at, n in zip(corner, (3, 4), strict=True)]
    attributes = {"value": value, "block": [[0, 2], *block]}
    attributes |= {} if above is None else {"above": above}
    assert_same(Kernel("fill", (), ((2, 3, 4),), (dtype,), attributes), [], device)


def test_a_fill_without_axes(device):
    assert_same(Kernel("fill", (), ((),), ("float32",), {"value": 3}), [], device)


def test_bfloat16_computes_as_float32_does_but_for_rounding(device):
    attributes = {"operands": [0, 1], "axes": [[0, 2], [2, 1]]}
    kernel = Kernel("matmul", (0, 1), ((8, 8),), ("bfloat16",), attributes)
    x, y = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.empty(8, 8, dtype=torch.bfloat16, device=device)
    (launch,) = bind_kernel(kernel, [x.to(device), y.to(device)], out)
    launch()
    expected = x.float() @ y.float()
    assert (out.cpu().float() - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_a_bound_kernel_runs_again_on_other_values(device):
    attributes = {"fn": "sum", "operands": [0, 1, 2]}
    kernel = Kernel("formation", (0, 1, 2), ((2,),), ("float32",), attributes)
    tensors, out = [torch.empty(2, device=device) for _ in range(3)], torch.empty(2, device=device)
    bound = bind_kernel(kernel, tensors, out)
    for i in range(2):
        for k, tensor in enumerate(tensors):
            tensor.fill_(i + k)
        for launch in bound:
            launch()
        assert out.tolist() == [3.0 * i + 3] * 2


@pytest.mark.parametrize("name", SIZES)
def test_scratch_is_as_large_as_what_is_asked_for(name):
    graph = shard(small_program(name, "float16"), 8)
    for v in graph.assigned.tolist():
        kernel = kernel_of(graph, v)
        makers = [kernel_of(graph, graph.tensor_producer[t]) for t in kernel.inputs]
        asked = []

        def empty(shape, dtype, asked=asked):
            asked.append(torch.empty(tuple(shape), dtype=dtype))
            return asked[-1]

        inputs = [torch.ones(shape, dtype=dtype) for shape, dtype in map(output_like, makers)]
        shape, dtype = output_like(kernel)
        bind_kernel(kernel, inputs, torch.empty(shape, dtype=dtype), empty)
        assert scratch_bytes(kernel, makers) == sum(aligned_bytes(x.nbytes) for x in asked)


def assert_temporaries_are_scratch(graph: Graph) -> None:
    """What sharding declares, without torch, is what kernels ask for."""
    for v in graph.assigned.tolist():
        kernel = kernel_of(graph, v)
        makers = [kernel_of(graph, graph.tensor_producer[t]) for t in kernel.inputs]
        assert graph.temporary_bytes[v] == scratch_bytes(kernel, makers), graph.vertex_names[v]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SIZES)
def test_declared_temporaries_of_workloads_are_scratch(name, method, dtype):
    for parts in (1, 2, 4, 8):
        assert_temporaries_are_scratch(shard(small_program(name, dtype), parts, method=method))


@settings(max_examples=200)
@given(cut_programs(), st.sampled_from([0, 2, 3]))
def test_declared_temporaries_are_scratch(cut_program, preaggregate):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts, preaggregate=preaggregate)
    assert_temporaries_are_scratch(graph)


# Launches.

FREE = {"view", "_unsafe_view", "permute", "slice", "select", "unsqueeze", "transpose", "empty"}
FREE |= {"new_empty", "narrow", "as_strided", "expand", "empty_like", "alias", "detach"}


class Launches(TorchDispatchMode):
    """Collects the operations that do work, with the shapes and strides they do it on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ not in FREE:
            flat = [x for a in (*args, *(kwargs or {}).values()) for x in _flat(a)]
            self.found.append((str(func), *((x.shape, x.stride(), x.dtype) for x in flat)))
        return func(*args, **(kwargs or {}))


def _flat(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return list(argument) if isinstance(argument, (list, tuple)) and argument and isinstance(
        argument[0], torch.Tensor) else []  # fmt: skip


def launches(graph: Graph, v: int) -> list[Any]:
    kernel = kernel_of(graph, v)
    makers = [kernel_of(graph, graph.tensor_producer[t]) for t in kernel.inputs]
    inputs = [torch.ones(shape, dtype=dtype) for shape, dtype in map(output_like, makers)]
    shape, dtype = output_like(kernel)
    out = torch.empty(shape, dtype=dtype)
    bound = bind_kernel(kernel, inputs, out)
    with Launches() as counter:
        for launch in bound:
            launch()
    assert len(counter.found) == len(bound)
    return counter.found


@pytest.mark.parametrize(
    ("write", "cuts", "expected"),
    [
        (lambda x, y: x @ y, {}, ["aten.mm.out"]),
        (lambda x, y: x.T @ y.T, {}, ["aten.mm.out"]),
        (lambda x, y: einsum("ij,jk->ki", x, y), {}, ["aten.mm.out"]),
        (lambda x, y: einsum("bik,bjk->bij", x.unsqueeze(0), y.unsqueeze(0)), {}, ["aten.mm.out"]),
        (lambda x, y: x @ y[:, 2:6], {}, ["aten.mm.out"]),
        (lambda x, y: x @ y, {"y": (1, 4)}, ["aten.cat.out", "aten.mm.out"]),
        (lambda x, y: x @ y, {"y": (2, 2)}, ["aten.cat.out"] * 2 + ["aten.mm.out"]),
        (lambda x, y: x + y.T, {}, ["aten.add.out"]),
        (lambda x, _: unary("silu", x), {}, ["aten.silu.out"]),
        (lambda x, _: unary("gelu", x.T), {}, ["aten.gelu.out"]),
        (lambda x, _: x.affine(2.0, 1.0), {}, ["aten.add.out"]),
        (lambda x, _: x.T.max(0), {}, ["aten.amax.out"]),
        (lambda x, y: concat([x, y], 0), {}, ["aten.cat.out"]),
        (lambda x, _: x[2:4, 1:3], {}, ["aten.copy_.default"]),
    ],
)
def test_few_launches(write, cuts, expected):
    b = ProgramBuilder("one")
    result = write(b.input("x", (8, 8)), b.input("y", (8, 8))).named("result")
    graph = shard(b.build(result), 1, partitions=cuts)
    v = graph.meta_ops.index("result")
    assert [name for name, *_ in launches(graph, v)] == expected


@pytest.mark.parametrize(("partials", "count"), [(1, 1), (2, 1), (3, 2), (8, 2)])
def test_a_formation_takes_two_launches_at_most(partials, count):
    b = ProgramBuilder("one")
    product = (b.input("x", (8, 24)) @ b.input("y", (24, 8))).named("xy")
    graph = shard(b.build(product), 1, partitions={"xy": (1, 2, partials)})
    assert len(launches(graph, graph.num_vertices - 1)) == count


@pytest.mark.parametrize("name", SIZES)
def test_vertices_of_one_signature_launch_the_same_on_the_same_shapes(name):
    graph = shard(small_program(name, "float16"), 8)
    seen: dict[str, Any] = {}
    found = signatures(graph)
    for v in graph.assigned.tolist():
        assert launches(graph, v) == seen.setdefault(found[v], launches(graph, v))
    assert len(seen) < len(graph.assigned)


# Mistakes.


def kernel_with(**fields: Any) -> Kernel:
    plain = {
        "op": "input-elemwise", "inputs": (0,), "shapes": ((2,),), "dtypes": ("float32",),
        "attributes": {"fn": "relu", "operands": [0], "axes": [[0]]},
    }  # fmt: skip
    return Kernel(**plain | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "convolution"}, "no code for a kernel `convolution`\nhint: known: bcast-elemwise"),
        ({"op": "input"}, "no code for a kernel `input`"),
        ({"dtypes": ("float8",)}, "no dtype `float8` in torch\nhint: known: float16, bfloat16"),
        ({"shapes": ((2,), (2,))}, "kernel `input-elemwise` has 2 outputs, must have one"),
        ({"attributes": {}}, "kernel `input-elemwise` has attributes that make no sense: KeyErr"),
        ({"attributes": {"fn": "sin", "operands": [0], "axes": [[0]]}}, "no sense: .*'sin'"),
        ({"op": "gemm"}, "kernel `gemm` has attributes that make no sense"),
        (
            {"op": "select", "attributes": {"operands": [{"pieces": [[0, [[0, 1]], [0]]]}]}},
            "no sense: .*pieces of 1 elements for a tensor of 2",
        ),
        (
            {"op": "select", "attributes": {"operands": [{"pieces": [[0, [[0, 1]], [0]]] * 2}]}},
            "no sense: .*pieces overlap",
        ),
    ],
)
def test_a_kernel_that_cannot_be_run_is_named(fields, message):
    with pytest.raises(EngineError, match=message):
        bind_kernel(kernel_with(**fields), [torch.empty(2)], torch.empty(2))


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64", "int32", "bool"])
def test_dtypes_are_those_of_numpy(name):
    assert torch.zeros(1, dtype=torch_dtype(name)).numpy().dtype == name


def test_an_unknown_dtype_is_named():
    with pytest.raises(EngineError, match="no dtype `float8` in torch"):
        torch_dtype("float8")
