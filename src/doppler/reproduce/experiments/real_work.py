"""What the jobs of a real machine do; those of the same graph share an engine with its inputs."""

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import IntArray
from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.mdp.instance import make_instance
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.registry import make_placer
from doppler.problem import Problem
from doppler.reproduce.experiments.engines import DEVICES, graph_for
from doppler.reproduce.experiments.real_jobs import GUARDED
from doppler.reproduce.jobs import TOPOLOGY, WEIGHTS, Result, Tool, Workshop
from doppler.scheduler.choose import DYNAMIC
from doppler.sim import SimConfig, Simulator
from doppler.topology.io import write_topology
from doppler.topology.presets import read_topology
from doppler.topology.topology import Topology

if TYPE_CHECKING:
    from doppler.engine.engine import Engine
    from doppler.policies.trainable import TrainablePolicy
    from doppler.training.config import RealConfig, TrainConfig
    from doppler.training.trainer import Trainer

PANEL = 20  # assignments of Stage I that are run (App. G.1, left)
TOGETHER = 12  # assignments that are measured in turns: an engine keeps some more prepared
FEWEST = 2  # runs of an assignment, however long they take
FINAL_RUNS, MAX_RUNS = 4, 8  # of the races of Stage III, where its seconds are limited
SAMPLE_SEED = 1


def probe_machine(parameters: Result, shop: Workshop) -> Result:
    """A summary of the topology that the graph's runs gave; the topology is a file beside it."""
    from doppler.machine.probe import probe

    executor, began = parameters["executor"], monotonic()
    devices = DEVICES[executor]
    graph = _graph(parameters)
    found = probe(
        executor,
        partitions=devices if executor == "cuda" else None,
        devices=None if executor == "cuda" else devices,
        graph=graph,
        seconds=parameters["probe_s"],
        good=parameters["good"],
    )
    write_topology(found.topology, shop.file(TOPOLOGY), force=True)
    host = found.topology.host
    return {
        "seconds": monotonic() - began,
        "vertices": len(graph.assigned),
        "runs": found.runs,
        "makespans_off": found.errors.makespans,
        "host_s": [host.dispatch_s, host.completion_s],
        "contention": dict(found.topology.contention),
    }


def place(parameters: Result, shop: Workshop) -> Result:
    """What a placer makes of the problem."""
    problem, began = _problem(parameters, shop), monotonic()
    name = parameters["placer"]
    budget_s = parameters["search_s"] if name == "auto" else None
    devices = make_placer(name).place(problem, budget_s=budget_s).devices
    return {"seconds": monotonic() - began, **_summary(problem, {"best": devices})}


def train(parameters: Result, shop: Workshop) -> Result:
    """The best assignment of a training, and what the policy makes: greedily, and in samples."""
    problem = _problem(parameters, shop)
    trainer, episodes = _make_trainer(problem, _training(parameters)), 0
    for progress in trainer.run():
        episodes = progress.episodes
    record = trainer.records[0]
    own = _own(trainer.policy, problem, parameters["samples"], alike=trainer.config.sim.alike)
    best = record.best_devices if np.isfinite(record.best_s) else own["greedy"]
    weights = {name: value.numpy() for name, value in trainer.policy.state_dict().items()}
    np.savez(shop.file(WEIGHTS), **weights)
    return {
        "seconds": trainer.seconds,
        "episodes": episodes,  # of the last stage
        **_summary(problem, {"best": best, **own}),
    }


def _training(parameters: Result) -> "TrainConfig":
    """The training that parameters name; never with an expert, which searches."""
    from doppler.training.presets import preset

    config = preset(parameters["preset"], parameters.get("method", "doppler"))
    config = replace(config, sim=replace(config.sim, expert=None))
    if "episodes" not in parameters:  # of Stage III
        return replace(config, seed=parameters["seed"])
    if parameters["stages"]:
        config = replace(config, stages=tuple(parameters["stages"]))
    return replace(
        config.with_stages(from_nothing=True),
        sim=replace(config.sim, episodes=parameters["episodes"]),
        imitation=replace(config.imitation, episodes=parameters["imitation"]),
        seconds=parameters["seconds"],
        seed=parameters["seed"],
        threads=1,
    )


def _make_trainer(problem: Problem, config: "TrainConfig", **more: Any) -> "Trainer":
    from doppler.training.trainer import Trainer

    return Trainer([(problem.graph, problem.topology)], config, **more)


