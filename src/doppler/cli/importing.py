"""`dop import`: other people's graphs in."""

from pathlib import Path
from typing import Annotated

import typer

from doppler.cli.options import AsJson, Force, GraphOutput
from doppler.cli.output import print_json, stdout, take_stdout


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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a graph in any known format and write it as a graph file.

    Example: dop import chainmm.txt -o chainmm.json
    """
    from doppler.base.writing import check_output
    from doppler.formats import read_graph
    from doppler.graph import write_graph
    from doppler.graph.io import FORMAT

    take_stdout(output, as_json=as_json)
    check_output(output, kind=FORMAT, inputs=(file,), force=force)
    graph = read_graph(file, format_name=format_name)
    write_graph(graph, output, force=force)
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
