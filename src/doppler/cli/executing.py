"""`dop execute`: run an assignment on real devices, and see what was predicted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.base.torchrun import is_first_rank
from doppler.cli.options import (
    MAX_REPEATS,
    AsJson,
    AssignmentFile,
    Cold,
    Force,
    GraphFile,
    Imports,
    Probe,
    Seed,
    Strategy,
    TopologyName,
)
from doppler.cli.output import (
    amount,
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
from doppler.errors import ConfigError, DopplerError, FormatError
from doppler.scheduler.choose import DYNAMIC, FIXED, MODES

AUTO = "auto"
ARRAYS = "npz"  # the kind of file that inputs and outputs are in
MAX_NAME_BYTES = 65_000  # of an array in one

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.engine.config import EngineConfig
    from doppler.engine.execution import Execution
    from doppler.graph import Graph
    from doppler.topology import Topology


def complete_execution_mode(begun: str) -> list[str]:
    """The modes of `dop execute` whose names begin so."""
    return [name for name in (AUTO, *MODES) if name.startswith(begun)]


def execute(
    graph_file: GraphFile,
    assignment_file: AssignmentFile,
    topology_name: TopologyName = None,
    backend: Annotated[
        str, typer.Option(metavar="cpu|cuda|null", help="What the devices are; null: nothing runs.")
    ] = "cpu",
    repeat: Annotated[int, typer.Option(min=1, max=MAX_REPEATS, help="Runs to measure.")] = 10,
    warm_up: Annotated[
        int, typer.Option(min=0, max=MAX_REPEATS, help="Runs before those, not measured.")
    ] = 1,
    mode: Annotated[
        str,
        typer.Option(
            metavar="auto|dynamic|fixed",
            autocompletion=complete_execution_mode,
            help="dynamic: the host starts each task when it is ready. fixed: it starts all ahead "
            "in the order of a schedule. auto: what is predicted to be faster.",
        ),
    ] = AUTO,
    strategy: Strategy = "fifo",
    bulk_synchronous: Annotated[
        bool, typer.Option("--bulk-synchronous", help="Put a barrier after every level.")
    ] = False,
    cold: Cold = False,
    limit_memory: Annotated[
        bool, typer.Option(help="Let tensors share memory where a device has too little.")
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Give up when no task has ended for this long."),
    ] = 60.0,
    transport: Annotated[
        str,
        typer.Option(
            metavar="gloo|nccl",
            help="How tensors go between processes on GPUs: through the hosts' memory, or from GPU "
            "to GPU (in fixed mode, one GPU each).",
        ),
    ] = "gloo",
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Inputs by name (.npz); random ones if left out."),
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Results to write (.npz), by name.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Trace file to write (of the median run)."
        ),
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Run an imported model without its weights."),
    ] = False,
    imports: Imports = None,
    force: Force = False,
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run an assignment on real devices: CPU cores, or GPUs.

    Prints how long the runs took beside what the simulator says. Only graphs with kernels can run,
    such as `dop shard` makes, and `dop import` of a model. Resident inputs are in place when the
    clock starts, also those that a memory plan overwrote in the run before; with --cold all of them
    are loaded from the host within each run. Under `torchrun` every process runs the
    devices of its host, and the first one prints.

    Example: dop execute graph.json assignment.json --topology cpu2 --backend cpu -o trace.json
    """
    from doppler.assignment import read_assignment
    from doppler.base.writing import check_output
    from doppler.cli import plans
    from doppler.cli.topologies import find_topology
    from doppler.engine.config import EngineConfig
    from doppler.engine.ranks.opening import open_engine
    from doppler.formats import read_graph
    from doppler.problem import Problem
    from doppler.trace import FORMAT

    take_stdout(output, outputs, as_json=as_json)
    sources = (graph_file, assignment_file, topology_name, inputs)
    check_output(output, kind=FORMAT, inputs=sources, force=force)
    check_output(outputs, kind=ARRAYS, inputs=sources, force=force)
    modes = _modes(mode, transport, synchronous=bulk_synchronous)
    config = EngineConfig(
        strategy=strategy,
        mode=modes[0],
        transport=transport,
        synchronous=bulk_synchronous,
        limit_memory=limit_memory,
        timeout_s=timeout,
    )
    assignment, graph = read_assignment(assignment_file), read_graph(graph_file)
    if topology_name is None and not assignment.topology:
        raise ConfigError("no topology is given", hint="add --topology, such as here or cpu2")
    topology = find_topology(topology_name, graph, assignment, probe_again=probe)
    given = None if inputs is None else read_arrays(inputs)
    if backend != "null" and graph.provenance:
        given = _with_weights(graph, graph_file, given, imports or (), random=random_weights)
    if cold:
        graph = plans.cold_graph(graph, topology)
        assignment = plans.fitting(assignment, Problem(graph, topology))
    assignment.check(graph, topology)
    predictions = _predict(graph, topology, assignment, config, modes, seed)
    config = replace(config, mode=_choose(modes, predictions, assignment))
    with open_engine(topology, backend, config) as engine, showing_progress():
        if not engine.backend.computes and (inputs or outputs):
            raise ConfigError(f"backend `{backend}` computes nothing, so there are no outputs")
        result = engine.execute(
            graph, assignment, given, repeats=repeat, warm_up=warm_up, seed=seed
        )
    if not is_first_rank():
        return
    _write(result, output, outputs, force=force)
    if as_json:
        print_json(_summary(result, predictions, backend, config.mode, output))
        return
    _print_summary(result, predictions, config.mode)
    announce(output, outputs)