def _own(
    policy: "TrainablePolicy", problem: Problem, samples: int, *, alike: bool
) -> dict[str, IntArray]:
    """(V,) what the policy makes by itself: greedily, and the best of plain samples."""
    instance = make_instance(problem)
    forward = policy.acting(policy.view(instance))
    seeds = np.arange(samples) + SAMPLE_SEED
    greedy = instance.expand(forward.play(GREEDY, seeds[:1], record=False).devices)[0]
    sampled = instance.expand(forward.play(Sampling(alike=alike), seeds, record=False).devices)
    makespans = Simulator(problem).makespans(problem.graph, sampled)
    return {"greedy": greedy, "samples": sampled[int(np.argmin(makespans))]}


def refine(parameters: Result, shop: Workshop) -> Result:
    """Stage III on the engine: the best assignment, the policy's own, and means of updates."""
    from doppler.training.real import conclude, greedy

    problem, start = _problem(parameters, shop), parameters["start"]
    engine = _engine(problem, parameters, shop)
    config = replace(_training(parameters), stages=("real",), real=_stage_three(parameters))
    starts: list[Assignment] = []
    if start and parameters["form"] == GUARDED:
        starts = [_assignment(problem, _result(shop, start)["best"])]
    trainer = _make_trainer(problem, config, executor=engine, starts=starts)
    if start:
        with np.load(shop.file(WEIGHTS, start)) as weights:
            own = trainer.policy.state_dict()
            found = {name: value.new_tensor(weights[name]) for name, value in own.items()}
        trainer.policy.load_state_dict(found)
    began, curve = monotonic(), []
    for progress in trainer.run():
        curve.append([progress.episodes, round(progress.mean_s * 1e3, 3)])
        late = parameters["real_s"] is not None and monotonic() - began > parameters["real_s"]
        if late and not trainer.is_finished:
            conclude(trainer.policy, trainer.records[0], trainer.config)
            break
    record = trainer.records[0]
    measured = record.measured()
    assert measured is not None
    made = greedy(trainer.policy, record, trainer.config).devices
    return {
        "seconds": monotonic() - began,
        "executions": measured.executions,
        "best_after": measured.best_after,
        "failures": measured.failures,
        "curve": curve,
        **_summary(problem, {"best": record.best_devices, "greedy": made}),
    }


def _stage_three(parameters: Result) -> "RealConfig":
    """Stage III in one of its forms, in the batches of the preset."""
    from doppler.training.presets import preset

    guarded = parameters["form"] == GUARDED
    stage = replace(
        preset("default" if guarded else parameters["preset"]).real,
        episodes=parameters["real"],
        mode=parameters["mode"],
    )
    if guarded and parameters["real_s"] is not None:
        return replace(stage, warm_up=0, final_runs=FINAL_RUNS, max_runs=MAX_RUNS)
    if guarded or not stage.guarded:
        return stage
    batch = stage.batch
    return replace(
        stage,
        guarded=False,
        samples=batch,
        plain=batch,
        moves=0,
        lessons=0,
        warm_up=0,
        final_runs=0,
    )


def measure(parameters: Result, shop: Workshop) -> Result:
    """Milliseconds of runs of every row, in turns; rows with the same assignment share them.

    Rows whose job was left undone are left out.
    """
    problem, began = _problem(parameters, shop), monotonic()
    engine = _engine(problem, parameters, shop)
    found = {key: shop.result(key) for _, key, _ in parameters["rows"]}
    texts = {name: r[field] for name, key, field in parameters["rows"] if (r := found[key])}
    distinct = list(dict.fromkeys(texts.values()))
    times, failures = dict[str, list[float]](), dict[str, str]()
    for first in range(0, len(distinct), TOGETHER):
        some = {text: _assignment(problem, text) for text in distinct[first:][:TOGETHER]}
        share = min(first + TOGETHER, len(distinct)) / len(distinct)
        limit_s = parameters["measure_s"]
        until = np.inf if limit_s is None else began + share * limit_s
        times |= _in_turns(engine, problem.graph, some, parameters["draws"], until, failures)
    config = SimConfig(mode=parameters["mode"], synchronous=parameters["synchronous"])
    predicted = _predicted_ms(problem, {t: _devices(problem.graph, t) for t in distinct}, config)
    return {
        "seconds": monotonic() - began,
        "distinct": len(distinct),
        "ms": {name: times[text] for name, text in texts.items() if times.get(text)},
        "predicted_ms": {name: predicted[text] for name, text in texts.items()},
        "failures": {name: failures[text] for name, text in texts.items() if text in failures},
    }


