"""OnlinePlacer: it gets faster while it serves, and no request pays more than was agreed."""

import json
import logging
import os
import runpy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from training.tiny import CONFIG, graph  # noqa: E402

from doppler.assignment import Assignment  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.engine.execution import Execution  # noqa: E402
from doppler.errors import ConfigError, DopplerError, EngineError, OutputError  # noqa: E402
from doppler.graph import Graph  # noqa: E402
from doppler.placers.learned.doppler import DopplerPlacer  # noqa: E402
from doppler.placers.registry import place  # noqa: E402
from doppler.policies.configs import GdpConfig  # noqa: E402
from doppler.policies.dual import make_policy  # noqa: E402
from doppler.policies.kinds import make_any  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.programs import ffnn  # noqa: E402
from doppler.serving.config import OnlineConfig  # noqa: E402
from doppler.serving.online import OnlinePlacer, Server  # noqa: E402
from doppler.sharding import shard  # noqa: E402
from doppler.sim import Noise, SimConfig, Simulator  # noqa: E402
from doppler.topology import Topology  # noqa: E402

MACHINE = Topology.preset("p100x4")
QUICK = OnlineConfig(explore=0.3, warm_up=3, pause=2, moves=100, samples=8, slowdown=0.1)


class Served:
    """A server in virtual time; some assignments are refused, or take longer."""

    def __init__(
        self,
        sigma: float = 0.02,
        *,
        refuse: Callable[[np.ndarray], bool] = lambda devices: False,
        slow: Callable[[np.ndarray], float] = lambda devices: 1.0,
    ) -> None:
        self.topology = MACHINE
        noise = Noise(exec_sigma=sigma, device_sigma=sigma)
        self.simulator = Simulator(MACHINE, SimConfig(noise=noise))
        self.refuse, self.slow = refuse, slow
        self.ran: list[bytes] = []

    def check_inputs(self, graph: Graph, inputs: Mapping[str, Any] | None) -> None:
        """All are welcome."""

    def execute(
        self,
        graph: Graph,
        assignment: Assignment,
        inputs: Mapping[str, Any] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Execution:
        self.ran.append(assignment.devices.tobytes())
        if self.refuse(assignment.devices):
            raise EngineError("refused")
        trace = self.simulator.run(graph, assignment, len(self.ran))
        factor = self.slow(assignment.devices)
        trace = replace(trace, begin_s=trace.begin_s * factor, end_s=trace.end_s * factor)
        return Execution(trace, np.array([trace.makespan_s]), np.array([1]), {"inputs": inputs})  # type: ignore[dict-item]


def start_of(work: Graph) -> Assignment:
    return place(work, MACHINE, "round-robin")


def online(server: Server, config: OnlineConfig = QUICK, **options: Any) -> OnlinePlacer:
    work = graph()
    return OnlinePlacer(work, server, start_of(work), config, **options)


def test_it_gets_faster_and_explores_no_more_than_it_may() -> None:
    served = Served()
    with online(served) as placer:
        for number in range(1, 301):
            result = placer.serve({"number": number})  # type: ignore[dict-item]
            assert result.outputs["inputs"] == {"number": number}
            status = placer.status()
            assert status.requests == number
            assert status.explored <= 0.3 * number
    work = graph()
    before, after = (
        Simulator(MACHINE).run(work, a).makespan_s for a in (start_of(work), placer.incumbent)
    )
    assert after < 0.9 * before
    assert status.promoted >= 1
    assert status.dropped >= 1
    assert status.gain == pytest.approx(1 - after / before, abs=0.05)
    assert status.incumbent_s == pytest.approx(after, rel=0.05)
    assert 0 < status.spread_s < 0.1 * status.incumbent_s
    assert status.sim_error is not None
    assert status.extra < 0.1
    by_others = [row for row in served.ran if row != served.ran[0]]
    assert len(by_others) >= status.explored


def test_exploring_stops_where_it_costs_too_much() -> None:
    """All but the start take three times as long: a few requests, then no more than agreed."""
    start = start_of(graph()).devices
    served = Served(slow=lambda d: 1.0 if np.array_equal(d, start) else 3.0)
    config = replace(QUICK, explore=1.0, slowdown=0.01, tolerance=1.0, drop=10.0)
    with online(served, config) as placer:
        for _ in range(400):
            placer.serve()
        status = placer.status()
    assert status.promoted == 0
    assert status.extra < 0.01 + 3 / 400  # the last one may exceed it
    assert 1 <= status.explored < 10
    assert np.array_equal(placer.incumbent.devices, start)


def test_a_challenger_that_fails_is_dropped_and_the_request_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = start_of(graph()).devices
    served = Served(refuse=lambda devices: not np.array_equal(devices, start))
    with online(served) as placer, caplog.at_level(logging.WARNING):
        for number in range(60):
            result = placer.serve({"number": number})  # type: ignore[dict-item]
            assert result.outputs["inputs"] == {"number": number}
        status = placer.status()
    assert status.requests == 60
    assert status.failures == status.explored == status.dropped > 1
    refused = [row for row in served.ran if row != start.tobytes()]
    assert len(refused) == len(set(refused)) == status.failures  # none twice
    assert "failed: challenger: refused" in caplog.text


def test_an_incumbent_that_fails_gives_way_to_the_first() -> None:
    start = start_of(graph()).devices
    broken: list[bool] = []
    served = Served(refuse=lambda devices: bool(broken) and not np.array_equal(devices, start))
    with online(served) as placer:
        while not placer.status().promoted:
            placer.serve()
        assert not np.array_equal(placer.incumbent.devices, start)
        broken.append(True)
        for _ in range(10):
            placer.serve()
        assert np.array_equal(placer.incumbent.devices, start)
        status = placer.status()
        assert status.gain == 0.0
        assert status.failures > 0
        served.refuse = lambda devices: True
        with pytest.raises(EngineError, match="refused"):
            placer.serve()


def test_it_is_switched_off_at_any_moment() -> None:
    served = Served()
    with online(served) as placer:
        while not placer.status().explored:
            placer.serve()
        thread = Thread(target=placer.off)  # as a person at a console would
        thread.start()
        thread.join()
        explored = placer.status().explored
        for _ in range(30):
            placer.serve()
        assert placer.status().explored == explored
        assert not placer.status().exploring
        placer.exploring = True
        for _ in range(30):
            placer.serve()
        assert placer.status().explored > explored


def test_thinking_outside_of_requests() -> None:
    with online(Served(), replace(QUICK, propose_in_serve=False)) as placer:
        for _ in range(20):
            placer.serve()
        assert placer.status().explored == 0
        assert placer.propose() > 0
        assert placer.status().waiting > 0
        assert placer.propose() == 0  # some wait already
        for _ in range(10):
            placer.serve()
        assert placer.status().explored > 0


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    config = replace(QUICK, save_every=10)
    with online(Served(), config, state=path) as placer:
        for _ in range(9):
            placer.serve()
        assert not path.exists()
        placer.serve()
        assert json.loads(path.read_text())["exploration"]["requests"] == 10
        for _ in range(115):
            placer.serve()
        before = placer.status()
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
    again = online(Served(), config, state=path)
    after = again.status()
    same = ("requests", "explored", "promoted", "dropped", "incumbent_s", "spread_s", "gain")
    for name in (*same, "challenger_s", "waiting", "extra", "failures"):
        assert getattr(after, name) == getattr(before, name), name
    assert again.incumbent == placer.incumbent
    for _ in range(50):
        again.serve()
    assert again.status().explored <= 0.3 * again.status().requests


def test_a_state_that_cannot_be_written_stops_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    placer = online(Served(), replace(QUICK, save_every=1), state=tmp_path / "state.json")
    placer.serve()
    before = (tmp_path / "state.json").read_bytes()

    def refuse(self: Path, target: Any) -> Path:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", refuse)
    with caplog.at_level(logging.WARNING):
        placer.serve()
    assert "the state is not saved" in caplog.text
    assert (tmp_path / "state.json").read_bytes() == before
    with pytest.raises(OutputError, match="No space left"):
        placer.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace("doppler-online", "doppler-offline"), "`format` is"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "`version` is 2"),
        (
            lambda text: text.replace('"exploration": {', '"exploration": 3, "x": {'),
            "unknown key `x`",
        ),
        (lambda text: text.replace('"graph": "sha256:', '"graph": "sha256:0'), "another graph"),
        (lambda text: text.replace('"incumbent": [', '"incumbent": [9, '), "does not fit"),
        (lambda text: text.replace('"incumbent": [-1', '"incumbent": [0.5'), "does not fit"),
        (lambda text: text.replace('"queue"', '"cue"'), "does not fit"),
        (lambda text: text.replace('"requests": ', '"requests": null, "x": '), "does not fit"),
    ],
)
def test_a_damaged_state_is_refused(
    tmp_path: Path, damage: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "state.json"
    with online(Served(), state=path) as placer:
        placer.serve()
    path.write_text(damage(path.read_text()))
    with pytest.raises(DopplerError, match=message):
        online(Served(), state=path)


@pytest.mark.parametrize("kind", ["policy", "placer", "both"])
def test_a_policy_proposes_and_learns(tmp_path: Path, kind: str) -> None:
    work, policy = graph(), make_policy(CONFIG.policy, 0)
    given = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    start: Any = {"policy": policy, "placer": DopplerPlacer(policy), "both": start_of(work)}[kind]
    more = {"policy": policy} if kind == "both" else {}
    config = replace(QUICK, learn_every=4, explore=0.5, tolerance=0.5)
    path = tmp_path / "state.json"
    with OnlinePlacer(work, Served(), start, config, state=path, **more) as placer:
        for _ in range(60):
            placer.serve()
    learned = placer.policy
    assert learned is not None
    assert not all(torch.equal(given[k], v) for k, v in learned.state_dict().items())
    assert all(torch.equal(given[k], v) for k, v in policy.state_dict().items())
    again = OnlinePlacer(work, Served(), start, config, state=path, **more)
    assert again.policy is not None
    for name, tensor in again.policy.state_dict().items():
        assert torch.equal(tensor, learned.state_dict()[name])
    DopplerPlacer.from_path(tmp_path / "state.safetensors").place(Problem(work, MACHINE))


def test_a_rival_proposes_and_learns_as_well(tmp_path: Path) -> None:
    policy = make_any(GdpConfig(width=4, devices=4), 0)
    config = replace(QUICK, learn_every=2, explore=0.5, tolerance=1.0)
    path = tmp_path / "state.json"
    with OnlinePlacer(graph(), Served(), policy, config, state=path) as placer:
        for _ in range(40):
            placer.serve()
    assert placer.policy is not None
    given, learned = policy.state_dict(), placer.policy.state_dict()
    assert not all(torch.equal(given[name], learned[name]) for name in given)
    again = OnlinePlacer(graph(), Served(), policy, config, state=path)
    assert again.policy is not None
    assert all(torch.equal(learned[k], v) for k, v in again.policy.state_dict().items())


def test_on_an_engine_results_do_not_depend_on_who_serves() -> None:
    topology = Topology.preset("cpu2")
    work = shard(ffnn(batch=64, features=32, hidden=64, classes=16, dtype="float32"), 4)
    rng = np.random.default_rng(0)
    start = place(work, topology, "round-robin")
    inputs = {
        "X": rng.standard_normal((64, 32), np.float32),
        "W1": rng.standard_normal((32, 64), np.float32),
        "W2": rng.standard_normal((64, 16), np.float32),
    }
    # Which challengers the placer would find depends on the clock: these are given.
    config = replace(QUICK, explore=0.5, slowdown=1e3, drop=1e6, propose_in_serve=False)
    others = [np.where(work.is_input, -1, device) for device in (0, 1)]
    with Engine(topology, "cpu") as engine, OnlinePlacer(work, engine, start, config) as placer:
        assert placer._exploration.propose(others) == 2
        expected = engine.execute(work, start, inputs).outputs
        for _ in range(30):
            found = placer.serve(inputs).outputs
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
        assert placer.status().explored > 3


def test_on_the_null_backend() -> None:
    work = graph()
    with Engine(MACHINE, "null") as engine:
        placer = OnlinePlacer(work, engine, start_of(work), QUICK)
        for _ in range(20):
            placer.serve()
        assert placer.status().requests == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"explore": 1.5},
        {"explore": float("nan")},
        {"slowdown": -1.0},
        {"tolerance": -0.1},
        {"drop": 1.0},
        {"max_runs": 2},
        {"confidence": 0.2},
        {"pause": 0},
        {"queue": 0},
        {"save_every": 0},
        {"moves": -1},
    ],
)
def test_mistakes(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(QUICK, **changes)


def test_the_start_must_fit() -> None:
    with pytest.raises(DopplerError):
        OnlinePlacer(graph(1), Served(), start_of(graph()), QUICK)


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples/serve.py"
    monkeypatch.setattr("sys.argv", [str(path), "--requests", "30", "--explore", "0.3"])
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert "30 requests  mean" in out
    assert "the incumbent takes" in out
