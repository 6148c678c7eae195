"""The `dop` command: one verb per file."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any

import typer

from doppler.cli import (
    comparing,
    demo,
    executing,
    importing,
    listing,
    placing,
    plotting,
    pretraining,
    probing,
    reporting,
    sharding,
    showing,
    simulating,
    training,
    validating,
    viewing,
)
from doppler.cli.options import Verb, unwrapped, with_common_options
from doppler.cli.output import note, print_error, set_up, telling_of_compilation
from doppler.errors import DopplerError, Interrupted

app = typer.Typer(
    name="dop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `dop demo`.",
)
VERBS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "shard": sharding.shard,
    "import": importing.import_graph,
    "show": showing.show,
    "place": placing.place,
    "simulate": simulating.simulate,
    "execute": executing.execute,
    "compare": comparing.compare,
    "train": training.train,
    "pretrain": pretraining.pretrain,
    "probe": probing.probe,
    "validate": validating.validate,
    "report": reporting.report,
    "view": viewing.view,
    "plot": plotting.plot,
    "list": listing.list_names,
}
for name, command in VERBS.items():
    app.command(name, cls=Verb, help=unwrapped(command.__doc__))(with_common_options(command))
# A mistake on the command line; its class is in a library that typer brings or contains.
USAGE_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _print_version(wanted: bool) -> None:
    if wanted:
        from doppler import __version__

        print(f"dop {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=_print_version, metavar="", help="Print it."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show tracebacks.")] = False,
) -> None:
    """Decide which device runs each operation of a dataflow graph, and see how good that is."""


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted  # not KeyboardInterrupt, which the command parser would take for its own


def main() -> None:
    """Run `dop`; a user's mistake exits 2 with a message, Ctrl-C exits 130."""
    signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    set_up()
    debug = "--debug" in sys.argv[1:]
    try:
        with telling_of_compilation():
            code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except DopplerError as error:
        if debug:
            raise
        print_error(error.message, error.hint)
        sys.exit(2)
    except USAGE_ERROR as error:
        _print_usage_error(error)
        sys.exit(2)
    except Interrupted:
        note("interrupted")
        sys.exit(130)
    except MemoryError:
        print_error("this machine ran out of memory")
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        _print_system_error(error)
        sys.exit(2)


def _print_usage_error(error: Any) -> None:
    """Say what is wrong with the command line; without any words on it, how it is used."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        if shown := context.get_help():  # empty where it has been printed already
            print(shown)
        return
    usage = f"try `{context.command_path} --help`" if context is not None else None
    print_error(error.format_message().rstrip("."), usage)


def _print_system_error(error: OSError) -> None:
    """Say what the system refused; nothing if nobody reads what is printed any more."""
    stdout_failed = error.filename is None
    if stdout_failed:  # Python would try again to write what is left when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return
    what = "cannot write to the standard output" if stdout_failed else f"`{error.filename}`"
    print_error(f"{what}: {error.strerror or error}")
