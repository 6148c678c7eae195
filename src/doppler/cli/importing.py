"""`dop import`: other people's graphs and models in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.cli.options import AsJson, Force, GraphOutput, Imports
from doppler.cli.output import print_json, stdout, take_stdout
from doppler.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from doppler.frontends.lifting.lift_report import Lifting
    from doppler.frontends.torch_model import TorchModel
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
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Of a model: cut its operations into N shards, a power of two, where they can be.",
        ),
    ] = None,
    imports: Imports = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a graph in any known format, or a PyTorch model (.pt2), and write it as a graph file.

    A model is what torch.export.save writes. The graph refers to its file for the weights.

    Example: dop import chainmm.txt -o chainmm.json
    """
    from doppler.base.writing import check_output
    from doppler.formats import read_graph
    from doppler.graph import write_graph
    from doppler.graph.io import FORMAT

    take_stdout(output, as_json=as_json)
    check_output(output, kind=FORMAT, inputs=(file,), force=force)
    if not _is_model(file, format_name):
        if parts is not None:
            raise ConfigError(
                f"{file} is a graph, and --parts cuts models",
                hint="import a .pt2 file, or shard a program with `dop shard`",
            )
        graph, lifting = read_graph(file, format_name=format_name), None
    else:
        model = _read_model(file, output, coarsen, parts, imports or ())
        graph, lifting = model.graph, model.lifting
    write_graph(graph, output, force=force)
    _summarize(graph, lifting, output, as_json=as_json)


def _is_model(file: Path, format_name: str | None) -> bool:
    from doppler.base.files import is_pipe

    if format_name is not None:
        return format_name == PT2
    return not is_pipe(file) and _is_archive(file)


def _read_model(
    file: Path, output: Path, coarsen: str, parts: int | None, imports: Sequence[str]
) -> "TorchModel":
    from doppler.base.files import STANDARD_STREAM

    try:
        from doppler.frontends.archive import import_modules, read_model
    except ImportError:
        raise MissingExtraError("torch", "a PyTorch model", extra="torch") from None
    import_modules(imports)
    grain = int(coarsen) if coarsen.isdecimal() else coarsen
    folder = "" if str(output) == STANDARD_STREAM else output.parent
    return read_model(file, coarsen=grain, parts=parts, folder=folder)


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


def _is_archive(path: Path) -> bool:
    """Whether a file looks like one of torch: a zip archive, or a pickle."""
    if path.suffix in _SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_ARCHIVES)
    except (OSError, ValueError):
        return False
