"""Benchmarks made of jobs: the jobs run, and the tables can be made from their results."""

import importlib
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from benchmark_scripts import FOLDER, MISSING, Printed, scripts

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def printed() -> Iterator[Printed]:
    with scripts(MISSING) as run:
        yield run


def test_jobs_and_tables(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tiny = ("--seconds", "0.2", "--episodes", "16")
    methods = ("doppler", "placeto", "placeto-pretrain", "gdp", "seq2seq", "heft", "metis")
    wanted = [f"table/chainmm/{name}/0" for name in methods if name != "placeto-pretrain"]
    wanted += ["time/chainmm/gdp/0", "scaling/gdp/100", "scaling/gdp/200"]
    parts = [
        ("run", *wanted, *tiny, "--part", f"{number}/2", "--results", str(file))
        for number, file in enumerate(results)
    ]
    show = ("show", *map(str, results))
    listed, *_, shown = printed("rivals", ("list",), *parts, *parts, show)
    names = listed.split()
    assert len(names) == len(set(names))
    assert set(wanted) <= set(names)
    lines = [json.loads(line) for file in results for line in file.read_text().splitlines()]
    assert sorted(line["job"] for line in lines) == sorted(wanted)  # each once
    assert "| gdp | " in shown
    assert "*198.0*" in shown
    assert "The same time, 0.2 s" in shown
    assert "One update of 4 episodes" in shown
    assert "skipped: table/chainmm/metis/0: " in shown


def test_zero_shot(tmp_path: Path, printed: Printed) -> None:
    results, runs = tmp_path / "results.jsonl", tmp_path / "runs"
    few = ("--count", "1", "--sized", "1", "--problems", "2", "--max-vertices", "60")
    short = ("--seconds", "0.2", "--train-seconds", "0.2", "--tune-seconds", "0.2")
    tiny = (*few, *short, "--runs", str(runs), "--results", str(results))
    wanted = ["train/all/0", "train/without-chainmm/0", "tuning/p100x4-first-fit/chainmm/0"]
    for case in ("left-out/p100x4-first-fit/chainmm", "families/fft/0", "machines/shared-bus/0"):
        wanted += [f"known/{case}", f"{case}/0"]
    wanted += ["plain/200/0.1/0", "time/200/0.1/0/0"]
    commands = (("list",), ("run", *wanted, *tiny), ("show", str(results)))
    hurry = {"AUTO_S": 0.1, "POLICY_S": 0.1, "BUDGETS_S": (0.1, 10)}
    listed, _, tables = printed("zeroshot", *commands, **hurry)
    assert "time/20000/10/7/2" in listed.split()
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(line["job"] for line in lines) == sorted(wanted)
    for row in (
        "`p100x4-first-fit/chainmm` | ",
        "`fft` | 1 | ",
        "all machines | 1 | ",
        "200 | 0.1 | auto | ",
    ):
        assert f"| {row}" in tables
    assert "| all | 2 | " in tables
    better = next(
        line for line in lines if line["job"] == "known/left-out/p100x4-first-fit/chainmm"
    )
    better["search"] /= 2
    run = next(line for line in lines if line["job"] == "left-out/p100x4-first-fit/chainmm/0")
    above = run["policy"] / better["search"] - 1
    again = tmp_path / "again.jsonl"
    again.write_text(json.dumps(better) + "\n")
    both = [("show", *map(str, files)) for files in ((results, again), (again, results))]
    for told in printed("zeroshot", *both):  # the best search counts, whichever is last
        row = f"| `p100x4-first-fit/chainmm` | {1e3 * better['search']:.2f} | {100 * above:+.2f} %"
        assert row in told


def test_sealed(tmp_path: Path, printed: Printed) -> None:
    results, log = tmp_path / "results.jsonl", tmp_path / "looks.csv"
    where = ("--results", str(results), "--seconds", "0.1", "--count", "2", "--sized", "1")
    hurry = {"AUTO_S": 0.1, "LARGE": [60], "BUDGETS_S": [0.1], "SAMPLES": 4, "POLICY_S": 0.1}
    hurry |= {"LARGE_MODELS": []}
    logged = ("--log", str(log))
    commands = [
        (*logged, "run", "*/validation/1*", *where),
        (*logged, "show", str(results)),
        (*logged, "run", "*/workflows/1001*", "time/*", *where),
        (*logged, "show", str(results)),
        (*logged, "list"),
    ]
    _, before, _, after, listed = printed("sealed", *commands, **hurry)
    assert "looked at 0 times" in before
    assert "looked at 1 times" in after
    assert log.read_text().splitlines()[1].endswith(",3,shipped")
    assert "### `validation`: 1 problems" in before
    assert "### `workflows`: 1 problems" in after
    assert "| 60 | 0.1 | 1 | " in after
    assert {"known/models/bert/16", "placed/hard/llama-layer/0"} <= set(listed.split())
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    for row in rows:
        assert all(row[key] is None or row[key] > 0 for key in row if key.endswith("search"))


def test_moves(tmp_path: Path, printed: Printed) -> None:
    results, model = tmp_path / "results.jsonl", tmp_path / "m.safetensors"
    tiny = {"problems": 1, "rounds": 2, "max_vertices": 160, "moves": 50, "fewest": 60, "steps": 9}
    hurry = {"BUDGETS_S": [(60, [0.1])], "TRAINING": tiny}
    commands = [
        ("train", "-o", str(model), "--seed", "1"),
        ("run", "train/60/0.1/2", "--results", str(results), "--model", str(model)),
        ("show", str(results)),
    ]
    *_, shown = printed("moves", *commands, **hurry)
    assert "| train | 60 | 0.1 | 1 | " in shown
    (row,) = map(json.loads, results.read_text().splitlines())
    assert all(len(row[name]) == 2 for name in ("random", "untrained", "chosen", "long"))


def test_lending(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "results.jsonl"
    commands = [
        ("run", "train/*", "--results", str(results)),
        ("show", str(results)),
    ]
    *_, shown = printed("lending", *commands, COUNT=1, SPLITS=["train"], SECONDS=0.05)
    assert "| train | new | 1 | lends | " in shown


def test_engine_study(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "results.jsonl"
    tiny = ("--size", "size=64", "--repeats", "1", "--traces", "1", "--check-repeats", "1")
    short = ("--probe-seconds", "0.3", "--search-seconds", "0.1", "--real-seconds", "0.3")
    few = ("--train-seconds", "0.3", "--assignments", "3", "--threads", "1")
    known = (FOLDER / "results" / "engine-cpu.jsonl").read_text().splitlines()[-1]
    results.write_text(known + "\n")
    printed("engine_study", ("run", "chainmm", *tiny, *short, *few, "--results", str(results)))
    first, last = results.read_text().splitlines()
    assert first == known
    last = json.loads(last)
    names = ["critical-path", "enumerative", "search"]
    trained = ["doppler-sim", "policy-sim", "doppler-sys", "policy-sys"]
    assert list(last["placed"]) == ["single", *names, *trained]
    assert list(last["fixed"]) == [*names, *trained]
    assert list(last["synchronous"]) == names
    assert set(last["contention"]) <= {"matmul", "elementwise", "reduction"}
    for mode, name in product(("placed", "fixed"), names):
        row = last[mode][name]
        assert len(row["runs"]) == 1
        assert set(row["yardsticks"]) == set(row["yardsticks_std"])
        assert row["yardsticks"]["schedule"] >= 1 - 1e-9
        assert row["yardsticks"]["engine"] > 0.99
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps(last) + "\n")
    both, tables = printed("engine_study", ("show", str(results)), ("show", str(new)))
    assert "| chainmm | " in both
    assert "| search, in fixed order: engine | " in tables
    assert "| faster with barriers | " in tables
    assert "| Pearson | " in tables


def test_stage_three(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "results.jsonl"
    tiny = ("--size", "size=64", "--parts", "2", "--episodes", "8", "--seeds", "1")
    short = ("--repeats", "2", "--train-seconds", "0.5", "--threads", "1")
    where = ("--topology", "p100x4", "--results", str(results))
    printed("stage3", ("run", "chainmm", *tiny, *short, *where))
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["mode"], line["form"]) for line in lines] == [
        *(("dynamic", "guarded"), ("dynamic", "plain")),
        *(("fixed", "guarded"), ("fixed", "plain")),
    ]
    for line in lines:
        assert 1 <= line["best_after"] <= line["executions"]
        assert (line["executions"] == 8) == (line["form"] == "plain")
        assert np.mean(line["ms"]["best"]) <= 1.1 * np.mean(line["ms"]["start"])
    (shown,) = printed("stage3", ("show", str(results)))
    assert "| chainmm | sim | fixed | plain | 1 | 8 | " in shown


def test_memory_limits(tmp_path: Path, printed: Printed) -> None:
    short = ("--budget", "0.1", "--seeds", "1", "--results", str(tmp_path / "memory.jsonl"))
    (shown,) = printed("memory_limits", ("run", "chainmm", *short))
    assert shown.count("| critical-path | 11.5 | ") == 1  # GB, more than 8
    assert "does not fit" not in shown


def test_few_runs(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "few.jsonl"
    tiny = ("--size", "size=64", "--parts", "2", "--executions", "12", "--seeds", "1")
    short = ("--search-seconds", "0.2", "--threads", "1", "--results", str(results))
    commands = ("run", "chainmm", "--topology", "p100x4", *tiny, *short), ("show", str(results))
    ran, shown = printed("few_runs", *commands, ELITES=4)
    assert ran.endswith(shown)
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["way"] for row in rows] == ["policy", "search", "random", "bandit"]
    assert len({row["best_ms"] for row in rows}) == 1
    assert all(row["own_ms"] >= row["best_ms"] for row in rows)
    assert any(row["close_after"] for row in rows)
    assert all(0 < (row["close_after"] or 1) <= row["executions"] for row in rows)


def test_real_devices(tmp_path: Path, printed: Printed) -> None:
    tiny = ("--scale", "0.01", "--seeds", "1", "--real", "8", "--few-seeds", "1")
    short = ("--graphs", "chainmm", "--parts", "table", "few", "--few-executions", "8")
    where = ("--executor", "cpu", "--out", str(tmp_path), "--workers", "1")
    file = tmp_path / "real-devices.jsonl"
    commands = ("run", *tiny, *short, *where), ("show", str(file))
    ran, shown = printed("gpu_partitions", *commands, COMPILED=[])
    assert ran.endswith(shown + "\n")
    assert (tmp_path / "summary.md").read_text("utf-8") == shown
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["origin"]["executor"] == "cpu"
    assert not [line for line in lines if "failed" in line]
    assert [line["few"]["way"] for line in lines if "few" in line] == [
        *("policy", "search", "random", "bandit")
    ]
    for text in ("mode `dynamic`", "mode `fixed`", "| doppler-sys | ", "| chainmm | cpu | bandit"):
        assert text in shown
    assert "### Stages" not in shown


def test_runs_with_little_memory(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "runs.jsonl")
    commands = ("run", "--runs", "2", "--results", results), ("show", results)
    ran, shown = printed("memory_runs", *commands)
    assert ran == shown
    for mode in ("dynamic", "fixed"):
        assert f"| {mode} | 2 | 0 | 0 | yes |" in shown


def test_memory_search(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "search.jsonl")
    case = ("--first", "2", "--last", "3", "--budget", "0.1", "--long", "0", "--seeds", "1")
    commands = ("run", *case, "--results", results), ("show", results)
    ran, shown = printed("memory_search", *commands, PLACERS=["heft", "auto"])
    assert ran.endswith(shown)
    assert shown.count("| yes |") == 2
    assert "24 of width 8,192" in shown


def test_streaming(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "streaming.jsonl")
    tiny = ("--width", "64", "--block", "32", "--batch", "8", "--layers", "6", "--repeats", "1")
    ran, shown = printed(
        "memory_streaming",
        ("run", *tiny, "--shares", "1", "--load-bytes", "4096", "--results", results),
        ("show", results),
    )
    assert ran.endswith(shown)
    assert shown.count("| equal |") == 2


def test_limits_of_the_engine(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "engine.jsonl")
    tiny = ("--topology", "cpu2", "--budget", "0.1", "--repeats", "1", "--load-bytes", "4096")
    sizes = {"cpu": {"chainmm": {"size": 64}}}
    command = ("run", "chainmm", *tiny, "--results", results)
    ran, shown = printed("memory_engine", command, ("show", results), SIZES=sizes)
    assert ran.endswith(shown)
    assert shown.count("| equal |") == 3
    assert "does not fit" not in shown


def test_models(tmp_path: Path, printed: Printed) -> None:
    results = tmp_path / "models.jsonl"
    wanted = ("small/mlp", "small/dlrm")
    listed, shown = printed(
        "models", ("list",), ("run", *wanted, "--budget", "0.1", "--results", str(results))
    )
    names = {*wanted, "full/llama/p100x4-first-fit", "sharded/llama/p100x4/4"}
    assert names <= set(listed.split())
    assert shown.count("| exact |") == 2
    assert "2 of 2 imported" in shown
    row = {"pieces": 2, "flops": 1e12, "weights_bytes": 1e9, "import_s": 1.0, "single_s": None}
    row |= {"makespan_s": 1.0, "bound_s": 0.5, "gap": 1.0, "devices": 2, "balanced_s": 2.0}
    full = row | {"job": "full/llama/p100x4-first-fit", "balanced_devices": 3}
    cut = row | {
        "job": "sharded/llama/p100x4/4",
        "lifted_share": 1.0,
        "columns_s": None,
        "hosts_s": 3.5,
    }
    cut |= {"ways": {"whole": 1.5, "paper": None, "tokens": 1.0, "columns": 3.0}, "best": "tokens"}
    results.write_text("".join(json.dumps(line) + "\n" for line in (full, cut)))
    (shown,) = printed("models", ("show", str(results)))
    assert "ahead of Accelerate's split on 1 of 1 models" in shown
    assert "| does not fit | 2,000 | 3 | 1,000 | 2 | 500 | 100.0 % | 2.00 × |" in shown
    assert "on 1 of 1 models, of tensor parallelism on 1 of 1" in shown
    ways = "| does not fit | 3,500 | 1,500 | does not fit | **1,000** | 3,000 | 500 |"
    assert f"{ways} 100.0 % | 2.00 × | – |" in shown


def test_models_on_devices(
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    results = tmp_path / "models.jsonl"
    tiny = {"batch": 4, "length": 8, "num_hidden_layers": 1, "hidden_size": 16}
    quick = ("--probe", "0.1", "--budget", "0.1", "--repeats", "1", "--results", str(results))
    (shown,) = printed("models_engine", ("run", *quick), SIZES={"cpu": {"bert": tiny}})
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("models_engine")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["graph"], row["placer"]) for row in rows] == list(script.CASES)
    assert all(row["error"] < 1e-5 for row in rows)
    assert shown.count("| whole | ") == 4
    assert shown.count("| 4 parts, tokens | ") == 2
    assert shown.count("| columns | ") == 1

    def interrupted() -> Iterator[dict[str, object]]:
        yield rows[0]
        raise KeyboardInterrupt

    kept = tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        script.keep(interrupted(), kept)
    assert json.loads(kept.read_text()) == rows[0]
    assert "| `single` | 1 | " in capsys.readouterr().out


