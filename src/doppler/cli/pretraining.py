"""`dop pretrain`: a policy for graphs and machines it has not seen."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import (
    AsJson,
    ConfigFile,
    RunDirectory,
    SaveEvery,
    Threads,
    TorchDevice,
    TrainingSeed,
    Wandb,
)
from doppler.cli.output import note, percent, print_json, seconds, showing_progress, stdout
from doppler.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from doppler.datasets.recipe import Recipe
    from doppler.runs.run import Run
    from doppler.training.config import TrainConfig

SECONDS, PRESET = 1800.0, "pretrain"


def pretrain(
    output: RunDirectory,
    problems: Annotated[int | None, typer.Option(min=1, help="To train on. Default: 512.")] = None,
    max_vertices: Annotated[
        int | None, typer.Option(min=1, help="Of their graphs, at most. Default: 300.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help=f"Seconds to train. Default: {SECONDS:.0f}. With --resume: S more seconds.",
        ),
    ] = None,
    validation: Annotated[
        int | None, typer.Option(min=0, help="Problems to validate the policy on. Default: 24.")
    ] = None,
    validate_every: Annotated[
        float | None,
        typer.Option("--validate-every", min=0.0, metavar="S", help="Default: 120 seconds."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, help="Of the search that they are compared with. Default: 20000."),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Families to leave out, each with its whole group."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of families and machines: train, validation, test, all. Default: train.",
        ),
    ] = None,
    max_devices: Annotated[
        int | None, typer.Option(min=16, help="Of their machines, at most. Default: 16.")
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Of communication to computation. Default: those of the families, about 0.1,10.",
        ),
    ] = None,
    seed: TrainingSeed = None,
    threads: Threads = None,
    device: TorchDevice = None,
    config_file: ConfigFile = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|FILE|pretrained|nothing",
            help="What training starts from. Default: nothing.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume the run in DIR where it was saved; --seconds extends it."
        ),
    ] = False,
    save_every: SaveEvery = 30.0,
    wandb: Wandb = False,
    as_json: AsJson = False,
) -> None:
    """Train one policy on many random problems, so that it can place graphs it has not seen.

    At intervals it shows the gap of the policy alone to the best known makespans, on problems of
    families and machines that it is not trained on. Ctrl-C saves; --resume continues.

    Example: dop pretrain --seconds 600 -o runs/pretrained
    """
    from doppler.base.torchrun import is_first_rank

    drawing = {
        "problems": problems,
        "max_vertices": max_vertices,
        "validation": validation,
        "validate_every_s": validate_every,
        "evaluations": evaluations,
        "without": without,
        "split": split,
        "max_devices": max_devices,
        "ratios": ratios,
    }
    options = {"seconds": budget, "seed": seed, "device": device, "threads": threads}
    if resume:
        given: dict[str, Any] = {"--config": config_file, "--from": start} | {
            f"--{name.removesuffix('_s').replace('_', '-')}": value
            for name, value in (drawing | options).items()
        }
        if is_first_rank():
            _check_resume(output, given, budget)
    else:
        config = _config(config_file, options, start)
        recipe = _recipe(config.seed, drawing)
    # From here on torch is needed, which takes a while to import.
    from doppler.engine.ranks.opening import open_group
    from doppler.runs.run import follow
    from doppler.training.api import PATIENCE_S

    with open_group(PATIENCE_S) as group:
        if group is not None and group.rank:
            follow(group)
            return
        given = {"save_every_s": save_every, "wandb": wandb, "group": group}
        if resume:
            run = _resume(output, budget, given)
        else:
            run = _start(output, config, recipe, start, given)
        _train(run, output)
    if as_json:
        print_json(_document_of(run, output))
    else:
        _print(run, output)


def _config(file: Path | None, options: dict[str, Any], start: str | None) -> "TrainConfig":
    """The preset for half an hour, changed by the file, changed by the options given."""
    from doppler.cli.training_config import base_config, changed_config

    base = replace(base_config(None, None, file, start, default=PRESET), seconds=SECONDS)
    config = changed_config(base, file, options)
    if "real" in config.stages:
        raise ConfigError("a pretraining has no stage `real`", hint="that is one of `dop train`")
    return config


def _start(
    output: Path,
    config: "TrainConfig",
    recipe: "Recipe",
    start: str | None,
    given: dict[str, Any],
) -> "Run":
    from doppler.cli.training import command_line
    from doppler.runs.run import start_run
    from doppler.training.api import pretraining, starting_policy
    from doppler.training.starting import NOTHING

    start = None if start == NOTHING else start
    with showing_progress():
        manifest = pretraining(recipe, config, start=start, command=command_line())
        policy = None if start is None else starting_policy(start)
        return start_run(manifest, output, policy=policy, **given)


def _recipe(seed: int, drawing: dict[str, Any]) -> "Recipe":
    """What problems are drawn by."""
    from doppler.datasets.recipe import Recipe

    drawn = {key: value for key, value in drawing.items() if value is not None}
    if "without" in drawn:
        drawn["without"] = tuple(n.strip() for n in drawn["without"].split(",") if n.strip())
    if "ratios" in drawn:
        drawn["ratios"] = _numbers(drawn["ratios"])
    return Recipe(seed=seed, **drawn)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ConfigError(f"--ratios is {text!r}, must be two numbers, such as 0.1,10") from None


def _check_resume(output: Path, given: dict[str, Any], longer_s: float | None) -> None:
    """An error where that cannot be resumed, or options were given that cannot be changed."""
    from doppler.cli.training_config import refuse
    from doppler.runs.manifest import check_run, is_pretraining
    from doppler.training.config import check_extension

    refuse(given, output)
    check_extension(longer_s, None)
    check_run(output)
    if not is_pretraining(output):
        raise ConfigError(
            f"`{output}` is no pretraining", hint=f"resume it: dop train --resume -o {output}"
        )


def _resume(output: Path, longer_s: float | None, given: dict[str, Any]) -> "Run":
    from doppler.cli.training import command_line
    from doppler.runs.run import resume_run

    with showing_progress():
        return resume_run(output, seconds=longer_s, command=command_line(), **given)


def _train(run: "Run", output: Path) -> None:
    """Train to the end, or until Ctrl-C."""
    from doppler.cli.training import train_on

    try:
        train_on(run)
    except Interrupted:
        note(f"saved: resume with `dop pretrain --resume -o {output}`")
        raise
    if not run.gaps:  # all was done already
        run.validate()


def _document_of(run: "Run", output: Path) -> dict[str, Any]:
    return {
        "run": str(output),
        "problems": len(run.manifest.problems),
        "digest": "" if run.manifest.recipe is None else run.manifest.recipe.digest,
        "episodes": sum(run.tally.episodes.values()),
        "seconds": run.trainer.seconds,
        "validation": [asdict(gap) for gap in run.gaps],
    }


def _print(run: "Run", output: Path) -> None:
    from doppler.cli.training_view import gaps_table

    out = stdout()
    if run.gaps:
        out.print(gaps_table(run.gaps))
    trained = sum(count > 0 for count in run.tally.episodes.values())
    took, all_of = seconds(run.trainer.seconds), len(run.manifest.problems)
    share = percent(trained / all_of)
    out.print(f"trained for {took} on {trained} problems ({share}); the run is in {output}")
    how = shlex.join(["dop", "place", "graph.json", "--placer", f"doppler:{output}"])
    out.print("place with it:")
    out.print(f"  {how}")
