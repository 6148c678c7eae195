"""The `dop` command: one verb per file."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from doppler.cli import (
    comparing,
    demo,
    executing,
    importing,
    listing,
    placing,
    pretraining,
    probing,
    sharding,
    showing,
    simulating,
    training,
    validating,
)
from doppler.cli.output import note, print_error, telling_of_compilation
from doppler.errors import DopplerError, Interrupted

app = typer.Typer(
    name="dop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `dop demo`.",
)
app.command("demo")(demo.demo)
app.command("shard")(sharding.shard)
app.command("import")(importing.import_graph)
app.command("show")(showing.show)
app.command("place")(placing.place)
app.command("simulate")(simulating.simulate)
app.command("execute")(executing.execute)
app.command("compare")(comparing.compare)
app.command("train")(training.train)
app.command("pretrain")(pretraining.pretrain)
app.command("probe")(probing.probe)
app.command("validate")(validating.validate)
app.command("list")(listing.list_names)


def _print_version(wanted: bool) -> None:
    if wanted:
        from doppler import __version__

        print(f"dop {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print it.")
    ] = False,
) -> None:
    """Decide which device runs each operation of a dataflow graph, and see how good that is."""


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted  # not KeyboardInterrupt, which the command parser would take for its own


def main() -> None:
    """Run `dop`; a user's mistake exits 2 with a message, Ctrl-C exits 130."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        with telling_of_compilation():
            app()
    except DopplerError as error:
        if "--debug" in sys.argv[1:]:
            raise
        print_error(error)
        sys.exit(2)
    except Interrupted:
        note("interrupted")
        sys.exit(130)
    except MemoryError:
        note("error: this machine ran out of memory")
        sys.exit(2)