def test_overhead(printed: Printed) -> None:
    (shown,) = printed("overhead", ("mlp, 64 wide", "--runs", "1"))
    assert "| mlp, 64 wide | 8 | " in shown


def test_chaos(tmp_path: Path, printed: Printed) -> None:
    """A short one of CI; the whole takes minutes."""
    short = ("--requests", "240", "--seeds", "0", "--results", str(tmp_path / "chaos.jsonl"))
    often = {"CHANGE_EVERY": 80, "RESTART_EVERY": 100, "EVALUATIONS": 100}
    (shown,) = printed("chaos", ("run", "chaos", *short), **often)
    assert "0 of 2 forgot" in shown
    assert shown.count("| yes |") == 7
    assert "**no**" not in shown


def test_load(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "load.jsonl")
    short = ("--requests", "20", "--repeats", "2", "--backend", "null", "--results", results)
    ran, shown = printed("load", ("run", *short), ("show", results))
    assert "20 of each way, medians of 2 repetitions" in shown
    assert shown.count("| serving") == 2
    assert ran.endswith(shown)


def test_page(printed: Printed, chromium: str) -> None:
    (shown,) = printed(
        "page", ("run", "--vertices", "100"), LOADS=1, STEPS=10, CHANGES=2, CHROMIUM=chromium
    )
    for what in ("shown after", "panning the timeline", "panning the graph", "moving a vertex"):
        assert what in shown


