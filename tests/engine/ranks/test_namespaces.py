"""Two hosts that are network namespaces: they are probed, and run what is placed on them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "rank_hosts.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rank_hosts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_hosts_with_a_slow_connection() -> None:
    hosts = script()
    if reason := hosts.why_not():
        pytest.skip(reason)
    try:
        with hosts.two_hosts(100, 1.0):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the kernel refuses: {error.stderr.decode().strip()}")
    options = ("--mbit", "100", "--seconds", "1", "--size", "128", "--repeats", "1", "--json")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout)
    assert {row[0] for row in found["rows"]} == set(hosts.PLACERS)
    assert all(predicted > 0 and measured > 0 for _, predicted, measured in found["rows"])
    assert found["bandwidth_bytes_per_s"] < 100e6 / 8 * 1.5  # no more than the connection has
