"""`dop import`: other people's graphs and models in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.cli.options import AsJson, Force, GraphOutput, Imports
from doppler.cli.output import print_json, stdout, take_stdout
from doppler.errors import MissingExtraError

if TYPE_CHECKING:
    from doppler.graph import Graph

PT2 = "pt2"  # format of PyTorch models
_SUFFIXES = (".pt2", ".pt", ".pth", ".pkl", ".pickle")
_ARCHIVES = (b"PK\3\4", b"PK\5\6", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")  # zip, pickles


def import_graph(
    file: Annotated[Path, typer.Argument(help="The file to read; - for the standard input.")],
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
    imports: Imports = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a graph in any known format, or a PyTorch model (.pt2), and write it as a graph file.

    A model is what torch.export.save writes. The graph refers to its file for the weights.

    Example: dop import chainmm.txt -o chainmm.json
    """
    from doppler.base.writing import check_output
    from doppler.graph import write_graph
    from doppler.graph.io import FORMAT

    take_stdout(output, as_json=as_json)
    check_output(output, kind=FORMAT, inputs=(file,), force=force)
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
    grain = int(coarsen) if coarsen.isdecimal() else coarsen
    folder = "" if str(output) == STANDARD_STREAM else output.parent
    return read_model(file, coarsen=grain, folder=folder).graph


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
