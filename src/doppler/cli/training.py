"""`dop train`: a policy that places."""

import shlex
import sys
from contextlib import ExitStack
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
    complete_topology,
)
from doppler.cli.output import (
    note,
    print_json,
    showing_progress,
)
from doppler.cli.training_config import base_config, changed_config, refuse
from doppler.cli.training_results import placer_of_run, print_results, results_document
from doppler.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from doppler.engine.ranks.group import Group
    from doppler.runs.run import MakeExecutor, Run
    from doppler.training.config import TrainConfig


def train(
    output: RunDirectory,
    graph_files: Annotated[
        list[Path] | None, typer.Argument(metavar="GRAPH", help="Graph files, in any known format.")
    ] = None,
    topology_names: Annotated[
        list[str] | None,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME|FILE|here",
            autocompletion=complete_topology,
            help="May be repeated: every graph is trained on each. If left out, a machine is "
            "assumed, with a remark.",
        ),
    ] = None,
    policy_name: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="doppler, or one to compare with: placeto, placeto-pretrain, gdp, seq2seq.",
        ),
    ] = None,
    preset_name: Annotated[
        str | None,
        typer.Option("--preset", metavar="default|paper", help="Settings to begin with."),
    ] = None,
    config_file: ConfigFile = None,
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Of imitation, sim, real. Default: sim; from nothing imitation,sim.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda|null", help="What stage real runs on. Default: cpu."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="auto|dynamic|fixed",
            help="How stage real runs: see `dop execute --mode`. Default: auto, which is dynamic "
            "unless fixed is predicted to be faster.",
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of stage sim, or real, per graph and topology. With --resume: additional ones.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help="Seconds to train, however many episodes. With --resume: S more seconds.",
        ),
    ] = None,
    seed: TrainingSeed = None,
    device: TorchDevice = None,
    threads: Threads = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|FILE|pretrained|nothing",
            help="What training starts from: the policy of another run, the one that comes with "
            "doppler, or nothing. Default: pretrained, or nothing where --preset paper, --policy, "
            "--stages imitation,… or the policy's shape in --config ask for that.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in DIR where it was saved; --seconds or --episodes extend it.",
        ),
    ] = False,
    save_every: SaveEvery = 30.0,
    wandb: Wandb = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy on graphs by reinforcement on the simulator.

    Training starts from the shipped policy; from nothing, it imitates the critical-path heuristic
    first. At the end it prints the best makespan of the run, that of the trained policy by itself,
    and what `dop place` finds without training.

    Ctrl-C saves; --resume continues as if the run had not been interrupted. Stage real continues
    the training of a policy by running assignments on this machine.

    Example: dop train graph.json --topology p100x4 --seconds 300 -o runs/first
    """
    options = {
        "stages": stages,
        "backend": backend,
        "mode": mode,
        "episodes": episodes,
        "seconds": budget,
        "seed": seed,
        "device": device,
        "threads": threads,
    }
    with ExitStack() as stack:
        if resume:
            given: dict[str, Any] = {"a graph": graph_files, "--topology": topology_names}
            given |= {"--from": start, "--preset": preset_name, "--config": config_file}
            given |= {"--policy": policy_name}
            given |= {f"--{name}": value for name, value in options.items()}
            refuse(given, output)
            run = _resume(stack, output, budget, episodes, save_every, wandb)
            if run is None:
                return
            graph, topology = (str(output / files[0]) for files in run.manifest.files().values())
        elif graph_files:
            base = base_config(policy_name, preset_name, config_file, start)
            config = changed_config(base, config_file, options)
            names = topology_names or []
            run = _start(stack, graph_files, names, config, output, start, save_every, wandb)
            if run is None:
                return
            graph, topology = str(graph_files[0]), (*names, run.manifest.topologies[0].name)[0]
        else:
            raise ConfigError(
                "there is no graph to train on", hint="dop train graph.json -o runs/x"
            )
        _train(run, output)
    from doppler.runs.comparison import compare, keep

    results = run.results()
    with showing_progress():
        comparisons = compare(run)
    if as_json:
        print_json(results_document(run, results, comparisons, output))
    else:
        seen = str(results[0].recalibrated or topology)
        how = ["dop", "place", graph, "--topology", seen, "--placer", placer_of_run(run, output)]
        print_results(run, results, comparisons, output, shlex.join(how))
    keep(run, comparisons)


def _resume(
    stack: ExitStack,
    output: Path,
    longer_s: float | None,
    episodes: int | None,
    save_every: float,
    wandb: bool,
) -> "Run | None":
    """The run; None where this rank has taken part in that of the first."""
    from doppler.runs.manifest import check_run, is_pretraining
    from doppler.training.config import check_extension

    check_extension(longer_s, episodes)
    check_run(output)
    if is_pretraining(output):
        raise ConfigError(
            f"`{output}` is a pretraining", hint=f"resume it: dop pretrain --resume -o {output}"
        )
    from doppler.runs.run import follow, resume_run

    make, group = _executors(stack)
    if group is not None and group.rank:
        follow(group, make)
        return None
    with showing_progress():
        return resume_run(
            output,
            seconds=longer_s,
            episodes=episodes,
            command=command_line(),
            make_executor=make,
            save_every_s=save_every,
            wandb=wandb,
            group=group,
        )


def _executors(stack: ExitStack) -> tuple["MakeExecutor", "Group | None"]:
    """What makes the engine of Stage III, and the group of processes that share the work."""
    from doppler.engine.ranks.opening import open_group
    from doppler.training.api import PATIENCE_S, executors

    group = stack.enter_context(open_group(PATIENCE_S))
    return executors(stack, group=group), group


def command_line() -> str:
    """The command that was typed."""
    return shlex.join(["dop", *sys.argv[1:]])


def _start(
    stack: ExitStack,
    graph_files: list[Path],
    topology_names: list[str],
    config: "TrainConfig",
    output: Path,
    start: str | None,
    save_every: float,
    wandb: bool,
) -> "Run | None":
    """The run; None where this rank has taken part in that of the first."""
    from doppler.cli.topologies import assumed_topology, find_topology
    from doppler.formats import read_graph

    graphs = [read_graph(file) for file in graph_files]
    topologies = [find_topology(name) for name in topology_names]
    topologies = topologies or [assumed_topology(graphs[0])]
    start = _said_start(start, config)
    # From here on torch is needed, which takes a while to import.
    from doppler.runs.run import follow, start_run
    from doppler.training.api import (
        describe,
        make_manifest,
        starting_assignments,
        starting_policy,
    )
    from doppler.training.config import AUTO

    make, group = _executors(stack)
    if group is not None and group.rank:
        follow(group, make)
        return None

    policy = None if start is None else starting_policy(start)
    starts = [] if start is None else starting_assignments(start)
    manifest = make_manifest(
        graphs,
        topologies,
        config,
        policy=policy,
        command=command_line(),
        parent=None if start is None else describe(start),
        starts=starts,
    )
    if "real" in manifest.config.stages and config.real.mode == AUTO:
        note(f"stage real runs in mode {manifest.config.real.mode}; --mode sets it")
    with showing_progress():
        return start_run(
            manifest,
            output,
            policy=policy,
            starts=starts,
            make_executor=make,
            save_every_s=save_every,
            wandb=wandb,
            group=group,
        )


def _said_start(start: str | None, config: "TrainConfig") -> str | None:
    """What training starts from, None for nothing; it is said on stderr, with the alternative."""
    from doppler.base.torchrun import is_first_rank
    from doppler.training.starting import NOTHING, PRETRAINED, usual_start

    usual, more = usual_start(config), ""
    chosen = usual.start if start is None else start
    if start is None and chosen == NOTHING:
        more = f": {usual.why}; --from names a policy to start from"
    elif start is None:
        more = "; --from nothing trains one from nothing"
    names = {NOTHING: "nothing", PRETRAINED: "the policy that comes with doppler"}
    what = names.get(chosen, f"the policy of `{chosen}`")
    stages = ",".join(config.with_stages(from_nothing=chosen == NOTHING).stages)
    if is_first_rank():
        note(f"training starts from {what}, stages {stages}{more}")
    return None if chosen == NOTHING else chosen


def _train(run: "Run", output: Path) -> None:
    """Train to the end, or until Ctrl-C."""
    try:
        train_on(run)
    except Interrupted:
        note(f"saved: resume with `dop train --resume -o {output}`")
        raise


def train_on(run: "Run") -> None:
    """Train to the end, and show how it goes; on Ctrl-C, save and raise `Interrupted`."""
    from doppler.cli.training_view import TrainingView
    from doppler.runs.run import stopping

    if not run.has_tensorboard:
        note("no TensorBoard events are written: pip install doppler-placement[tensorboard]")
    config = run.manifest.config
    view = TrainingView(run.labels, config.seconds, last_stage=config.stages[-1])

    def stop() -> None:
        view.say("finishing this update, then saving; Ctrl-C again stops at once")
        run.stop()

    with stopping(stop), run:
        try:
            for progress in run:
                view.show(progress, run.gaps)
        finally:
            view.close()
