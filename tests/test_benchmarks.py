"""The benchmark of the baselines: its jobs run, and its tables can be made from their results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "baselines.py"
MISSING = ("pymetis", "mtkahypar", "ortools", "gymnasium", "typer", "rich")
# The script as it is, where these cannot be imported.
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING!r}))
sys.path.insert(0, {str(SCRIPT.parent)!r})
sys.argv = [{str(SCRIPT)!r}, *sys.argv[1:]]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def baselines(*arguments: str) -> str:
    """What the script prints."""
    command = [sys.executable, "-c", BARE, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_jobs_and_tables(tmp_path: Path) -> None:
    names = baselines("list").split()
    assert len(names) == len(set(names))
    results = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tiny = ("--seconds", "0.2", "--episodes", "16")
    methods = ("doppler", "placeto", "placeto-pretrain", "gdp", "seq2seq", "heft", "metis")
    wanted = [f"table/chainmm/{name}/0" for name in methods if name != "placeto-pretrain"]
    wanted += ["time/chainmm/gdp/0", "scaling/gdp/100", "scaling/gdp/200"]
    assert set(wanted) <= set(names)
    for number, file in enumerate(results):
        baselines("run", *wanted, *tiny, "--part", f"{number}/2", "--results", str(file))
    lines = [json.loads(line) for file in results for line in file.read_text().splitlines()]
    assert sorted(line["job"] for line in lines) == sorted(wanted)
    before = results[0].read_text()
    baselines("run", *wanted, *tiny, "--part", "0/2", "--results", str(results[0]))
    assert results[0].read_text() == before  # what is done is not done again
    shown = baselines("show", *map(str, results))
    assert "| gdp | " in shown
    assert "*198.0*" in shown
    assert "The same time, 0.2 s" in shown
    assert "One update of 4 episodes" in shown
    assert "skipped: table/chainmm/metis/0: " in shown
