"""`dop list`: the names a command takes."""

from enum import StrEnum
from typing import Annotated

import typer

from doppler.cli.options import AsJson
from doppler.cli.output import print_json, stdout, table


class Kind(StrEnum):
    """What can be listed."""

    PLACERS = "placers"
    WORKLOADS = "workloads"
    TOPOLOGIES = "topologies"
    STRATEGIES = "strategies"
    FORMATS = "formats"
    MODELS = "models"


def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.")], as_json: AsJson = False
) -> None:
    """List placers, workloads, topologies, strategies, formats or models.

    Models are those that `dop import gallery:NAME` builds with random weights.

    Example: dop list topologies
    """
    rows = {
        Kind.PLACERS: _placers,
        Kind.WORKLOADS: _workloads,
        Kind.TOPOLOGIES: _topologies,
        Kind.STRATEGIES: _strategies,
        Kind.FORMATS: _formats,
        Kind.MODELS: _models,
    }[kind]()
    if as_json:
        print_json([{"name": name, "description": text} for name, text in rows])
        return
    shown = table("name", "", left=2)
    for name, text in rows:
        shown.add_row(name, text)
    stdout().print(shown)


def _placers() -> list[tuple[str, str]]:
    from doppler.placers.registry import described_placers

    return described_placers()


def _workloads() -> list[tuple[str, str]]:
    from doppler.programs.registry import WORKLOADS

    rows = []
    for name, found in WORKLOADS.items():
        sizes = ", ".join(f"{key}={value}" for key, value in found.sizes.items())
        rows.append((name, f"{found.description} Sizes: {sizes}."))
    return rows


def _topologies() -> list[tuple[str, str]]:
    from doppler.topology import PRESETS, preset

    rows = [(name, preset(name).description.strip()) for name in PRESETS]
    return [*rows, ("reference:N", preset("reference:4").description)]


def _strategies() -> list[tuple[str, str]]:
    from doppler.scheduler.choose import STRATEGIES

    return list(STRATEGIES.items())


def _models() -> list[tuple[str, str]]:
    from doppler.frontends.models.names import DESCRIPTIONS

    return list(DESCRIPTIONS.items())


def _formats() -> list[tuple[str, str]]:
    from doppler.formats import graph_formats

    return [(f.name, f.description) for f in graph_formats()]
