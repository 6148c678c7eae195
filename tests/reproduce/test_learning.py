"""The one protocol: what is measured of every training, and what it took."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.reproduce import learning
from doppler.reproduce.jobs import TRAINING, Result, Workshop, perform
from doppler.sim import Simulator
from doppler.topology import Topology
from doppler.training.config import ExpertConfig

BASE: Result = {
    "machine": "p100x4",
    "graph": "chainmm",
    "method": "gdp",
    "preset": "paper",
    "episodes": 6,
    "imitation": 4,
    "seed": 0,
    "samples": 5,
    "draws": 3,
    "noise": 0.05,
}


@pytest.fixture(autouse=True)
def problem(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A small problem in place of the paper's."""
    small = Problem(random_dag(vertices=12, depth=3, seed=0), Topology.preset("p100x4"))
    monkeypatch.setattr(learning, "problem_of", lambda machine, graph: small)
    monkeypatch.setattr(learning, "_placed_ms", lambda policy, problem: 1.0)
    return small


def shop(folder: Path, key: str = "train-0") -> Workshop:
    (folder / "jobs").mkdir(exist_ok=True)
    return Workshop(folder, key)


def test_every_method_is_measured_in_the_same_way(tmp_path: Path, problem: Problem) -> None:
    found = {
        method: learning.train(BASE | {"method": method}, shop(tmp_path, method))
        for method in ("doppler", "placeto", "gdp")
    }
    same = set(found["gdp"]) | {"placer_ms"}
    assert set(found["doppler"]) == same
    assert set(found["placeto"]) == set(found["gdp"])
    for method, result in found.items():
        assert result["run"]["ms"] <= result["curve"][0][1] + 1e-9
        assert len(result["run"]["noisy_ms"]) == 3
        devices = np.array(result["run"]["devices"])[None]
        makespan_s = Simulator(problem).makespans(problem.graph, devices)[0]
        assert result["run"]["ms"] == pytest.approx(makespan_s * 1e3)
        assert (tmp_path / "jobs" / f"{method}.safetensors").exists()
        assert not (tmp_path / "jobs" / f"{method}.run").exists()


def test_a_training_resumes_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learning.train(BASE, shop(tmp_path, "whole"))
    run = learning._run(learning.problem_of("", ""), BASE, shop(tmp_path, "half"))
    with run:
        for number, _ in enumerate(run):
            if number == 2:
                break
    again = learning.train(BASE, shop(tmp_path, "half"))
    assert again["run"] == whole["run"]
    assert again["greedy"] == whole["greedy"]
    assert again["evaluations"] == whole["evaluations"]


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many assignments each call of a simulator is given."""
    counts: list[int] = []
    plain = Simulator.makespans

    def counted(self: Simulator, graph: Any, devices: Any, *args: Any, **more: Any) -> Any:
        counts.append(len(devices))
        return plain(self, graph, devices, *args, **more)

    monkeypatch.setattr(Simulator, "makespans", counted)
    return counts


@pytest.mark.parametrize("method", ["gdp", "placeto-pretrain", "doppler"])
def test_simulated_runs_are_counted(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    """But for those of a new best, which is simulated again by itself."""
    monkeypatch.setattr(learning, "measured", lambda *_, **__: {"ms": 1.0})
    monkeypatch.setattr("doppler.runs.run.place_untrained", lambda _: {})  # not the training's
    counts = counting(monkeypatch)
    found = learning.train(BASE | {"method": method, "samples": 1}, shop(tmp_path))
    judging = 1
    warm_up = 0
    batches = [count for count in counts if count > 1]
    singles = len(counts) - len(batches) - judging - warm_up
    assert sum(batches) <= found["evaluations"] <= sum(batches) + singles


def test_moves_of_the_expert_are_counted(problem: Problem) -> None:
    config = learning.config_of(BASE | {"method": "doppler", "preset": "default"})
    expert = ExpertConfig(samples=2, elites=1, moves=10, until=0.5)
    config = replace(config, stages=("sim",), sim=replace(config.sim, batch=4, expert=expert))
    rows = [{"stage": "sim", "share": share} for share in (0.25, 0.5, 0.75, 1.0)]
    starts = learning._num_heuristics(problem, 0)
    counted = learning.evaluations(config, rows, object(), problem)  # type: ignore[arg-type]
    assert counted == 4 * 4 + 2 * 3 * 10 + starts


def test_the_best_of_stage_one_needs_no_episode_of_stage_two() -> None:
    rows = [
        {"stage": "imitation", "episodes": 1, "best_s": 3.0},
        {"stage": "sim", "episodes": 1, "best_s": 3.0},
        {"stage": "sim", "episodes": 2, "best_s": 3.0},
    ]
    assert learning.episodes_to_best(rows) == 0
    rows[-1]["best_s"] = 2.0
    assert learning.episodes_to_best(rows) == 2


def test_a_policy_is_judged_on_another_problem(tmp_path: Path) -> None:
    learning.train(BASE | {"method": "doppler"}, shop(tmp_path, "source"))
    found = learning.judge(BASE | {"start": "source"}, shop(tmp_path, "target"))
    assert {"greedy", "samples_ms", "placer_ms", "order"} == set(found)
    tuned = learning.train(BASE | {"method": "doppler", "start": "source"}, shop(tmp_path, "tuned"))
    assert tuned["evaluations"] == BASE["episodes"]  # no Stage I


@pytest.mark.parametrize("stages", [["imitation"], ["sim"]])
def test_stage_three_goes_on_from_other_stages(stages: list[str], tmp_path: Path) -> None:
    values = BASE | {"method": "doppler", "variant": ""}
    (tmp_path / "jobs").mkdir()
    perform(TRAINING, values | {"stages": stages}, str(tmp_path), "before", ())
    real = values | {"stages": ["real"], "real": 5, "start": "before"}
    found = learning.go_on_with_noise(real, shop(tmp_path, "real"))
    assert [point[0] for point in found["curve"]] == ["real"] * 5
    assert found["run"]["ms"] > 0


def test_stage_three_from_nothing(tmp_path: Path) -> None:
    values = BASE | {"method": "doppler", "variant": "", "stages": ["real"], "real": 5}
    assert len(learning.go_on_with_noise(values, shop(tmp_path))["curve"]) == 5
