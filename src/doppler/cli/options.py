"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH", help="Graph file, in any known format.")
]
TopologyName = Annotated[
    str,
    typer.Option(
        "--topology",
        "-t",
        metavar="NAME|FILE",
        help="A name from `dop list topologies`, or a TOML or JSON file.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DEFAULT_TOPOLOGY = "p100x4"
