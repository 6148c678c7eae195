"""Training jobs and the one protocol by which every learned method is judged.

Of every policy the same is measured: its greedy assignment; the best of a number of plain samples,
without search or rule; the best assignment that its training met, an expert's included; and how
many simulated runs training took in all. What placer `doppler` makes of a policy is a figure of its
own, as is what the placer makes of one that has learned nothing.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.assignment import assignment_for
from doppler.base.files import parse_json, read_text
from doppler.mdp.instance import make_instance
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.learned.doppler import POLICY_FILE
from doppler.problem import Problem
from doppler.reproduce.jobs import POLICY, Result, Workshop
from doppler.reproduce.placements import measured, problem_of
from doppler.sim import Noise, SimConfig, Simulator

if TYPE_CHECKING:
    from doppler.policies.trainable import TrainablePolicy
    from doppler.runs.run import Run
    from doppler.training.config import TrainConfig

RUN = ".run"  # the folder of a training, until it is done
METRICS = "metrics.jsonl"
CURVE = 100  # points of a curve at most
SAMPLE_SEED = 1  # of the samples of every policy


def config_of(parameters: Result) -> "TrainConfig":
    """The training that parameters name: a method's preset, changed as the variant says."""
    from doppler.training.presets import preset

    config = preset(parameters["preset"], parameters["method"])
    config = _varied(config, parameters.get("variant", ""))
    if parameters.get("start"):
        config = replace(config, stages=("sim",))
    if "stages" in parameters:
        config = replace(config, stages=tuple(parameters["stages"]))
    return replace(
        config,
        sim=replace(config.sim, episodes=parameters["episodes"]),
        imitation=replace(config.imitation, episodes=parameters["imitation"]),
        seed=parameters["seed"],
        threads=1,
    )


def _varied(config: "TrainConfig", variant: str) -> "TrainConfig":
    """A config with one thing changed; an expert teaches placing as it is in the default."""
    policy: Any = config.policy
    no_expert = replace(config, sim=replace(config.sim, expert=None))
    if variant == "":
        return config
    if variant == "no-expert":
        return no_expert
    if variant == "paper-features":
        return replace(config, policy=replace(policy, features="paper"))
    if variant == "only-plc":
        return replace(config, policy=replace(policy, select=False))
    if variant == "only-sel":
        return replace(config, policy=replace(policy, place=False))
    how = variant.removeprefix("per-")  # per-step, per-episode; each has the same guide always
    guide = replace(config.sim.guide, no_share=0.0, list_share=1.0, pool_share=0.0)
    return replace(no_expert, sim=replace(no_expert.sim, messages=how, guide=guide))


def train(parameters: Result, shop: Workshop) -> Result:
    """A policy trained on a problem, from nothing or from that of another job, and judged."""
    problem = problem_of(parameters["machine"], parameters["graph"])
    with _run(problem, parameters, shop) as run:
        for _ in run:
            pass
    trainer, rows = run.trainer, metrics(shop.file(RUN) / METRICS)
    record, config = trainer.records[0], trainer.config
    found = {
        "seconds": trainer.seconds,
        "run": measured(problem, record.best_devices, parameters),
        "episodes_to_best": episodes_to_best(rows),
        "evaluations": evaluations(config, rows, trainer.policy, problem),
        "curve": curve(rows),
        **judged(trainer.policy, problem, parameters, alike=config.sim.alike),
    }
    (shop.file(RUN) / POLICY_FILE).rename(shop.file(POLICY))
    shutil.rmtree(shop.file(RUN))
    return found


def _run(problem: Problem, parameters: Result, shop: Workshop) -> "Run":
    """The run of a job, where it was left."""
    from doppler.policies.checkpoint import load_any
    from doppler.runs.run import resume_run, start_run
    from doppler.training.api import make_manifest

    path = shop.file(RUN)
    if (path / "config.json").exists():
        return resume_run(path, clock=process_time)
    shutil.rmtree(path, ignore_errors=True)
    start = parameters.get("start")
    policy = load_any(shop.file(POLICY, start)) if start else None
    manifest = make_manifest(
        [problem.graph],
        [problem.topology],
        config_of(parameters),
        policy=policy,
        command="dop reproduce",
    )
    return start_run(manifest, path, policy=policy, clock=process_time)


def metrics(path: Path) -> list[Result]:
    """The rows of a run, one per update."""
    return [parse_json(line, str(path)) for line in read_text(path).splitlines()]


def episodes_to_best(rows: Sequence[Result]) -> int:
    """Episodes of Stage II until the best assignment was met; 0 if Stage I met it."""
    best = min((r["best_s"] for r in rows if r["best_s"] is not None), default=None)
    first = next((r for r in rows if r["best_s"] == best), None)
    return 0 if first is None or first["stage"] != "sim" else int(first["episodes"])


