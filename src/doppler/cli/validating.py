"""`dop validate`: does the simulator predict this machine?"""

from importlib import import_module
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.base.writing import check_output, is_stdout, write_bytes
from doppler.cli.options import (
    MAX_REPEATS,
    AsJson,
    Force,
    GraphFile,
    Probe,
    Seed,
    complete_topology,
)
from doppler.cli.output import (
    announce,
    note,
    percent,
    print_json,
    seconds,
    showing_progress,
    spread,
    stdout,
    table,
    take_stdout,
)
from doppler.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from doppler.machine.validation import Validation

PICTURES = (".png", ".svg", ".pdf")


def validate(
    graph_file: GraphFile,
    topology_name: Annotated[
        str,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME|FILE|here",
            autocompletion=complete_topology,
            help="A measured topology, of `dop probe`; or `here`.",
        ),
    ],
    backend: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="What the devices are: cores or GPUs.")
    ] = "cpu",
    count: Annotated[
        int, typer.Option("--assignments", min=3, max=MAX_REPEATS, metavar="N", help="To run.")
    ] = 60,
    repeats: Annotated[
        int, typer.Option(min=1, max=MAX_REPEATS, help="Measured runs of each.")
    ] = 3,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Scatter to write: .json, or .png, .svg, .pdf with matplotlib.",
        ),
    ] = None,
    force: Force = False,
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run diverse assignments on real devices, and compare with what the simulator says.

    They span from random ones to the best that a search finds. Prints how well the predicted
    makespans correlate with the measured ones, over all and among the best quarter.

    Example: dop validate graph.json --topology here.json --backend cpu --assignments 40
    """
    from doppler.cli.topologies import find_topology
    from doppler.engine.engine import Engine
    from doppler.formats import read_graph
    from doppler.machine.validation import (
        diverse_assignments,
        validation_document,
        write_validation,
    )
    from doppler.machine.validation import validate as compare

    take_stdout(output, as_json=as_json)
    if output is not None:
        _check_ending(output)
        inputs = (graph_file, topology_name)
        check_output(output, kind=_kind(output), inputs=inputs, force=force)
    graph = read_graph(graph_file)
    topology = find_topology(topology_name, graph, probe_again=probe)
    with showing_progress(), Engine(topology, backend) as engine:
        engine.load(graph)
        assignments = diverse_assignments(graph, topology, count, seed)
        validation = compare(graph, topology, engine, assignments, repeats=repeats)
    if output and output.suffix in PICTURES:
        picture = _picture(validation, output.suffix[1:])
        write_bytes(output, picture, kind=_kind(output), force=force)
    elif output:
        write_validation(validation, output, force=force)
    if as_json:
        print_json(validation_document(validation))
    else:
        _print(validation)
        announce(output)
    for failure in validation.failures:
        note(f"did not run: {failure}")


def _kind(output: Path) -> str:
    from doppler.machine.validation import FORMAT

    return output.suffix[1:] if output.suffix in PICTURES else FORMAT


def _check_ending(output: Path) -> None:
    """Raise now, not after minutes of work, where the scatter cannot be drawn."""
    if output.suffix in PICTURES:
        try:
            import_module("matplotlib.figure")
        except ImportError:
            raise MissingExtraError("matplotlib", f"a scatter as {output.suffix}") from None
    elif output.suffix != ".json" and not is_stdout(output):
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
