"""`dop validate`: does the simulator predict this machine?"""

from importlib import import_module
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.cli.options import AsJson, GraphFile, Seed
from doppler.cli.output import (
    note,
    percent,
    print_json,
    seconds,
    showing_progress,
    spread,
    stdout,
    table,
)
from doppler.errors import ConfigError, FormatError, MissingExtraError
from doppler.files import write_bytes

if TYPE_CHECKING:
    from doppler.validation import Validation

PICTURES = (".png", ".svg", ".pdf")


def validate(
    graph_file: GraphFile,
    topology_name: Annotated[
        str,
        typer.Option(
            "--topology", "-t", metavar="NAME|FILE", help="A measured topology, of `dop probe`."
        ),
    ],
    backend: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="What the devices are: cores or GPUs.")
    ] = "cpu",
    count: Annotated[
        int, typer.Option("--assignments", min=3, metavar="N", help="Assignments to run.")
    ] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="Measured runs of each.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Scatter to write: .json, or .png, .svg, .pdf with matplotlib."
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run diverse assignments on real devices, and compare with what the simulator says.

    They span from random ones to the best that a search finds. Prints how well the predicted
    makespans correlate with the measured ones, over all and among the best quarter.

    Example: dop validate graph.json --topology here.json --backend cpu --assignments 40
    """
    from doppler.engine.engine import Engine
    from doppler.formats import load_graph
    from doppler.topology import load_topology
    from doppler.validation import diverse_assignments, validation_document, write_validation
    from doppler.validation import validate as compare

    _check_output(output)
    topology, graph = load_topology(topology_name), load_graph(graph_file)
    with showing_progress(), Engine(topology, backend) as engine:
        engine.load(graph)
        assignments = diverse_assignments(graph, topology, count, seed)
        validation = compare(graph, topology, engine, assignments, repeats=repeats)
    if output and output.suffix in PICTURES:
        write_bytes(output, _picture(validation, output.suffix[1:]))
    elif output:
        write_validation(validation, output)
    if as_json:
        print_json(validation_document(validation))
    else:
        _print(validation)
        if output:
            stdout().print(f"wrote {output}")
    for failure in validation.failures:
        note(f"did not run: {failure}")


def _check_output(output: Path | None) -> None:
    """Raise now, not after minutes of work, where the scatter cannot be written."""
    if output is None:
        return
    if not output.parent.is_dir():
        raise FormatError(f"cannot write `{output}`: no folder `{output.parent}`")
    if output.suffix in PICTURES:
        try:
            import_module("matplotlib.figure")
        except ImportError:
            raise MissingExtraError("matplotlib", f"a scatter as {output.suffix}") from None
    elif output.suffix != ".json":
        known = ", ".join((".json", *PICTURES))
        raise ConfigError(f"`{output}` is no name for a scatter", hint=f"endings: {known}")


def _print(validation: "Validation") -> None:
    out = stdout()
    out.print(
        f"{len(validation.placers)} assignments of {validation.graph} on {validation.topology}: "
        f"Pearson {_figure(validation.pearson)}, Spearman {_figure(validation.spearman)} "
        f"({_figure(validation.best_spearman)} among the best quarter), "
        f"mean error {'-' if isnan(validation.mape) else percent(validation.mape)}"
    )
    shown = table("furthest off", "measured", "predicted", "error")
    for i in validation.worst().tolist():
        shown.add_row(
            validation.placers[i],
            spread(float(validation.measured_s[i]), float(validation.spread_s[i])),
            seconds(float(validation.predicted_s[i])),
            f"{100 * validation.errors[i]:+.1f} %",
        )
    out.print(shown)


def _figure(value: float) -> str:
    return "-" if isnan(value) else f"{value:.4f}"


def _picture(validation: "Validation", kind: str) -> bytes:
    """Predicted against measured milliseconds."""
    figure = import_module("matplotlib.figure").Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    measured, predicted = validation.measured_s * 1e3, validation.predicted_s * 1e3
    axes.errorbar(
        measured, predicted, xerr=validation.spread_s * 1e3, fmt="o", ms=4, lw=0.5, alpha=0.7
    )
    ends = [min(measured.min(), predicted.min()), max(measured.max(), predicted.max())]
    axes.plot(ends, ends, color="grey", lw=0.8)
    axes.set(
        xlabel="measured (ms)",
        ylabel="predicted (ms)",
        title=f"{validation.graph} on {validation.topology}: "
        f"Pearson {_figure(validation.pearson)}, Spearman {_figure(validation.spearman)}",
    )
    data = BytesIO()
    figure.savefig(data, format=kind, dpi=150)
    return data.getvalue()
