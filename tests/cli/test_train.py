"""`dop train`, end to end on a graph of twelve vertices."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import Dop
from rich.console import Console

pytest.importorskip("torch")

from doppler.cli.training_view import TrainingView
from doppler.graph import write_graph
from doppler.policies.arrays import checkpoint
from doppler.policies.checkpoint import load_policy
from doppler.programs import random_dag
from doppler.runs import comparison
from doppler.training.trainer import RealProgress

QUICK = """
threads = 1
[policy]
width = 4
rounds = 1
[imitation]
episodes = 12
batch = 4
[sim]
episodes = 12
batch = 4
[sim.expert]
samples = 2
lessons = 2
pool = 4
moves = 10
"""
FEW = QUICK.replace("[policy]\nwidth = 4\nrounds = 1\n", "")  # of the shipped policy's shape
MODE = "stage real runs in mode fixed; --mode sets it\n"
FROM_NOTHING = (
    "training starts from nothing, stages imitation,sim: the policy that comes with doppler has "
    "another shape; --from names a policy to start from\n"
)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is had without training is found in no time."""
    monkeypatch.setattr(comparison, "MAX_S", 0.02)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with graph.json, other.json, quick.toml and few.toml."""
    write_graph(random_dag(vertices=12, depth=4, seed=0), tmp_path / "graph.json")
    write_graph(random_dag(vertices=10, depth=3, seed=1), tmp_path / "other.json")
    (tmp_path / "quick.toml").write_text(QUICK)
    (tmp_path / "few.toml").write_text(FEW)
    return tmp_path


def config(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())["config"]


def test_from_graphs_to_an_assignment(dop: Dop, here: Path) -> None:
    result = dop("train", "graph.json", "--config", "quick.toml", "-o", "runs/x")
    assert result.code == 0
    assert result.err.endswith(FROM_NOTHING)
    assert result.err.startswith("assuming the machine p100x4")
    words = ("exercise", "best makespan", "bound", "gap", "episodes", "random-dag-12@p100x4", "24")
    without = ("trained policy", "shipped policy", "auto", "better than what auto finds without")
    best = ": runs/x/best/random-dag-12@p100x4.assignment.json"
    for word in (*words, *without, best, "placer doppler:runs/x; shipped policy: placer doppler"):
        assert word in result.out
    command = "dop place graph.json --topology p100x4 --placer doppler:runs/x"
    assert command in result.out
    placed = dop(*command.split()[1:], "--json").json()
    assert placed["makespan_s"] > 0


def test_json(dop: Dop, here: Path) -> None:
    topologies = ("-t", "p100x4", "--topology", "v100x8")
    graphs = ("graph.json", "other.json")
    result = dop("train", *graphs, *topologies, "--config", "quick.toml", "-o", "r", "--json")
    document = result.json()
    keys = ["run", "placer", "placer_budget_s", "episodes", "seconds", "exercises"]
    assert list(document) == keys
    assert (document["placer"], document["placer_budget_s"]) == ("doppler:r", 0.02)
    assert (document["run"], document["episodes"]) == ("r", 4 * 24)
    pairs = [(row["graph"], row["topology"]) for row in document["exercises"]]
    assert pairs == [
        (graph, topology)
        for graph in ("random-dag-12", "random-dag-10")
        for topology in ("p100x4", "v100x8")
    ]
    for row in document["exercises"]:
        assert row["gap"] == row["makespan_s"] / row["lower_bound_s"] - 1 >= 0
        assert row["simulated_makespan_s"] == row["makespan_s"]
        for name in ("policy", "shipped", "auto"):
            assert row[f"{name}_makespan_s"] >= row["lower_bound_s"] * (1 - 1e-6)
        graph = {"random-dag-12": "graph.json", "random-dag-10": "other.json"}[row["graph"]]
        again = dop("simulate", graph, row["assignment"], "-t", row["topology"], "--json").json()
        assert again["makespan_s"] == row["makespan_s"]


def test_options_win_over_the_file_and_the_file_over_the_preset(dop: Dop, here: Path) -> None:
    options = ("--preset", "paper", "--stages", "sim", "--episodes", "8", "--seed", "3")
    quick = ("--config", "quick.toml")
    assert dop("train", "graph.json", *quick, *options, "--threads", "2", "-o", "r").code == 0
    found = config(here / "r")
    assert (found["preset"], found["stages"], found["seed"]) == ("paper", ["sim"], 3)
    assert (found["sim"]["episodes"], found["sim"]["batch"], found["threads"]) == (8, 4, 2)
    assert (found["sim"]["running_mean"], found["policy"]["features"]) == (True, "paper")
    assert found["sim"]["expert"]["pool"] == 4
    (here / "paper.toml").write_text('preset = "paper"\npolicy.width = 4\nsim.batch = 8\n')
    paper = ("--config", "paper.toml", "--seconds", "0.1", "--stages", "imitation")
    assert dop("train", "graph.json", *paper, "-o", "p").code == 0
    found = config(here / "p")
    assert (found["preset"], found["sim"]["running_mean"], found["seconds"]) == ("paper", True, 0.1)


@pytest.mark.parametrize(
    ("options", "start", "stages", "why"),
    [
        ("", "pretrained", "sim", "comes with doppler, stages sim; --from nothing trains"),
        ("--from pretrained", "pretrained", "sim", "comes with doppler, stages sim\n"),
        ("--stages sim", "pretrained", "sim", "comes with doppler, stages sim;"),
        ("--from nothing", None, "imitation,sim", "nothing, stages imitation,sim\n"),
        ("--stages imitation,sim", None, "imitation,sim", ": the first stage is imitation;"),
        ("--preset paper", None, "imitation,sim", ": preset `paper` trains as the paper does;"),
        ("--preset paper --stages sim", None, "sim", ": preset `paper`"),
        ("--preset paper --from pretrained", "pretrained", "sim", "comes with doppler"),
        ("--config quick.toml", None, "imitation,sim", "has another shape; --from names"),
        ("--config same.toml", "pretrained", "sim", "comes with doppler, stages sim;"),
        ("--policy gdp --config no.toml", None, "sim", ": no policy of kind `gdp` comes with"),
    ],
)
def test_what_it_starts_from(
    dop: Dop, here: Path, options: str, start: str | None, stages: str, why: str
) -> None:
    (here / "same.toml").write_text(f"{FEW}\n[policy]\nwidth = 64\n")
    (here / "no.toml").write_text("threads = 1\n")
    usual = ("-t", "p100x4", *(() if "--config" in options else ("--config", "few.toml")))
    result = dop("train", "graph.json", *usual, *options.split(), "--episodes", "0", "-o", "r")
    assert result.code == 0, result.err
    assert result.err.count("\n") == 1
    assert result.err.startswith("training starts from ")
    assert why in result.err
    manifest = json.loads((here / "r/config.json").read_text())
    assert (manifest["parent"] or {}).get("path") == start
    assert ",".join(manifest["config"]["stages"]) == stages


def test_without_a_shipped_policy_it_starts_from_nothing(
    dop: Dop, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: here / "nowhere")
    result = dop("train", "graph.json", "--config", "few.toml", "-o", "r", "--json")
    assert "from nothing, stages imitation,sim: no policy comes with this" in result.err
    (row,) = result.json()["exercises"]
    assert row["shipped_makespan_s"] is None
    assert row["policy_makespan_s"] > 0
    shown = dop("train", "--resume", "-o", "r")
    assert "none shipped" in shown.out


def test_runs_are_extended(dop: Dop, here: Path) -> None:
    """Also those that came to their end; the manifest tells."""
    first = dop("train", "graph.json", "--config", "quick.toml", "-o", "r", "--json").json()
    more = dop("train", "--resume", "--episodes", "8", "-o", "r", "--json")
    assert (more.code, more.err) == (0, "")
    assert more.json()["episodes"] == first["episodes"] + 8
    longer = dop("train", "--resume", "--seconds", "0.01", "-o", "r", "--json").json()
    assert longer["episodes"] > more.json()["episodes"]
    assert longer["seconds"] >= more.json()["seconds"] + 0.01
    assert dop("train", "--resume", "-o", "r", "--json").json()["episodes"] == longer["episodes"]
    manifest = json.loads((here / "r/config.json").read_text())
    assert manifest["config"]["seconds"] == pytest.approx(more.json()["seconds"] + 0.01)
    assert [note["command"] for note in manifest["extensions"]] == [
        "dop train --resume --episodes 8 -o r --json",
        "dop train --resume --seconds 0.01 -o r --json",
    ]


def test_transfer(dop: Dop, here: Path) -> None:
    dop("train", "graph.json", "--config", "quick.toml", "-o", "parent")
    child = ("train", "other.json", "--episodes", "8", "--from", "parent", "-o", "child", "--json")
    document = dop(*child, "--config", "quick.toml").json()
    assert document["episodes"] == 8
    assert config(here / "child")["stages"] == ["sim"]
    manifest = json.loads((here / "child/config.json").read_text())
    assert manifest["parent"]["path"] == str(here / "parent/policy.safetensors")
    assert manifest["command"].startswith("dop train other.json --episodes 8 --from parent")
    nothing = ("--from", "child/policy.safetensors", "--episodes", "0", "-o", "zero")
    assert dop("train", "graph.json", *nothing).code == 0
    mine, theirs = (load_policy(here / run / "policy.safetensors") for run in ("zero", "child"))
    assert mine.config == theirs.config
    for name, tensor in mine.state_dict().items():
        assert tensor.equal(theirs.state_dict()[name])


def test_the_real_system(dop: Dop, here: Path) -> None:
    """Stage III on an engine whose tasks take no time, after a run and in one go."""
    quick = ("-t", "p100x4", "--config", "quick.toml", "--stages")
    dop("train", "graph.json", "--config", "quick.toml", "-o", "parent")
    more = ("--from", "parent", "--backend", "null", "--episodes", "16")
    result = dop("train", "graph.json", *quick, "real", *more, "-o", "real")
    assert (result.code, result.err) == (
        *(0, "training starts from the policy of `parent`, stages real\n" + MODE),
    )
    assert "simulated with measured costs; trained policy: placer doppler:real" in result.out
    heads = ("best of the run", "first run after", "policy", "start", "speedup", "runs", "failed")
    for word in (*heads, "simulator off by", "±"):
        assert word in result.out
    place = "dop place graph.json --topology real/best/random-dag-12@p100x4.topology.json"
    assert place in result.out
    assert dop(*place.split()[1:], "--placer", "doppler:real").code == 0
    metrics = (here / "real/metrics.jsonl").read_text().splitlines()
    last = json.loads(metrics[-1])
    assert (len(metrics), last["stage"], last["failures"]) == (2, "real", 0)
    assert config(here / "real")["real"]["backend"] == "null"
    assert dop("train", "--resume", "-o", "real").code == 0
    whole = ("imitation,sim,real", "--backend", "null", "--episodes", "8", "--json")
    (row,) = dop("train", "graph.json", *quick, *whole, "-o", "whole").json()["exercises"]
    assert (row["episodes"], row["gap"]) == (24 + 8, None)
    assert row["measured"]["executions"] > row["measured"]["runs"] > 8
    assert 1 <= row["measured"]["best_after"] <= row["measured"]["executions"]
    assert row["measured"]["policy_s"] > 0
    assert row["simulated_makespan_s"] is not None
    assert row["policy_makespan_s"] is not None
    assert row["makespan_s"] > 0


def test_the_real_system_as_in_the_paper(dop: Dop, here: Path) -> None:
    """One run per episode; what the policy samples is told apart from the best of the run."""
    dop("train", "graph.json", "--config", "quick.toml", "-o", "parent")
    common = ("train", "graph.json", "-t", "p100x4", "--from", "parent", "--preset", "paper")
    more = ("--stages", "real", "--backend", "null", "--episodes", "9", "--mode", "fixed")
    (row,) = dop(*common, *more, "-o", "plain", "--json").json()["exercises"]
    found = row["measured"]
    assert (found["runs"], found["executions"], found["policy_s"]) == (9, 9, None)
    assert found["sampled_s"] >= row["makespan_s"] > 0
    assert config(here / "plain")["real"]["mode"] == "fixed"
    shown = dop(*common, *more, "-o", "shown")
    assert (shown.code, "topology.json" in shown.out, " sampled" in shown.out) == (0, False, True)
    assert "mode" not in shown.err
    assert "--mode is for stage `real`" in dop(*common, *more[4:], "-o", "x").err
    assert "no mode named `fast`" in dop(*common, *more[:-1], "fast", "-o", "x").err


def test_what_is_shown_of_the_real_system() -> None:
    progress = RealProgress(
        stage="real",
        update=1,
        episodes=8,
        share=0.5,
        seconds=10.0,
        exercise="graph@machine",
        mean_s=0.02,
        least_s=0.015,
        best_s=0.012,
        bound_s=0.013,
        loss=1.0,
        lr=1e-3,
        spread_s=0.0003,
        runs=21,
        executions=30,
        best_after=12,
        failures=2,
        replaced=1,
        speedup=1.1,
        sim_error=0.05,
        sampled_s=0.018,
        policy_s=None,
        start_s=None,
    )
    view = TrainingView(["graph@machine"], 20.0, last_stage="real", live=False)
    view.show(progress)
    assert view.line(progress) == (
        "real 50.0 %, 8 episodes, 0/s, 10 s left: graph@machine mean 20 ms, best 12 ± 0.3 ms, "
        "21 runs, 2 failed, simulator off by 5.0 %"
    )
    console = Console(width=100, record=True, file=StringIO())
    console.print(view.picture(progress))
    assert "12 ± 0.3 ms" in console.export_text()


def test_stopped_and_resumed_in_processes_of_their_own(here: Path, dop: Dop) -> None:
    """Ctrl-C saves, says how to go on, and the end is the same."""
    long = ("--config", "quick.toml", "--episodes", "480", "--checkpoint-every", "0.5")
    command = [sys.executable, "-m", "doppler", "train", "graph.json", *long, "-o", "run"]
    process = subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = here / "run/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 20):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGSTOP)  # it is not to end meanwhile
    busy = dop("train", "--resume", "-o", "run")
    assert (busy.code, busy.out) == (2, "")
    assert "run directory `run` is in use" in busy.err
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "finishing this update" in err
    assert "saved: resume with `dop train --resume -o run`" in err
    stopped = len(metrics.read_text().splitlines())
    assert 20 < stopped < 123
    manifest = json.loads((here / "run/config.json").read_text())
    assert manifest["config"]["sim"]["episodes"] == 480
    assert dop("train", "--resume", "-o", "run").code == 0
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(
        range(1, 124)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("graph.json", ["--output"]),
        ("-o run", ["no graph to train on", "hint: dop train"]),
        ("nowhere.json -o run", ["no file `nowhere.json`"]),
        ("graph.json -o run --config nowhere.toml", ["no file `nowhere.toml`"]),
        ("graph.json -o run --config bad.toml", ["`bad.toml`: unknown key `sed`", "`seed`?"]),
        ("graph.json -o run --preset papr", ["no training preset named `papr`", "`paper`?"]),
        ("graph.json -o run --stages sim,reel", ["no stage named `reel`", "did you mean `real`?"]),
        (
            "graph.json -o run --stages real --from nothing",
            ["begins with a policy", "hint: start from", "--from pretrained"],
        ),
        ("graph.json -o run --stages real", ["graph `random-dag-12` has no kernels to run"]),
        ("graph.json -o run --backend cpu", ["--backend is for stage `real`", "--stages real"]),
        ("graph.json -o run --stages sim,real --backend cup", ["no backend named `cup`", "`cpu`?"]),
        ("graph.json -o run --stages sim,real", ["graph `random-dag-12` has no kernels to run"]),
        ("graph.json -o run --stages sim,real -t p100x4 -t v100x8", ["runs on one machine"]),
        ("graph.json -o run --stages ,", ["no stage"]),
        ("graph.json -o run --seconds 0", ["seconds is 0"]),
        ("graph.json -o run --seconds 1 --episodes 8", ["--episodes and --seconds do not go"]),
        ("--resume -o run --seconds 1 --episodes 8", ["by seconds or by episodes", "hint:"]),
        ("--resume -o run --seconds 0", ["seconds is 0.0, must be positive", "hint:"]),
        ("--resume -o run --episodes 0", ["cannot be extended by 0 episodes", "hint:"]),
        ("graph.json -o run --device gpu", ["cannot compute on device `gpu`"]),
        ("graph.json -o run -t p100x5", ["no topology named `p100x5`"]),
        ("graph.json -o run --from nowhere", ["`nowhere` does not exist"]),
        ("graph.json -o run --from graph.json", ["`graph.json` is not a safetensors file"]),
        ("graph.json -o graph.json", ["`graph.json` is a file"]),
        ("graph.json -o .", ["`.` is not empty"]),
        ("--resume -o run", ["`run` is not a training run"]),
        ("--resume -o run --seed 3", ["leave out --seed", "hint:", "--from run"]),
        ("graph.json --resume -o run --from x", ["leave out a graph, --from"]),
        ("inputs.json -o run", ["has no vertices to place"]),
    ],
)
def test_mistakes(dop: Dop, here: Path, arguments: str, words: list[str]) -> None:
    (here / "bad.toml").write_text("sed = 1\n")
    (here / "inputs.json").write_text(
        '{"format": "doppler-graph", "version": 1, "vertices": {"kind": ["input"]},'
        ' "tensors": {"producer": [0], "bytes": [1]}, "edges": {"tensor": [], "reader": []}}'
    )
    before = sorted(here.rglob("*"))
    result = dop("train", *arguments.split())
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert sorted(here.rglob("*")) == before


MISTAKES = [
    ("--stages foo", "no stage named `foo`"),
    ("--preset foo", "no training preset named `foo`"),
    ("--policy foo", "no policy named `foo`"),
    ("--stages real --backend foo", "no backend named `foo`"),
    ("--config bad.toml", "unknown key `sed`"),
    ("--config nowhere.toml", "no file `nowhere.toml`"),
    ("nowhere.json", "no file `nowhere.json`"),
    ("-t nowhere", "no topology named `nowhere`"),
    ("--from nowhere", "`nowhere` does not exist"),
    *((f"--seconds {value}", "seconds is") for value in ("inf", "nan", "-1", "0", "1e12")),
    ("--resume", "leave out a graph"),
]
SHOW = """
import sys
from doppler.cli.main import main
for arguments in sys.stdin.read().splitlines():
    sys.argv = ["dop", *arguments.split()]
    try:
        main()
    except SystemExit as error:
        torch = any(name == "torch" or name.startswith("torch.") for name in sys.modules)
        print(error.code, torch, file=sys.stderr)