def _write(result: "Execution", output: Path | None, outputs: Path | None, *, force: bool) -> None:
    from doppler.trace import write_trace

    if output:
        write_trace(result.trace, output, force=force)
    if outputs:
        write_arrays(result.outputs, outputs, force=force)


def _with_weights(
    graph: "Graph",
    path: Path,
    given: dict[str, Any] | None,
    imports: Sequence[str],
    *,
    random: bool,
) -> dict[str, Any] | None:
    """The inputs of a graph that was imported, with the weights of its model."""
    from doppler.base.files import STANDARD_STREAM
    from doppler.frontends.model_files import import_modules, model_inputs

    import_modules(imports)
    folder = Path() if str(path) == STANDARD_STREAM else path.parent
    return model_inputs(graph, None if random else folder, given)


def _predict(
    graph: "Graph",
    topology: "Topology",
    assignment: "Assignment",
    config: "EngineConfig",
    modes: Sequence[str],
    seed: int,
) -> dict[str, float]:
    """The simulated makespan in each mode; none where the topology cannot tell."""
    from doppler.problem import Problem
    from doppler.sim import SimConfig, Simulator

    options = SimConfig(
        strategy=config.strategy, synchronous=config.synchronous, limit_memory=config.limit_memory
    )
    try:
        problem = Problem(graph, topology)
        return {
            mode: Simulator(problem, replace(options, mode=mode))
            .run(graph, assignment, seed)
            .makespan_s
            for mode in modes
        }
    except DopplerError as error:
        note(f"no prediction: {error.message}")
        return {}


def _modes(mode: str, transport: str, *, synchronous: bool) -> list[str]:
    """The modes that a run may be in: the one that was asked for, or those that can be."""
    from doppler.engine.config import NCCL

    if mode != AUTO:
        return [mode]
    if transport == NCCL:
        return [FIXED]
    return [DYNAMIC] if synchronous else [DYNAMIC, FIXED]


def _choose(modes: Sequence[str], predictions: dict[str, float], assignment: "Assignment") -> str:
    """The mode to run in: that of the better prediction, the first of equals."""
    if predictions:
        return min(modes, key=lambda mode: predictions[mode])
    return modes[0] if assignment.schedule is None else modes[-1]


