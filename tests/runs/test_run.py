"""Runs: what their directories hold, and that they go on as if they had never stopped."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training.tiny import (  # noqa: E402
    CONFIG,
    LABEL,
    assert_same,
    graph,
    manifest,
    press,
    resumed,
    rows,
    started,
    take,
    trained,
)

from doppler.assignment import read_assignment  # noqa: E402
from doppler.errors import (  # noqa: E402
    Interrupted,
    MissingExtraError,
)
from doppler.formats import read_graph  # noqa: E402
from doppler.policies.checkpoint import read_provenance  # noqa: E402
from doppler.runs import metrics  # noqa: E402
from doppler.runs.manifest import read_manifest  # noqa: E402
from doppler.runs.run import resume_run, start_run, stopping  # noqa: E402
from doppler.sim import Noise, simulate  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.trace import read_trace  # noqa: E402
from doppler.training import trainer  # noqa: E402
from doppler.training.api import make_manifest  # noqa: E402


def test_what_is_in_a_directory(tmp_path: Path) -> None:
    run = tmp_path / "a" / "run"
    with started(run) as training:
        take(training, 99)
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    events = {name for name in names if name.startswith("tensorboard/events.out.tfevents")}
    assert names - events == {
        ".lock",
        "config.json",
        "graphs/random-dag-12.json",
        "topologies/p100x4.json",
        "metrics.jsonl",
        "state.safetensors",
        "policy.safetensors",
        "untrained.json",
        f"best/{LABEL}.assignment.json",
        f"best/{LABEL}.trace.json",
    }
    assert read_graph(run / "graphs/random-dag-12.json") == graph()
    assert read_manifest(run).config == CONFIG
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
    assert [row["update"] for row in rows(run)] == [1, 2, 3] * 2
    best = read_assignment(run / f"best/{LABEL}.assignment.json")
    makespan_s = simulate(graph(), Topology.preset("p100x4"), best).makespan_s
    assert makespan_s == rows(run)[-1]["best_s"]
    assert read_trace(run / f"best/{LABEL}.trace.json").makespan_s == makespan_s
    history = read_provenance(run / "policy.safetensors")
    assert history["graphs"] == [{"name": "random-dag-12", "digest": graph().digest()}]
    assert history["best_s"] == {LABEL: makespan_s}
    assert history["episodes"] == {LABEL: 24}


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, noise=Noise(0.1, 0.1), sim=replace(CONFIG.sim, expert=None)),
        replace(CONFIG, sim=replace(CONFIG.sim, running_mean=True, epsilon=(0.2, 0.0))),
        replace(CONFIG, variants=1),
        replace(CONFIG, sim=replace(CONFIG.sim, messages="step", expert=None)),
    ],
    ids=["expert", "noise", "running mean", "variants", "messages per step"],
)
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, config: Any) -> None:
    straight = trained(tmp_path / "straight", config)
    for updates in (2, 3, 5):
        stopped = trained(tmp_path / f"stopped{updates}", config, updates=updates)
        assert len(rows(stopped)) == updates
        assert_same(resumed(stopped), straight)


def test_stopped_every_time(tmp_path: Path) -> None:
    stopped = trained(tmp_path / "stopped", updates=1)
    for _ in range(6):
        resumed(stopped, updates=1)
    assert_same(stopped, trained(tmp_path / "straight"))
    with resume_run(stopped) as run:
        assert list(run) == []
        assert run.finished
        (result,) = run.results()
    assert (result.exercise, result.episodes) == (LABEL, 24)
    assert result.gap == result.makespan_s / result.lower_bound_s - 1
    assert result.assignment.is_file()
    assert_same(stopped, tmp_path / "straight")


def test_a_run_that_never_began_begins_on_resume(tmp_path: Path) -> None:
    with started(tmp_path / "run"):
        pass
    assert rows(tmp_path / "run") == []
    assert not (tmp_path / "run/best").exists()
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_a_crash_loses_what_came_after_the_checkpoint_and_no_more(tmp_path: Path) -> None:
    """Killed in the middle: no one saved, and a line was half written."""
    path = tmp_path / "run"
    run = started(path, save_every_s=0.0)  # saved before each update but the first
    take(run, 5)
    state = (path / "state.safetensors").read_bytes()
    run.close()
    assert len(rows(path)) == 5
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "sta')
    (path / "policy.safetensors").unlink()
    with resume_run(path) as again:
        assert again.tally.steps == 4
        assert (path / "state.safetensors").read_bytes() == state
        assert len(rows(path)) == 4
        take(again, 99)
    assert_same(path, trained(tmp_path / "straight"))


def test_metrics_that_are_gone_stop_no_one(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", updates=3)
    (run / "metrics.jsonl").unlink()
    assert [row["step"] for row in rows(resumed(run))] == [4, 5, 6]


def test_tensorboard_gets_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = resumed(trained(tmp_path / "run", updates=4))
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    assert f"sim/{LABEL}/best_s" in names
    assert f"imitation/{LABEL}/loss" in names
    shown = events.Scalars(f"sim/{LABEL}/mean_s")[0]
    assert shown.value == pytest.approx(rows(run)[shown.step - 1]["mean_s"])


def test_without_tensorboard_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with started(tmp_path / "run") as run:
        assert not run.has_tensorboard
        take(run, 1)
    assert not (tmp_path / "run/tensorboard").exists()


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in: one run, the same after resuming, with the numbers of updates."""
    calls: list[tuple[str, Any]] = []
    fake = SimpleNamespace(
        log=lambda scalars, step: calls.append(("log", step)),
        finish=lambda: calls.append(("finish", None)),
    )

    def init(**options: Any) -> Any:
        calls.append(("init", (options["id"], options["name"], options["resume"])))
        return fake

    module: Any = SimpleNamespace(init=init, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(metrics, "PAUSE_S", 0.0)
    with started(tmp_path / "run", wandb=True) as run:
        take(run, 2)
    with resume_run(tmp_path / "run", wandb=True) as run:
        take(run, 1)
    begin = ("init", (run.manifest.run_id, "run", "allow"))
    first, second = calls[: len(calls) // 2 + 1], calls[len(calls) // 2 + 1 :]
    assert first == [begin, ("log", 1), ("log", 2), ("finish", None)]
    assert second == [begin, ("log", 3), ("finish", None)]


def test_weights_and_biases_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        started(tmp_path / "run", wandb=True)
    assert not (tmp_path / "run").exists()


def test_several_graphs_and_topologies_each_under_a_name_of_its_own(tmp_path: Path) -> None:
    graphs = [graph(0), graph(1), replace(graph(0), name="a/b: ü")]
    topologies = [Topology.preset(name) for name in ("p100x4", "reference:2")]
    graphs = [
        replace(g, exec_s=g.flops[:, None] / 1e12, transfer_s=g.tensor_bytes / 1e9) for g in graphs
    ]
    config = replace(CONFIG, stages=("imitation",))
    with start_run(make_manifest(graphs, topologies, config), tmp_path / "run") as run:
        seen = [progress.exercise for progress in run]
        results = run.results()
    names = ["random-dag-12", "random-dag-12-2", "a/b: ü"]
    labels = [f"{name}@{topology}" for name in names for topology in ("p100x4", "reference:2")]
    assert seen == labels * 3
    assert [result.exercise for result in results] == labels
    assert all(result.episodes == 12 for result in results)
    assert {path.name for path in (tmp_path / "run/graphs").iterdir()} == {
        "random-dag-12.json",
        "random-dag-12-2.json",
        "a-b-ü.json",
    }
    for result in results:
        assert read_assignment(result.assignment).topology == result.topology
    with resume_run(tmp_path / "run") as run:
        assert [record.label for record in run.trainer.records] == labels
        assert run.trainer.records[-1].exercise.graph == graphs[-1]


def test_ctrl_c_saves_after_the_update_under_way(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def ctrl_c() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    with started(tmp_path / "run") as run, stopping(run.stop), pytest.raises(Interrupted):
        press(run, ctrl_c)
    assert len(rows(tmp_path / "run")) == 2
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_an_interrupt_between_updates_saves(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted), started(tmp_path / "run") as run:
        press(run, interrupt)
    assert len(rows(tmp_path / "run")) == 2
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_an_interrupt_inside_an_update_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a second Ctrl-C does: half an update is never saved."""
    measure = trainer.ExerciseRecord.measure

    def interrupted(self: Any, rollouts: Any, number: int) -> Any:
        result = measure(self, rollouts, number)
        if number == 2:
            raise Interrupted
        return result

    monkeypatch.setattr(trainer.ExerciseRecord, "measure", interrupted)
    with pytest.raises(Interrupted), started(tmp_path / "run", save_every_s=0.0) as run:
        take(run, 99)
    monkeypatch.undo()
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_manifests_tell_where_a_run_comes_from(tmp_path: Path) -> None:
    made = replace(manifest(), command="dop train", parent={"path": "x"})
    with start_run(made, tmp_path / "run"):
        pass
    again = read_manifest(tmp_path / "run")
    assert (again.command, again.parent, again.run_id) == ("dop train", {"path": "x"}, made.run_id)
    document = json.loads((tmp_path / "run/config.json").read_text())
    assert document["doppler"]
    assert again.topologies == made.topologies
