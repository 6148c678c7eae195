"""`dop plot`: a timeline or a graph as a figure for print."""

from pathlib import Path
from typing import Annotated, Any

import typer

from doppler.cli.options import AsJson, Force
from doppler.cli.output import announce, print_json, take_stdout
from doppler.errors import ConfigError


def plot(
    target: Annotated[
        Path, typer.Argument(metavar="TRACE|GRAPH", help="Trace or graph file to draw.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="A .svg, .png or .pdf file to write."),
    ],
    assignment_file: Annotated[
        Path | None,
        typer.Option(
            "--assignment", metavar="FILE", help="Assignment of a graph, for its colours."
        ),
    ] = None,
    links: Annotated[bool, typer.Option(help="Draw the links of a trace too.")] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw a trace as a timeline, or a graph in layers, with matplotlib (extra `plot`).

    Kinds and devices differ by hatch or marker as well as by colour, so that a print in grey can be
    read.

    Example: dop plot trace.json -o timeline.pdf
    """
    from doppler.base.figures import figure_kind, write_figure
    from doppler.base.writing import check_output

    take_stdout(output, as_json=as_json)
    inputs = (target, assignment_file)
    check_output(output, kind=figure_kind(output), inputs=inputs, force=force)
    what, figure = _figure(target, assignment_file, links)
    write_figure(figure, output, force=force)
    if as_json:
        print_json({"figure": str(output), "of": what})
    else:
        announce(output)


def _figure(target: Path, assignment_file: Path | None, links: bool) -> tuple[str, Any]:
    """What a file holds, and a figure of it."""
    from doppler.assignment import read_assignment
    from doppler.base.files import read_text, source_name, title_of
    from doppler.base.writing import format_of
    from doppler.formats import graph_from_text
    from doppler.trace import FORMAT, trace_from_json

    text, source = read_text(target), source_name(target)
    if format_of(text) == FORMAT:
        if assignment_file is not None:
            raise ConfigError("--assignment is for graphs", hint="a trace knows its devices")
        return "trace", trace_from_json(text, source).plot(links=links)
    graph = graph_from_text(text, source, title_of(target))
    assignment = None if assignment_file is None else read_assignment(assignment_file)
    return "graph", graph.plot(assignment)