def _summary(
    result: "Execution",
    predictions: dict[str, float],
    backend: str,
    mode: str,
    output: Path | None,
) -> dict[str, Any]:
    trace, predicted = result.trace, predictions.get(mode)
    return {
        "makespan_s": result.mean_s,
        "spread_s": result.spread_s,
        "makespans_s": result.makespans_s.tolist(),
        "predicted_s": predicted,
        "error": _error(result, predicted),
        "utilization": trace.utilization().tolist(),
        "idle_s": trace.idle_s().tolist(),
        "link_utilization": trace.link_utilization().tolist(),
        "peak_bytes": result.peak_bytes.tolist(),
        "bytes_moved": trace.bytes_moved,
        "bytes_by_class": trace.bytes_by_class(),
        "overlap": trace.overlap(),
        "transfers": int(trace.is_transfer.sum()),
        "backend": backend,
        "mode": mode,
        "predictions_s": predictions,
        "graph": trace.graph,
        "topology": trace.topology,
        "placer": trace.placer,
        "trace": str(output) if output else None,
    }


def _error(result: "Execution", predicted: float | None) -> float | None:
    """How far the prediction is above what was measured, as `dop validate` has it."""
    if predicted is None or not result.mean_s:
        return None
    return predicted / result.mean_s - 1


def _print_summary(result: "Execution", predictions: dict[str, float], mode: str) -> None:
    from doppler.cli.timeline import timeline

    out, trace, predicted = stdout(), result.trace, predictions.get(mode)
    expected, error = "", _error(result, predicted)
    if predicted is not None and error is not None:
        expected = f"; predicted {seconds(predicted)} ({100 * error:+.1f} % off)"
    runs = len(result.makespans_s)
    took = spread(result.mean_s, result.spread_s)
    out.print(f"makespan {took} over {runs} {'run' if runs == 1 else 'runs'}{expected}")
    each = ", ".join(f"{name} {seconds(value)}" for name, value in predictions.items())
    faster = f", predicted to be the faster: {each}" if len(predictions) > 1 else ""
    out.print(f"mode {mode}{faster}")
    devices = table("device", "busy", "idle", "execs", "memory")
    busy, idle = trace.utilization(), trace.idle_s()
    for i, device in enumerate(trace.devices):
        execs = int(((trace.device == i) & ~trace.is_transfer).sum())
        memory = amount(float(result.peak_bytes[i]), "B")
        devices.add_row(device.name, percent(busy[i]), seconds(idle[i]), str(execs), memory)
    out.print(devices)
    by_class = ", ".join(f"{amount(v, 'B')} {k}" for k, v in trace.bytes_by_class().items())
    out.print(f"read: {by_class}; transfers overlap compute {percent(trace.overlap())}")
    out.print()
    out.print("the median run (run: computing, in: tensors arriving):")
    out.print(timeline(trace, out.width))


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays in an .npz file, by name."""
    from io import BytesIO

    import numpy as np

    from doppler.base.files import read_bytes, source_name

    data = BytesIO(read_bytes(path))
    try:
        arrays = np.load(data, allow_pickle=False)
        return dict(arrays.items())
    except MemoryError:
        raise
    except Exception:  # numpy, zipfile and zlib raise almost anything for what is not theirs
        raise FormatError(
            f"{source_name(path)} is not an .npz file of arrays",
            hint="write one with numpy.savez, an array for each input",
        ) from None


def write_arrays(arrays: dict[str, Any], path: Path, *, force: bool = False) -> None:
    """Write arrays by name to an .npz file, whole or not at all."""
    from io import BytesIO
    from zipfile import ZipFile

    from numpy.lib.format import write_array

    from doppler.base.writing import write_bytes

    data = BytesIO()
    with ZipFile(data, "w") as archive:
        for name, value in arrays.items():
            array = _as_array(value)
            if "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
                raise ConfigError(f"result `{name[:40]}` has a name that no .npz file can hold")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)
    write_bytes(path, data.getvalue(), kind=ARRAYS, force=force)


def _as_array(value: Any) -> Any:
    """An array, or a tensor as one; in float32, where numpy has no such dtype."""
    if not hasattr(value, "untyped_storage"):
        return value
    try:
        return value.numpy()
    except TypeError:
        return value.float().numpy()
