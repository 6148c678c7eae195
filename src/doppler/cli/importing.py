"""`dop import`: other people's graphs and models in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson, Force, GraphOutput, Imports
from doppler.cli.output import note, print_json, stdout, take_stdout
from doppler.errors import ConfigError, MissingExtraError, UnknownNameError
from doppler.frontends.models.names import DESCRIPTIONS, PREFIX

if TYPE_CHECKING:
    from doppler.frontends.lifting.lift_report import Lifting
    from doppler.graph import Graph

PT2, ONNX = "pt2", "onnx"  # formats of models
_SUFFIXES = (".pt2", ".pt", ".pth", ".pkl", ".pickle")
_ARCHIVES = (b"PK\3\4", b"PK\5\6", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")  # zip, pickles
_PROTO = b"\x08"  # the first field of an ONNX model

Source = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|gallery:NAME",
        help="The file to read; - for the standard input; or a model from `dop list models`.",
    ),
]
FullSize = Annotated[
    bool,
    typer.Option(
        "--full-size",
        help="Of a model of the gallery: the size of the published model, without values: to be "
        "placed and simulated, not run.",
    ),
]


Parts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Of a PyTorch model: cut its operations into N shards, a power of two.",
    ),
]


Method = Annotated[
    str,
    typer.Option(
        metavar="paper|tokens|columns",
        help="How --parts cuts: to move the fewest elements, along the tokens, or the products by "
        "columns and then by rows.",
    ),
]


def import_graph(
    file: Source,
    output: GraphOutput,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="From `dop list formats`; recognised by content if left out.",
        ),
    ] = None,
    coarsen: Annotated[
        str,
        typer.Option(
            metavar="pieces|none|N",
            help="Of a model: pieces with one heavy operation each, one vertex for every "
            "operation, or at most N pieces.",
        ),
    ] = "pieces",
    full_size: FullSize = False,
    parts: Parts = None,
    method: Method = "paper",
    to: Annotated[
        str,
        typer.Option(metavar="NAME", help="Format to write in: doppler, dot, stg or wfformat."),
    ] = "doppler",
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME=SIZE",
            help="Size of a symbolic dimension of an ONNX model; may be repeated.",
        ),
    ] = None,
    imports: Imports = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a graph in any known format, or a PyTorch or ONNX model, and write it as a graph file.

    A PyTorch model is what torch.export.save writes (.pt2). The graph refers to the model's file
    for the weights. One of the gallery is small, and its graph runs with random weights. With
    --to, the graph is written in another format.

    Example: dop import chainmm.txt -o chainmm.json
    """
    from doppler.base.writing import check_output, write_text
    from doppler.formats import graph_to_text
    from doppler.graph.io import FORMAT

    take_stdout(output, as_json=as_json)
    kind = FORMAT if to == "doppler" else to
    check_output(output, kind=kind, inputs=(file,), force=force)
    sizes = _sizes(dims or ())
    cuts: Any = {"parts": parts, "method": method}
    graph, lifting = _build(file, coarsen, cuts, full_size=full_size) or _read(
        file, output, format_name, coarsen, cuts, sizes, imports or ()
    )
    write_text(output, graph_to_text(graph, to), kind=kind, force=force)
    _summarize(graph, lifting, output, as_json=as_json)


def _read(
    file: Path,
    output: Path,
    format_name: str | None,
    coarsen: str,
    cuts: dict[str, Any],
    dims: dict[str, int],
    imports: Sequence[str],
) -> "tuple[Graph, Lifting | None]":
    from doppler.base.files import STANDARD_STREAM, is_pipe
    from doppler.formats import read_graph

    kind = format_name or ("" if is_pipe(file) else _model_kind(file))
    if dims and kind != ONNX:
        raise ConfigError("--dim is for ONNX models", hint="other graphs have no such dimensions")
    if cuts["parts"] is not None and kind != PT2:
        raise ConfigError(
            f"{file} is no PyTorch model, and --parts cuts those",
            hint="import a .pt2 file, or shard a program with `dop shard`",
        )
    if kind not in (PT2, ONNX):
        return read_graph(file, format_name=format_name), None
    grain = _grain(coarsen)
    folder = "" if str(output) == STANDARD_STREAM else output.parent
    if kind == ONNX:
        from doppler.frontends.onnx.onnx_import import from_onnx

        model = from_onnx(file, coarsen=grain, dims=dims, folder=folder)
        if model.missing:
            note(f"not executable: the model has {', '.join(model.missing)}")
        return model.graph, None
    try:
        from doppler.frontends.archive import read_model
        from doppler.frontends.model_files import import_modules
    except ImportError:
        raise MissingExtraError("torch", "a PyTorch model", extra="torch") from None
    import_modules(imports)
    found = read_model(file, coarsen=grain, folder=folder, **cuts)
    return found.graph, found.lifting


def _build(
    file: Path, coarsen: str, cuts: dict[str, Any], *, full_size: bool
) -> "tuple[Graph, Lifting | None] | None":
    """The graph of a model of the gallery; None for a file."""
    name = str(file).removeprefix(PREFIX)
    if name == str(file):
        if full_size:
            raise ConfigError("--full-size is for models of the gallery", hint="dop list models")
        return None
    if name not in DESCRIPTIONS:
        raise UnknownNameError("model", name, tuple(DESCRIPTIONS))
    try:
        from doppler.frontends.gallery import make_example
        from doppler.frontends.models.full_size import make_full_example
        from doppler.frontends.torch_export import from_torch
    except ImportError:
        raise MissingExtraError("torch", "a PyTorch model", extra="torch") from None
    module, args, kwargs = make_full_example(name) if full_size else make_example(name)
    found = from_torch(module, args, kwargs, coarsen=_grain(coarsen), name=name, **cuts)
    return found.graph, found.lifting


def _grain(coarsen: str) -> str | int:
    return int(coarsen) if coarsen.isdecimal() else coarsen


def _sizes(dims: Sequence[str]) -> dict[str, int]:
    """Dimensions by name, from texts such as `batch=8`."""
    found: dict[str, int] = {}
    for text in dims:
        name, _, size = text.rpartition("=")
        if not name or not (size.isascii() and size.isdecimal() and len(size) < 16):
            raise ConfigError(f"--dim is `{text}`", hint="such as --dim batch=8")
        if name in found:
            raise ConfigError(f"--dim gives `{name}` twice")
        found[name] = int(size)
    return found


def _summarize(graph: "Graph", lifting: "Lifting | None", output: Path, *, as_json: bool) -> None:
    inputs = int(graph.is_input.sum())
    if as_json:
        print_json(
            {
                "graph": str(output),
                "name": graph.name,
                "vertices": graph.num_vertices,
                "inputs": inputs,
                "tensors": graph.num_tensors,
                "edges": graph.num_edges,
                "digest": graph.digest(),
            }
            | (lifting.to_json() if lifting else {})
        )
    else:
        stdout().print(
            f"{output}: {graph.num_vertices} vertices ({inputs} inputs), "
            f"{graph.num_tensors} tensors, {graph.num_edges} edges"
        )
        if lifting:
            stdout().print(str(lifting))


def _model_kind(path: Path) -> str:
    """The format of a model's file, by its name or first bytes; empty for other files."""
    if path.suffix in _SUFFIXES:
        return PT2
    if path.suffix == ".onnx":
        return ONNX
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except (OSError, ValueError):
        return ""
    return PT2 if head.startswith(_ARCHIVES) else ONNX if head.startswith(_PROTO) else ""
