"""`dop import`: other people's graphs and models in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.cli.options import AsJson, Force, GraphOutput, Imports
from doppler.cli.output import print_json, stdout, take_stdout
from doppler.errors import ConfigError, MissingExtraError, UnknownNameError
from doppler.frontends.models.names import DESCRIPTIONS, PREFIX

if TYPE_CHECKING:
    from doppler.graph import Graph

PT2 = "pt2"  # format of PyTorch models
_SUFFIXES = (".pt2", ".pt", ".pth", ".pkl", ".pickle")
_ARCHIVES = (b"PK\3\4", b"PK\5\6", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")  # zip, pickles


def import_graph(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|gallery:NAME",
            help="The file to read; - for the standard input; or a model from `dop list models`.",
        ),
    ],
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
    full_size: Annotated[
        bool,
        typer.Option(
            "--full-size",
            help="Of a model of the gallery: the size of the published model, without values: to "
            "be placed and simulated, not run.",
        ),
    ] = False,
    imports: Imports = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a graph in any known format, or a PyTorch model (.pt2), and write it as a graph file.

    A model is what torch.export.save writes. The graph refers to its file for the weights. One of
    the gallery is small, and its graph runs with random weights.

    Example: dop import chainmm.txt -o chainmm.json
    """
    from doppler.base.writing import check_output
    from doppler.graph import write_graph
    from doppler.graph.io import FORMAT

    take_stdout(output, as_json=as_json)
    check_output(output, kind=FORMAT, inputs=(file,), force=force)
    if str(file).startswith(PREFIX):
        graph = _build(str(file).removeprefix(PREFIX), coarsen, full_size=full_size)
    elif full_size:
        raise ConfigError("--full-size is for models of the gallery", hint="dop list models")
    else:
        graph = _read(file, output, format_name, coarsen, imports or ())
    write_graph(graph, output, force=force)
    _summarize(graph, output, as_json=as_json)


def _read(
    file: Path, output: Path, format_name: str | None, coarsen: str, imports: Sequence[str]
) -> "Graph":
    from doppler.base.files import STANDARD_STREAM, is_pipe
    from doppler.formats import read_graph

    if format_name != PT2 and (format_name or is_pipe(file) or not _is_archive(file)):
        return read_graph(file, format_name=format_name)
    try:
        from doppler.frontends.archive import import_modules, read_model
    except ImportError:
        raise MissingExtraError("torch", "a PyTorch model", extra="torch") from None
    import_modules(imports)
    folder = "" if str(output) == STANDARD_STREAM else output.parent
    return read_model(file, coarsen=_grain(coarsen), folder=folder).graph


def _build(name: str, coarsen: str, *, full_size: bool) -> "Graph":
    """The graph of a model of the gallery."""
    if name not in DESCRIPTIONS:
        raise UnknownNameError("model", name, tuple(DESCRIPTIONS))
    try:
        from doppler.frontends.gallery import make_example
        from doppler.frontends.models.full_size import make_full_example
        from doppler.frontends.torch_export import from_torch
    except ImportError:
        raise MissingExtraError("torch", "a PyTorch model", extra="torch") from None
    module, args, kwargs = make_full_example(name) if full_size else make_example(name)
    return from_torch(module, args, kwargs, coarsen=_grain(coarsen), name=name).graph


def _grain(coarsen: str) -> str | int:
    return int(coarsen) if coarsen.isdecimal() else coarsen


def _summarize(graph: "Graph", output: Path, *, as_json: bool) -> None:
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
        )
    else:
        stdout().print(
            f"{output}: {graph.num_vertices} vertices ({inputs} inputs), "
            f"{graph.num_tensors} tensors, {graph.num_edges} edges"
        )


def _is_archive(path: Path) -> bool:
    """Whether a file looks like one of torch: a zip archive, or a pickle."""
    if path.suffix in _SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_ARCHIVES)
    except (OSError, ValueError):
        return False