def test_ordering(tmp_path: Path, printed: Printed) -> None:
    results, more = tmp_path / "results.jsonl", tmp_path / "more.jsonl"
    few = {"MOVES": 100, "RUNS": 2}
    job = ("run", "uneven/chainmm", "--results", str(results), "--episodes", "1")
    printed("ordering", job, **few)
    (row,) = [json.loads(line) for line in results.read_text().splitlines()]
    assert row["bound_ms"] < row["search_ms"] <= row["enumerative_ms"]
    assert len(row["doppler_ms"]) == 2
    names = [f"uneven/{g}" for g in ("chainmm", "ffnn", "llama-block", "llama-layer")]
    more.write_text("".join(json.dumps(row | {"job": name}) + "\n" for name in names))
    (shown,) = printed("ordering", ("show", str(more)), **few)
    assert "| *the paper* | 139, 50, 173, 175 | −11.2, −5.6, −7.2, −13.8 |" in shown
    assert "| one device at 85 % of its speed | 140, 140, 140, 140 |" in shown


def test_quality_is_worse_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    is_worse = importlib.import_module("quality").is_worse
    assert not is_worse([100.4] * 3, [100.0] * 3)  # less than half a percent
    assert is_worse([101.0] * 3, [100.0] * 3)
    assert not is_worse([101.0, 103.0, 99.0], [100.0, 102.0, 98.0])
    assert not is_worse([90.0] * 3, [100.0] * 3)


