"""Options that several commands share."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from doppler.cli.output import set_up


def _starting_with(begun: str, names: "list[str] | tuple[str, ...]") -> list[str]:
    return [name for name in names if name.startswith(begun)]


def complete_topology(begun: str) -> list[str]:
    """The topologies whose names begin so."""
    from doppler.cli.topologies import HERE
    from doppler.topology import PRESETS

    return _starting_with(begun, [*PRESETS, HERE, "reference:4"])


def complete_placer(begun: str) -> list[str]:
    """The placers whose names begin so."""
    from doppler.placers import placer_names

    return _starting_with(begun, placer_names())


def complete_strategy(begun: str) -> list[str]:
    """The strategies of ChooseTask whose names begin so."""
    from doppler.scheduler.choose import STRATEGIES

    return _starting_with(begun, list(STRATEGIES))


def complete_mode(begun: str) -> list[str]:
    """The modes whose names begin so."""
    from doppler.scheduler.choose import MODES

    return _starting_with(begun, list(MODES))


def complete_workload(begun: str) -> list[str]:
    """The workloads whose names begin so."""
    from doppler.programs.registry import WORKLOADS

    return _starting_with(begun, list(WORKLOADS))


DeviceMapFile = Annotated[
    Path | None,
    typer.Option(
        "--device-map",
        metavar="FILE",
        help="Of a PyTorch model: write the device of each module as JSON, as accelerate and "
        "transformers take it.",
    ),
]
GraphFile = Annotated[
    Path,
    typer.Argument(
        metavar="GRAPH", help="Graph file, in any known format; - for the standard input."
    ),
]
GraphOutput = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Graph file to write.")
]
AssignmentFile = Annotated[
    Path, typer.Argument(metavar="ASSIGNMENT", help="Assignment file; - for the standard input.")
]
TopologyName = Annotated[
    str | None,
    typer.Option(
        "--topology",
        "-t",
        metavar="NAME|FILE|here",
        autocompletion=complete_topology,
        help="The machine: a name from `dop list topologies`, a TOML or JSON file, or `here` for "
        "this one, which is measured once. If left out, the one that the assignment was made for, "
        "or an assumed one, with a remark.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Python module to import first, for operations that it registers; may be repeated.",
    ),
]
Probe = Annotated[
    bool, typer.Option("--probe", help="Measure this machine again, for --topology here.")
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_strategy,
        help="ChooseTask: from `dop list strategies`.",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="dynamic|fixed",
        autocompletion=complete_mode,
        help="dynamic: the host starts each task when it is ready. fixed: it starts all tasks "
        "ahead in the order of a schedule, and devices wait for one another.",
    ),
]
Cold = Annotated[
    bool,
    typer.Option("--cold", help="Start cold: resident inputs are loaded from the host first."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Force = Annotated[
    bool, typer.Option("--force", help="Write over a file of another kind, if one is there.")
]
RunDirectory = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the run.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Changes to the settings, as TOML or JSON."),
]
TrainingSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Random seed.")]
TorchDevice = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Where the networks compute.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="For episodes, simulation and search.")
]
SaveEvery = Annotated[
    float, typer.Option("--checkpoint-every", min=0.0, metavar="S", help="Seconds between saves.")
]
Wandb = Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases as well.")]
MAX_REPEATS = 1_000_000  # runs, draws, samples: more is taken for a typing error


class Verb(TyperCommand):
    """A command whose flags are shown as flags, not as options with a value."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters."""
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


def unwrapped(text: str | None) -> str:
    """A docstring with each paragraph on a line of its own, to be wrapped as the terminal is."""
    paragraphs = cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def with_common_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with those options that all commands have: how much to say."""
    common = {
        "quiet": Annotated[
            bool, typer.Option("--quiet", "-q", help="Print no remarks and no progress.")
        ],
        "verbose": Annotated[
            int,
            typer.Option(
                "--verbose", "-v", count=True, metavar="", help="Say more; twice: even more."
            ),
        ],
        "debug": Annotated[bool, typer.Option("--debug", help="Show tracebacks.")],
    }

    @wraps(command)
    def run(*args: Any, quiet: bool, verbose: int, debug: bool, **options: Any) -> None:
        set_up(quiet=quiet, verbose=verbose)
        command(*args, **options)

    mine = signature(command)
    own = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=0 if name == "verbose" else False,
            annotation=annotation,
        )
        for name, annotation in common.items()
    ]
    run.__signature__ = mine.replace(parameters=[*mine.parameters.values(), *own])  # type: ignore[attr-defined]
    run.__annotations__ = command.__annotations__ | common
    return run