"""


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_mistakes_are_told_before_torch_is_imported(here: Path, verb: str) -> None:
    (here / "bad.toml").write_text("sed = 1\n")
    cases = [(f"train graph.json -o run {options}", words) for options, words in MISTAKES]
    cases += [("train --resume -o run", "`run` is not a training run")]
    if verb == "pretrain":
        cases = [
            ("pretrain -o run --seconds nan", "seconds is nan"),
            ("pretrain -o run --config bad.toml", "unknown key `sed`"),
            ("pretrain -o run --from nowhere", "`nowhere` does not exist"),
            ("pretrain -o run --resume", "`run` is not a training run"),
        ]
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        input="\n".join(arguments for arguments, _ in cases),
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == ""
    told = done.stderr.split("2 False\n")
    assert len(told) == len(cases) + 1, done.stderr
    for text, (arguments, words) in zip(told, cases, strict=False):
        assert text.startswith("error: "), arguments
        assert words in text, arguments
        assert "hint: " in text, arguments


def test_a_run_is_not_overwritten(dop: Dop, here: Path) -> None:
    once = ("train", "graph.json", "--config", "quick.toml", "--episodes", "0", "-o", "run")
    assert dop(*once).code == 0
    again = dop(*once)
    assert again.code == 2
    assert "`run` holds a training run already" in again.err
    assert "hint: resume it: dop train --resume -o run" in again.err


def test_without_torch(dop: Dop, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("doppler.training", "torch."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = dop("train", "graph.json", "-o", "run")
    assert (result.code, result.out) == (2, "")
    assert "training needs `torch`" in result.err
    assert "hint: pip install doppler-placement[torch]" in result.err
    assert not (here / "run").exists()


def test_without_tensorboard(dop: Dop, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    quick = ("-t", "p100x4", "--config", "quick.toml")
    result = dop("train", "graph.json", *quick, "-o", "run")
    assert result.code == 0
    assert result.err == FROM_NOTHING + (
        "no TensorBoard events are written: pip install doppler-placement[tensorboard]\n"
    )


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_on_a_terminal(here: Path, dop: Dop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is drawn, and gone at the end: only what was printed stays."""
    ours, theirs = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with ThreadPoolExecutor(1) as reader, os.fdopen(theirs, "w") as terminal:
        shown = reader.submit(read_all, ours)
        monkeypatch.setattr(sys, "stderr", terminal)
        long = ("--config", "quick.toml", "--episodes", "40")
        result = dop("train", "graph.json", *long, "-o", "run")
        terminal.close()
        drawn = shown.result()
    assert result.code == 0
    assert "dop place graph.json" in result.out
    assert b"random-dag-12@p100x4" in drawn
    assert b"episodes" in drawn


def read_all(terminal: int) -> bytes:
    """What is written on the other side of a terminal until that is closed."""
    read = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as ours:
        while data := ours.read(4096):
            read += data
    return read