def evaluations(
    config: "TrainConfig", rows: Sequence[Result], policy: "TrainablePolicy", problem: Problem
) -> int:
    """Simulated runs that a training took: episodes, the states between steps where each step is
    rewarded, moves of the expert's search, and the heuristics that search begins with.
    """
    count = 0
    for row in rows:
        stage = getattr(config, row["stage"])
        count += stage.batch
        if row["stage"] != "sim":
            continue
        if getattr(policy, "rewards_steps", False):
            count += stage.batch * (len(problem.graph.assigned) + 1)
        expert = stage.expert if config.has_expert else None
        if expert is not None and row["share"] <= expert.until:
            count += (expert.samples + expert.elites) * expert.moves
    if config.has_expert:
        count += _num_heuristics(problem, config.seed)
    return count


def _num_heuristics(problem: Problem, seed: int) -> int:
    from doppler.placers.search.annealing import starting_points

    return len(starting_points(problem, seed))


def curve(rows: Sequence[Result]) -> list[list[float]]:
    """Episodes of Stage II, the best so far and the mean of the update, in ms: a few points."""
    found = [
        [r["episodes"], r["best_s"] * 1e3, r["mean_s"] * 1e3]
        for r in rows
        if r["stage"] == "sim" and r["best_s"] is not None
    ]
    step = max(len(found) // CURVE, 1)
    return found[::step]


def judged(
    policy: "TrainablePolicy", problem: Problem, parameters: Result, *, alike: bool
) -> Result:
    """What the policy makes by itself, greedily and in plain samples, and in placer `doppler`."""
    from doppler.policies.dual import DualPolicy

    instance = make_instance(problem)
    forward = policy.acting(policy.view(instance))
    simulator, graph = Simulator(problem), problem.graph
    seeds = np.arange(parameters["samples"]) + SAMPLE_SEED
    greedy = forward.play(GREEDY, seeds[:1], record=False)
    sampled = forward.play(Sampling(alike=alike), seeds, record=False)
    makespans = simulator.makespans(graph, instance.expand(sampled.devices)) * 1e3
    devices = instance.expand(greedy.devices)[0]
    found: Result = {
        "greedy": measured(problem, devices, parameters),
        "samples_ms": float(makespans.min()),
        "order": instance.vertices[greedy.order[0]].tolist(),
    }
    if isinstance(policy, DualPolicy):
        found["placer_ms"] = _placed_ms(policy, problem)
    return found


def _placed_ms(policy: Any, problem: Problem) -> float:
    """The makespan of what placer `doppler` makes with a policy in its usual number of samples."""
    from doppler.placers.learned.doppler import DopplerPlacer

    devices = DopplerPlacer(policy).place(problem, seed=SAMPLE_SEED).devices[None]
    return float(Simulator(problem).makespans(problem.graph, devices)[0]) * 1e3


def judge(parameters: Result, shop: Workshop) -> Result:
    """The policy of another job on this problem, as it is."""
    from doppler.policies.checkpoint import load_any

    problem = problem_of(parameters["machine"], parameters["graph"])
    return judged(
        load_any(shop.file(POLICY, parameters["start"])), problem, parameters, alike=False
    )


def untrained(parameters: Result, shop: Workshop) -> Result:
    """A policy that has learned nothing, judged in the same way."""
    from doppler.policies.configs import for_devices
    from doppler.policies.kinds import make_any

    problem = problem_of(parameters["machine"], parameters["graph"])
    config = for_devices(config_of(parameters).policy, problem.topology.num_devices)
    policy = make_any(config, parameters["seed"])
    return judged(policy, problem, parameters, alike=True)


def go_on_with_noise(parameters: Result, shop: Workshop) -> Result:
    """Stage III, from nothing or from the policy and the best assignment of another job.

    It runs on a simulator with noise, as if that were real.
    """
    from doppler.policies.checkpoint import load_any
    from doppler.training.trainer import Trainer

    problem = problem_of(parameters["machine"], parameters["graph"])
    graph, topology = problem.graph, problem.topology
    noise = Noise(parameters["noise"], parameters["noise"])
    config = config_of(parameters)
    real = replace(config.real, episodes=parameters["real"], mode="dynamic")
    policy, starts = None, []
    if start := parameters.get("start"):
        before = shop.result(start)
        assert before is not None
        policy = load_any(shop.file(POLICY, start))
        starts = [assignment_for(graph, topology, np.array(before["run"]["devices"]))]
    trainer = Trainer(
        [(graph, topology)],
        replace(config, real=real),
        policy=policy,
        executor=Simulator(topology, SimConfig(noise=noise)),
        starts=starts,
    )
    points = [(p.stage, p.episodes, p.mean_s * 1e3) for p in trainer.run()]
    return {
        "run": measured(problem, trainer.records[0].best_devices, parameters),
        "curve": points[:: max(parameters["real"] // CURVE, 1)],
        "episodes": len(points) * real.batch,
        **judged(trainer.policy, problem, parameters, alike=config.sim.alike),
    }