def test_the_table_of_scale(printed: Printed) -> None:
    (table,) = printed("scale", ("--hosts", "1", "2", "--per-device", "2"))
    _, _, one, two = (line.split(" | ") for line in table.splitlines())
    assert (one[1], one[5]) == ("8", "0")
    assert two[1] == "16"


def test_heuristics_are_no_worse_than_stored_and_a_worse_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    quality = importlib.import_module("quality")
    for name in quality.HEURISTICS:
        quality.main(["--only", f"{name}/chainmm"])
    assert capsys.readouterr().out.count("  ok") == len(quality.HEURISTICS)
    stored = tmp_path / "quality.toml"
    stored.write_text('[ms]\n"enumerative/ffnn" = [47.0, 47.0, 47.0]\n')
    monkeypatch.setattr(quality, "STORED", stored)
    with pytest.raises(SystemExit, match="worse than stored: enumerative/ffnn"):
        quality.main(["--only", "enumerative/ffnn"])


def test_the_table_of_processes_on_a_gpu(tmp_path: Path, printed: Printed) -> None:
    us = {f"{many} {what}": 10.0 for many in ("one", "two") for what in ("crosses", "stays")}
    done = {"mode": "fixed", "program": "ffnn", "error": 0.0, "equal": True, "transfers": 3}
    rows = [
        {"step": "gloo"} | done,
        {"step": "gloo", "seconds": 3.0, "codes": [0, 0]},
        {"step": "times", "mode": "fixed", "bytes": 1024, "us": us | {"copy": 4.0}},
        {"step": "nccl", "seconds": 2.0, "codes": [1, 1], "why": "Duplicate GPU detected"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    (text,) = printed("rank_cuda", ("show", str(path)))
    assert "| nccl | 2.0 | Duplicate GPU detected |" in text
    assert "| gloo | fixed | 1 | 1 | 3 | 0.0e+00 |" in text
    assert "| fixed | 1,024 | crosses | 10.0 | 10.0 | 0.0 | 4.0 | -4.0 |" in text


def test_tables_are_kept_and_shown_again(tmp_path: Path, printed: Printed) -> None:
    results = str(tmp_path / "workloads.jsonl")
    run = ("run", "one", "--results", results)
    ran, again, shown = printed("workloads", run, run, ("show", results))
    assert "| `p100x4` | `chainmm` | 112 |" in shown
    assert shown.count("**One device") == 1  # the later one counts
    assert ran.startswith(shown)
    assert again.startswith(shown)


def test_constants_of_presets_that_are_shown(tmp_path: Path, printed: Printed) -> None:
    """Nothing in these tables depends on time: the stored ones are those of today's presets."""
    stored, results = FOLDER / "results" / "presets.jsonl", tmp_path / "presets.jsonl"
    printed("fit_presets", ("run", "presets", "--machines", "p100x4", "--results", str(results)))
    lines = stored.read_text("utf-8").splitlines()
    assert set(results.read_text("utf-8").splitlines()) <= set(lines)
