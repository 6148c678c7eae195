"""What an engine promises whoever uses it: clear errors, memory that is counted, many threads."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.running import (  # noqa: E402
    Spy,
    assert_close,
    assign,
    chain,
    machine,
    vertex,
    workload,
)

from doppler.engine.engine import Engine, execute  # noqa: E402
from doppler.errors import DeadlineError, EngineError, OutOfMemoryError  # noqa: E402
from doppler.placers.registry import place  # noqa: E402
from doppler.programs import ProgramBuilder, chainmm, relu  # noqa: E402
from doppler.sharding import shard  # noqa: E402
from doppler.sim import Simulator  # noqa: E402
from doppler.topology import Topology  # noqa: E402

CPU2 = Topology.preset("cpu2")


def test_an_output_that_is_also_an_input() -> None:
    builder = ProgramBuilder("same")
    x, w = builder.input("x", (8, 4)), builder.input("w", (4, 4))
    graph = shard(builder.build(x @ w, x), 2)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.random((8, 4), np.float32), "w": rng.random((4, 4), np.float32)}
    found = execute(graph, CPU2, place(graph, CPU2, "heft"), inputs=inputs).outputs
    assert_close(found, {"x": inputs["x"], "matmul": inputs["x"] @ inputs["w"]})


def test_results_that_are_read_count_until_they_are_fetched() -> None:
    """Ten results of 8192 bytes, each made from the one before, and the input."""
    builder = ProgramBuilder("chain")
    made = [builder.input("x", (32, 64))]
    for _ in range(10):
        made.append(relu(made[-1]))
    graph = shard(builder.build(*made[1:]), 1)
    single = place(graph, CPU2, "single")
    for limit, fits in ((8_192, False), (81_920, False), (90_112, True)):
        devices = tuple(replace(device, memory_bytes=limit) for device in CPU2.devices)
        tight = replace(CPU2, devices=devices)
        for run in (Simulator(tight).run, lambda *what, t=tight: execute(what[0], t, what[1])):
            if fits:
                run(graph, single)
            else:
                with pytest.raises(OutOfMemoryError):
                    run(graph, single)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_kernel_that_would_resize_its_output_is_an_error() -> None:
    graph = shard(chainmm(size=8, dtype="float32"), 1)
    v = int(graph.assigned[0])
    kernels = list(graph.kernels)
    kernel = kernels[v]
    assert kernel is not None
    kernels[v] = replace(kernel, op="input-elemwise", attributes={"fn": "relu", "operands": [0]})
    kernels[v] = replace(kernels[v], inputs=kernel.inputs[:1], shapes=((8, 4),))
    odd = replace(graph, kernels=tuple(kernels))
    with pytest.raises(EngineError, match=r"makes|make no sense|fit"):
        execute(odd, CPU2, place(graph, CPU2, "single"))


@pytest.fixture
def spy() -> Spy:
    return Spy(machine())


@pytest.fixture
def engine(spy: Spy) -> Iterator[Engine]:
    with Engine(machine(), spy) as made:
        yield made


def test_threads_that_share_an_engine_wait_for_one_another(engine: Engine) -> None:
    jobs = [(chain(), [0, 0, 0, 0, 1, 1, 1]), (workload("chainmm", 4), 2)]
    wrong: list[Any] = []

    def use(number: int) -> None:
        (graph, inputs, expected), devices = jobs[number % 2]
        for _ in range(5):
            try:
                found = engine.execute(graph, assign(graph, devices), inputs).outputs
                assert_close(found, expected)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, DeadlineError])
def test_what_is_interrupted_returns_at_once_and_is_no_hang(
    engine: Engine,
    spy: Spy,
    interrupt: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kernel runs that takes longer than anyone waits."""
    released, running = threading.Event(), threading.Event()
    spy.grace_s = 30.0
    graph, inputs, expected = chain()
    assignment = assign(graph, [0, 0, 0, 0, 1, 1, 1])

    def busy(kernel: Any, out: Any) -> None:
        running.set()
        released.wait(30.0)

    def wait(timeout_s: float) -> Any:
        running.wait(30.0)
        if interrupt is KeyboardInterrupt and not released.is_set():
            monkeypatch.undo()
            raise KeyboardInterrupt
        return Spy.wait(spy, timeout_s)

    spy.instead[vertex(graph, "f0")] = busy
    monkeypatch.setattr(spy, "wait", wait)
    deadline_s = None if interrupt is KeyboardInterrupt else 0.01
    logger = "doppler.engine.backends.cpu"
    with caplog.at_level(logging.INFO, logger), pytest.raises(interrupt):
        engine.execute(graph, assignment, inputs, deadline_s=deadline_s)
    assert not released.is_set()  # nobody waited for it
    assert "hangs" not in caplog.text
    assert "is busy: new threads take its place" in caplog.text
    released.set()
    spy.instead.clear()
    assert_close(engine.execute(graph, assignment, inputs).outputs, expected)
