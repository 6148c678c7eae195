"""What goes wrong: an error that tells the story, nothing left behind, and the next run works."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

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

from doppler.engine.engine import Engine, EngineConfig  # noqa: E402
from doppler.errors import EngineError, Interrupted  # noqa: E402

STORY = (
    r"vertex `f3\[0\]` \(input-elemwise\) on device `d1`, ready at [\d.]+ ms and started at "
    r"[\d.]+ ms after 4 of 7 tasks, "
)
DEVICES = [0, 0, 0, 0, 1, 1, 1]  # of the chain: f0 to f2, a transfer, f3 to f5
PATIENCE_S = 30.0


@pytest.fixture
def spy() -> Spy:
    return Spy(machine())


@pytest.fixture
def engine(spy: Spy) -> Iterator[Engine]:
    before = threading.enumerate()
    spy.grace_s = 0.2
    with Engine(machine(), spy, EngineConfig(timeout_s=PATIENCE_S)) as engine:
        yield engine
    assert threading.enumerate() == before


def assert_works(engine: Engine, spy: Spy) -> None:
    """The next runs compute what they should, with as many threads as there ought to be."""
    assert spy.num_live == 0
    spy.instead.clear()
    for name in ("chain", "chainmm"):
        graph, inputs, expected = chain() if name == "chain" else workload(name, 4)
        devices = DEVICES if name == "chain" else 2
        assert_close(engine.execute(graph, assign(graph, devices), inputs).outputs, expected)
    names = [t.name for t in threading.enumerate() if t.name.startswith("doppler-")]
    assert sorted(names) == ["doppler-bus-0", "doppler-d0-0", "doppler-d1-0"]
    assert spy.num_live == 0


def fail_with(error: BaseException) -> Any:
    def fail(kernel: Any, x: Any, out: Any) -> None:
        raise error

    return fail


def run_chain(engine: Engine) -> None:
    graph, inputs, _ = chain()
    engine.execute(graph, assign(graph, DEVICES), inputs)


def test_a_kernel_that_raises(engine: Engine, spy: Spy) -> None:
    cause = ValueError("no good\nand more")
    spy.instead[vertex(chain()[0], "f3")] = fail_with(cause)
    with pytest.raises(EngineError, match=STORY + "failed: ValueError: no good$") as raised:
        run_chain(engine)
    assert raised.value.__cause__ is cause
    assert_works(engine, spy)


def test_an_error_does_not_hold_on_to_tensors(engine: Engine, spy: Spy) -> None:
    spy.instead[vertex(chain()[0], "f3")] = fail_with(ValueError("no good"))
    with pytest.raises(EngineError) as raised:
        run_chain(engine)
    trace = raised.value.__cause__.__traceback__
    assert trace is not None
    held = []
    while trace is not None:
        held += [v for v in trace.tb_frame.f_locals.values() if isinstance(v, torch.Tensor)]
        trace = trace.tb_next
    assert held == []


@pytest.mark.parametrize("death", [SystemExit(3), KeyboardInterrupt(), GeneratorExit("bye")])
def test_a_worker_that_dies_is_missed_and_replaced(
    engine: Engine, spy: Spy, death: BaseException
) -> None:
    run_chain(engine)
    before = {t.name: t for t in threading.enumerate()}
    spy.instead[vertex(chain()[0], "f3")] = fail_with(death)
    with pytest.raises(EngineError, match=STORY + f"failed: {type(death).__name__}: "):
        run_chain(engine)
    assert_works(engine, spy)
    after = {t.name: t for t in threading.enumerate()}
    assert after["doppler-d0-0"] is before["doppler-d0-0"]
    assert after["doppler-d1-0"] is not before["doppler-d1-0"]


def test_a_copy_that_fails(engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(inputs: Any, output: Any) -> None:
        raise OSError("line cut")

    with monkeypatch.context() as patch:
        patch.setattr("doppler.engine.backends.cpu._copy", fail)
        message = (
            r"the transfer of the output of vertex `f2\[0\]` from device `d0` to `d1`, ready .* "
            "after 3 of 7 tasks, failed: OSError: line cut"
        )
        with pytest.raises(EngineError, match=message):
            run_chain(engine)
    assert_works(engine, spy)


def test_a_worker_that_hangs_is_abandoned(
    engine: Engine, spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(kernel: Any, x: Any, out: Any) -> None:
        released.wait(PATIENCE_S)

    spy.instead[vertex(chain()[0], "f3")] = hang
    hasty = Engine(machine(), spy, EngineConfig(timeout_s=0.2))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(EngineError, match=STORY + r"did not end within 0.2 s\nhint: raise"),
    ):
        run_chain(hasty)
    assert "d1 hangs" in caplog.text
    hung = next(t for t in threading.enumerate() if t.name == "doppler-d1-0")
    graph, inputs, expected = chain()
    spy.instead.clear()
    assert_close(engine.execute(graph, assign(graph, DEVICES), inputs).outputs, expected)
    assert hung.is_alive()
    released.set()
    hung.join(PATIENCE_S)
    assert_works(engine, spy)


def test_what_an_abandoned_kernel_writes_spoils_nothing(engine: Engine, spy: Spy) -> None:
    """It comes back in the middle of the next run, and writes to its output."""
    graph, inputs, expected = chain()
    released, hung, written = threading.Event(), [], []

    def hang(kernel: Any, x: Any, out: Any) -> None:
        hung.append(threading.current_thread())
        written.append(out.data_ptr())
        released.wait(PATIENCE_S)
        out.fill_(float("nan"))

    def release(kernel: Any, x: Any, out: Any) -> None:
        kernel(x, out)
        released.set()
        hung[0].join(PATIENCE_S)

    v = vertex(graph, "f3")
    run_chain(engine)  # so that there are buffers to use again
    spy.instead[v] = hang
    with pytest.raises(EngineError):
        run_chain(Engine(machine(), spy, EngineConfig(timeout_s=0.2)))
    spy.instead[v] = release
    spy.given.clear()
    assert_close(engine.execute(graph, assign(graph, DEVICES), inputs).outputs, expected)
    assert not hung[0].is_alive()
    assert written[0] not in spy.given
    assert_works(engine, spy)


def test_one_slot_of_two_hangs() -> None:
    graph, inputs, expected = workload("chainmm", 4)
    topology = machine(1, slots=2)
    spy, released = Spy(topology), threading.Event()
    spy.grace_s = 0.1
    v = vertex(graph, "DE[")
    spy.instead[v] = lambda kernel, x, out: released.wait(PATIENCE_S)
    with Engine(topology, spy, EngineConfig(timeout_s=0.2)) as engine:
        with pytest.raises(EngineError, match="did not end within"):
            engine.execute(graph, assign(graph, 1), inputs)
        spy.instead.clear()
        for _ in range(20):
            assert_close(engine.execute(graph, assign(graph, 1), inputs).outputs, expected)
        released.set()
    assert not [t for t in threading.enumerate() if t.name.startswith("doppler-")]


def test_what_was_started_ahead_of_a_failure_does_not_run() -> None:
    graph, inputs, _ = workload("chainmm", 4)
    topology = machine(1, ahead=3)
    spy, released, ran = Spy(topology), threading.Event(), []
    spy.grace_s = 0.1
    spy.instead = dict.fromkeys(graph.assigned.tolist(), lambda kernel, x, out: ran.append(out))
    assignment = assign(graph, 1)
    spy.instead[int(assignment.order[0])] = lambda kernel, x, out: released.wait(PATIENCE_S)
    with Engine(topology, spy, EngineConfig(timeout_s=0.2, strategy="order")) as engine:
        with pytest.raises(EngineError, match="did not end within"):
            engine.execute(graph, assignment, inputs)
        assert len(spy.given) == 4
        released.set()
    assert ran == []


def test_closing_does_not_wait_for_ever() -> None:
    graph, inputs, _ = chain()
    spy, released = Spy(machine()), threading.Event()
    spy.grace_s = 0.1
    spy.instead[vertex(graph, "f3")] = lambda kernel, x, out: released.wait(PATIENCE_S)
    with (
        Engine(machine(), spy, EngineConfig(timeout_s=0.1)) as engine,
        pytest.raises(EngineError),
    ):
        engine.execute(graph, assign(graph, DEVICES), inputs)
    (hung,) = (t for t in threading.enumerate() if t.name.startswith("doppler-"))
    released.set()
    hung.join(PATIENCE_S)
    assert not hung.is_alive()


def test_a_run_is_cancelled_from_another_thread(engine: Engine, spy: Spy) -> None:
    released = threading.Event()

    def cancel(kernel: Any, x: Any, out: Any) -> None:
        engine.cancel()
        released.wait(0.1)

    spy.instead[vertex(chain()[0], "f3")] = cancel
    with pytest.raises(EngineError, match="the run was cancelled"):
        run_chain(engine)
    assert_works(engine, spy)


def test_a_cancel_between_two_runs_of_many_is_not_lost(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = []

    def begin(*arguments: Any) -> None:
        begins.append(arguments)
        if len(begins) == 3:
            engine.cancel()
        Spy.begin(spy, *arguments)

    graph, inputs, _ = chain()
    with monkeypatch.context() as patch:
        patch.setattr(spy, "begin", begin)
        with pytest.raises(EngineError, match="the run was cancelled"):
            engine.execute(graph, assign(graph, DEVICES), inputs, repeats=50)
    assert len(begins) == 3
    assert_works(engine, spy)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("call", [1, 3])
def test_control_c_while_it_waits(
    engine: Engine,
    spy: Spy,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: type[BaseException],
    call: int,
) -> None:
    calls = []

    def wait(timeout_s: float) -> Any:
        calls.append(timeout_s)
        if len(calls) == call:
            raise interrupt
        return Spy.wait(spy, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(spy, "wait", wait)
        with pytest.raises(interrupt):
            run_chain(engine)
    assert_works(engine, spy)


def test_control_c_twice_while_a_kernel_hangs(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in the run, and once more while the backend waits for the kernel to end."""
    released = threading.Event()
    spy.instead[vertex(chain()[0], "f0")] = lambda kernel, x, out: released.wait(PATIENCE_S)

    def wait(timeout_s: float) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spy, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            run_chain(engine)
    hung = [t for t in threading.enumerate() if t.name == "doppler-d0-0"]
    released.set()
    for worker in hung:
        worker.join(0.5)
    assert_works(engine, spy)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()]
)
def test_no_memory_for_an_output(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    count = []

    def empty(*arguments: Any) -> Any:
        count.append(arguments)
        if len(count) == 5:  # f0, f1, f2, the copy, f3
            raise error
        return Spy.empty(spy, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(spy, "empty", empty)
        with pytest.raises(EngineError, match=STORY + f"failed: {type(error).__name__}: "):
            run_chain(engine)
    assert_works(engine, spy)


def test_threads_that_cannot_be_started(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(EngineError, match=r"threads .* cannot be started: can't start new"):
            run_chain(engine)
    assert_works(engine, spy)


def test_several_failures_at_once(engine: Engine, spy: Spy) -> None:
    """Two kernels on two devices fail; the first is told, the second is not left over."""
    graph, inputs, _ = workload("chainmm", 4)
    spy.instead = dict.fromkeys(graph.assigned.tolist(), fail_with(ValueError("bad")))
    for _ in range(10):
        with pytest.raises(EngineError, match="failed: ValueError: bad"):
            engine.execute(graph, assign(graph, 2), inputs)
        assert spy.num_live == 0
    assert_works(engine, spy)
