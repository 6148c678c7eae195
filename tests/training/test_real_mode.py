"""The mode of Stage III: chosen, predicted in, and saved with the best assignment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from training.machines import MACHINE, REAL, Flaky, small, with_host  # noqa: E402
from training.tiny import CONFIG, rows  # noqa: E402

from doppler.assignment import Assignment, read_assignment  # noqa: E402
from doppler.errors import (  # noqa: E402
    ConfigError,
    UnknownNameError,
)
from doppler.placers.search.annealing import AnnealingPlacer  # noqa: E402
from doppler.policies.dual import make_policy  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.runs.comparison import compare  # noqa: E402
from doppler.runs.run import resume_run  # noqa: E402
from doppler.scheduler.choose import MODES  # noqa: E402
from doppler.serving.prediction import Predictor  # noqa: E402
from doppler.sim import SimConfig, Simulator  # noqa: E402
from doppler.topology import Host, Topology  # noqa: E402
from doppler.training.api import make_manifest, resume, train  # noqa: E402
from doppler.training.config import TrainConfig  # noqa: E402


def test_the_mode_is_the_one_that_is_predicted_to_be_faster() -> None:
    work, policy = small(), make_policy(CONFIG.policy, 0)
    start = AnnealingPlacer().place(Problem(work, with_host()), seed=0, budget_s=0.2)

    def mode(topology: Topology, config: TrainConfig = REAL, **options: Any) -> str:
        made = make_manifest([work], [topology], config, policy=policy, **options)
        return made.config.real.mode

    assert mode(with_host(), starts=[start]) == "fixed"
    assert mode(with_host()) == "fixed"
    assert mode(replace(MACHINE, host=Host())) == "dynamic"
    asked = {name: replace(REAL, real=replace(REAL.real, mode=name)) for name in MODES}
    assert [mode(with_host(), asked[name]) for name in MODES] == list(MODES)
    assert mode(with_host(), executor=Simulator(with_host())) == "dynamic"
    fixed = Simulator(with_host(), SimConfig(mode="fixed"))
    assert mode(with_host(), executor=fixed) == "fixed"
    assert mode(with_host(), executor=Flaky(fixed, lambda *_: None)) == "dynamic"
    with pytest.raises(ConfigError, match="the executor runs in mode `fixed`"):
        mode(with_host(), asked["dynamic"], executor=fixed)
    with pytest.raises(UnknownNameError, match="no mode named `fast`"):
        replace(REAL.real, mode="fast")


def test_stage_three_in_fixed_order(tmp_path: Path) -> None:
    """The saved assignment has the order in which it ran, and predictions are in that mode."""
    work, topology = small(), with_host()
    fixed = Simulator(topology, SimConfig(mode="fixed"))
    start = train(work, topology, replace(CONFIG, stages=("imitation",)))
    train(work, topology, REAL, out=tmp_path / "run", start=start, executor=fixed)
    last = rows(tmp_path / "run")[-1]
    assert json.loads((tmp_path / "run/config.json").read_text())["config"]["real"]["mode"] == (
        "fixed"
    )
    best = read_assignment(tmp_path / f"run/best/{work.name}@p100x4.assignment.json")
    assert best.schedule is not None
    assert fixed.run(work, best).makespan_s == pytest.approx(last["best_s"])
    assert last["sim_error"] < 0.05
    resume(tmp_path / "run", episodes=4, executor=fixed)
    with run_directory(tmp_path / "run", fixed) as run:
        (compared,) = compare(run)
    assert compared.best_s == pytest.approx(last["best_s"], rel=0.1)


def run_directory(path: Path, executor: Any) -> Any:
    return resume_run(path, make_executor=lambda _: executor)


def test_predictions_in_mode_fixed_are_those_of_the_simulator() -> None:
    work, topology = small(), with_host()
    predictor = Predictor(work, topology, SimConfig(mode="fixed"))
    rng = np.random.default_rng(0)
    devices = np.where(work.is_input, -1, rng.integers(4, size=(3, work.num_vertices)))
    simulator = Simulator(topology, SimConfig(mode="fixed"))
    expected = [simulator.run(work, Assignment(row)).makespan_s for row in devices]
    assert predictor.costs_s(devices) == pytest.approx(expected, rel=1e-12)
    found, costs = predictor.improve(devices, 50, seed=0)
    assert costs == pytest.approx(simulator.makespans(work, found), rel=1e-12)
    assert costs.min() < min(expected)
