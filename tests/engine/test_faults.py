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

from doppler.engine.backends.workers import Job  # noqa: E402
from doppler.engine.config import EngineConfig  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import EngineError, Interrupted, OutOfMemoryError  # noqa: E402
from doppler.scheduler.choose import MODES  # noqa: E402

STORY = (
    r"vertex `f3\[0\]` \(input-elemwise\) on device `d1`, (ready at [\d.]+ ms and )?started at "
    r"[\d.]+ ms after 4 of 7 tasks, "
)
DEVICES = [0, 0, 0, 0, 1, 1, 1]  # of the chain: f0 to f2, a transfer, f3 to f5
PATIENCE_S = 30.0


@pytest.fixture
def spy() -> Spy:
    return Spy(machine())


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(spy: Spy, mode: str) -> Iterator[Engine]:
    before = threading.enumerate()
    spy.grace_s = 0.2
    with Engine(machine(), spy, EngineConfig(timeout_s=PATIENCE_S, mode=mode)) as engine:
        yield engine
    assert threading.enumerate() == before


def assert_works(engine: Engine, spy: Spy) -> None:
    """The next runs compute what they should, with as many threads as there ought to be."""
    spy.instead.clear()
    for name in ("chain", "chainmm"):
        graph, inputs, expected = chain() if name == "chain" else workload(name, 4)
        devices = DEVICES if name == "chain" else 2
        assert_close(engine.execute(graph, assign(graph, devices), inputs).outputs, expected)
    names = [t.name for t in threading.enumerate() if t.name.startswith("doppler-")]
    assert sorted(names) == ["doppler-bus-0", "doppler-d0-0", "doppler-d1-0"]


def fail_with(error: BaseException) -> Any:
    def fail(kernel: Any, out: Any) -> None:
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
    task = chain()[0].num_vertices  # the one transfer
    original = Job.attempt

    def attempt(job: Job, run: Any) -> BaseException | None:
        return OSError("line cut") if job.task == task else original(job, run)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "attempt", attempt)
        message = (
            r"the transfer of the output of vertex `f2\[0\]` from device `d0` to `d1`, .* "
            "after 3 of 7 tasks, failed: OSError: line cut"
        )
        with pytest.raises(EngineError, match=message):
            run_chain(engine)
    assert_works(engine, spy)


def test_a_worker_that_hangs_is_abandoned(
    engine: Engine, spy: Spy, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(kernel: Any, out: Any) -> None:
        released.wait(PATIENCE_S)

    spy.instead[vertex(chain()[0], "f3")] = hang
    hasty = Engine(machine(), spy, EngineConfig(timeout_s=0.2, mode=mode))
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


def test_what_an_abandoned_kernel_writes_spoils_nothing(
    engine: Engine, spy: Spy, mode: str
) -> None:
    """It comes back in the middle of the next run, and writes to its output."""
    graph, inputs, expected = chain()
    released, hung, written = threading.Event(), [], []

    def hang(kernel: Any, out: Any) -> None:
        hung.append(threading.current_thread())
        written.append(out.data_ptr())
        released.wait(PATIENCE_S)
        out.fill_(float("nan"))

    def release(kernel: Any, out: Any) -> None:
        kernel()
        released.set()
        hung[0].join(PATIENCE_S)

    v = vertex(graph, "f3")
    run_chain(engine)  # so that there are buffers to use again
    spy.instead[v] = hang
    with pytest.raises(EngineError):
        run_chain(Engine(machine(), spy, EngineConfig(timeout_s=0.2, mode=mode)))
    spy.instead[v] = release
    assert_close(engine.execute(graph, assign(graph, DEVICES), inputs).outputs, expected)
    assert not hung[0].is_alive()
    assert written[0] not in [out.data_ptr() for out in spy.outputs.values()]
    assert_works(engine, spy)


def test_one_slot_of_two_hangs() -> None:
    graph, inputs, expected = workload("chainmm", 4)
    topology = machine(1, slots=2)
    spy, released = Spy(topology), threading.Event()
    spy.grace_s = 0.1
    v = vertex(graph, "DE[")
    spy.instead[v] = lambda kernel, out: released.wait(PATIENCE_S)
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
    spy.instead = dict.fromkeys(graph.assigned.tolist(), lambda kernel, out: ran.append(out))
    assignment = assign(graph, 1)
    spy.instead[int(assignment.order[0])] = lambda kernel, out: released.wait(PATIENCE_S)
    with Engine(topology, spy, EngineConfig(timeout_s=0.2, strategy="order")) as engine:
        with pytest.raises(EngineError, match="did not end within"):
            engine.execute(graph, assignment, inputs)
        assert spy.starts == 4
        released.set()
    assert ran == []


def test_closing_does_not_wait_for_ever() -> None:
    graph, inputs, _ = chain()
    spy, released = Spy(machine()), threading.Event()
    spy.grace_s = 0.1
    spy.instead[vertex(graph, "f3")] = lambda kernel, out: released.wait(PATIENCE_S)
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

    def cancel(kernel: Any, out: Any) -> None:
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

    def begin(commands: Any, *, timed: bool) -> None:
        begins.append(commands)
        if len(begins) == 3:
            engine.cancel()
        Spy.begin(spy, commands, timed=timed)

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
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: type[BaseException],
    call: int,
) -> None:
    calls = []
    call = 1 if mode == "fixed" else call  # there may be only one

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
    spy.instead[vertex(chain()[0], "f0")] = lambda kernel, out: released.wait(PATIENCE_S)

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


def test_no_memory_for_the_tensors(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand more")

    graph, inputs, _ = chain()
    engine.load(graph, inputs)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        message = r"no 1024 bytes of memory on cpu: DefaultCPUAllocator: can't allocate memory$"
        with pytest.raises(OutOfMemoryError, match=message):
            engine.run(graph, assign(graph, DEVICES))
    assert_works(engine, spy)


def test_memory_that_others_no_longer_need_is_freed(
    engine: Engine, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices share memory for 1,792 bytes: 7 tensors on either, but not on both."""
    graph, inputs, expected = chain()
    real = torch.empty

    def empty(size: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("dtype") is torch.uint8:
            held = sum(x.numel() for x in spy._arenas._found.values())
            if held + size > 1792:
                raise RuntimeError("no more")
        return real(size, *arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    for devices in ([0] * 7, [1] * 7, [0] * 7):
        assert_close(engine.execute(graph, assign(graph, devices), inputs).outputs, expected)


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
    assert_works(engine, spy)