def _in_turns(
    engine: "Engine",
    graph: Graph,
    assignments: Mapping[str, Assignment],
    draws: int,
    until: float,
    failures: dict[str, str],
) -> dict[str, list[float]]:
    """Milliseconds of runs in turns, after one that does not count; a few where time is short."""
    times: dict[str, list[float]] = {text: [] for text in assignments}
    for turn in range(draws + 1):
        if turn > FEWEST and monotonic() > until:
            break
        for text, assignment in assignments.items():
            if text in failures:
                continue
            try:
                seconds = float(engine.makespans(graph, assignment)[0])
            except DopplerError as error:
                failures[text] = error.message
                continue
            times[text] += [round(seconds * 1e3, 4)] * (turn > 0)
    return times


def validate_simulator(parameters: Result, shop: Workshop) -> Result:
    """Predicted and measured makespans: of diverse assignments, and of a policy that imitates."""
    from doppler.machine.validation import diverse_assignments, validate

    problem = _problem(parameters, shop)
    engine = _engine(problem, parameters, shop)
    chosen = diverse_assignments(problem.graph, problem.topology, parameters["assignments"])
    found = validate(problem.graph, problem.topology, engine, chosen)
    validation = {
        "pearson": found.pearson,
        "spearman": found.spearman,
        "mape": found.mape,
        "measured_ms": (found.measured_s * 1e3).tolist(),
        "predicted_ms": (found.predicted_s * 1e3).tolist(),
    }
    return {"validation": validation, "panel": {"rows": _panel(problem, parameters, engine)}}


def _panel(problem: Problem, parameters: Result, engine: "Engine") -> list[list[float]]:
    """Episodes, predicted and measured ms of what a policy makes while it imitates (Stage I)."""
    from doppler.training.presets import preset
    from doppler.training.real import greedy

    config = preset("paper")
    imitation = replace(config.imitation, episodes=parameters["imitation"])
    trainer = _make_trainer(problem, replace(config, stages=("imitation",), imitation=imitation))
    every = max(parameters["imitation"] // PANEL, 1)
    rows = []
    for number, _ in enumerate(trainer.run()):
        if number % every == 0:
            made = greedy(trainer.policy, trainer.records[0], trainer.config)
            seconds = engine.makespans(problem.graph, made, repeats=3, warm_up=1)
            (predicted,) = _predicted_ms(problem, {"": made.devices}).values()
            rows.append([number, predicted, float(np.mean(seconds)) * 1e3])
    return rows


def _graph(parameters: Result) -> Graph:
    return graph_for(parameters["workload"], parameters["executor"], small=parameters["small"])


def _problem(parameters: Result, shop: Workshop) -> Problem:
    """The graph on the machine that the first of the jobs before probed."""
    return Problem(_graph(parameters), read_topology(shop.file(TOPOLOGY, shop.needs[0])))


def _engine(problem: Problem, parameters: Result, shop: Workshop) -> "Engine":
    """An engine on the probed machine, in the mode of a job."""
    return engine_of(
        shop.tool,
        shop.needs[0],
        problem.topology,
        parameters["executor"],
        mode=parameters.get("mode", DYNAMIC),
        synchronous=parameters.get("synchronous", False),
    )


def engine_of(tool: Tool, key: str, topology: Topology, executor: str, **config: Any) -> "Engine":
    """An engine on a probed machine; jobs of the same probe share it, whatever their modes."""
    from doppler.engine.config import EngineConfig
    from doppler.engine.engine import Engine

    engine: Engine = tool.get(key, lambda: Engine(topology, executor))
    engine.config = EngineConfig(**config)
    return engine


def _result(shop: Workshop, key: str) -> Result:
    found = shop.result(key)
    assert found is not None
    return found


def _summary(problem: Problem, devices: Mapping[str, IntArray]) -> Result:
    """Assignments as texts, one digit for each vertex that has a device, and what they take."""
    graph = problem.graph
    texts = {name: "".join(map(str, row[graph.assigned])) for name, row in devices.items()}
    return {**texts, "predicted_ms": _predicted_ms(problem, devices)}


def _devices(graph: Graph, text: str) -> IntArray:
    """(V,) the devices of such a text."""
    devices = np.full(graph.num_vertices, -1, np.int64)
    devices[graph.assigned] = [int(digit) for digit in text]
    return devices


def _assignment(problem: Problem, text: str) -> Assignment:
    return assignment_for(problem.graph, problem.topology, _devices(problem.graph, text))


def _predicted_ms(
    problem: Problem, devices: Mapping[str, IntArray], config: SimConfig | None = None
) -> dict[str, float]:
    """Simulated milliseconds."""
    rows = np.stack(list(devices.values()))
    makespans = Simulator(problem, config).makespans(problem.graph, rows) * 1e3
    return {name: round(float(ms), 4) for name, ms in zip(devices, makespans, strict=True)}
