"""The calls that start each task on CUDA streams, made once: a run has only to call them."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch

from doppler.engine.backends import driver
from doppler.engine.backends.base import Action, Actions, Behind, Copy, Exec
from doppler.engine.backends.driver import Address, where
from doppler.engine.backends.lanes import IN, OUT, RUN, Lane, chunks, new_event
from doppler.engine.operands import Launch
from doppler.engine.pieces import Cell
from doppler.topology.topology import Link

Calls = Sequence[Launch]


class Start(NamedTuple):
    """How a task is started: on one of some lanes, by the calls for that lane."""

    calls: list[Calls]  # by lane
    lanes: list[Lane]


class Events(NamedTuple):
    """The events of every task: before it, where it is timed, and behind it."""

    begin: list[Any]
    end: list[Any]


class Wiring:
    """Where devices are, and which streams serve their slots and the lanes of their links."""

    def __init__(
        self,
        where: Sequence[Address],
        slots: list[list[Lane]],
        lanes: list[list[Lane]],
        links: Sequence[Link],
    ) -> None:
        self.addresses, self.slots, self.lanes, self._links = where, slots, lanes, links
        self.host = len(where)  # as the source or the target of a copy
        self.whole = {gpu: Address(gpu) for gpu in sorted({address.gpu for address in where})}

    def gpus(self, action: Copy) -> tuple[int, int]:
        """The GPUs that a copy leaves and goes to: one GPU, where the other end is the host."""
        ends = [end for end in (action.source, action.target) if end != self.host]
        return self.addresses[ends[0]].gpu, self.addresses[ends[-1]].gpu

    def through_host(self, action: Copy) -> bool:
        """Whether a copy between devices goes through pinned memory."""
        if self.host in (action.source, action.target):
            return False
        if self._links[action.link].via == "host":
            return True
        source, target = self.gpus(action)
        return source != target and not torch.cuda.can_device_access_peer(source, target)


class CudaCommands:
    """The tasks of one run or many, as calls without arguments."""

    def __init__(self, wiring: Wiring, actions: Actions, behind: Behind | None) -> None:
        self.actions, self._wiring, self._behind = actions, wiring, behind
        self._may_capture = True  # tasks as small CUDA graphs
        self._begun = 0  # runs
        # By task and stream; None where it cannot be.
        self._captured: dict[tuple[int, int], Launch | None] = {}
        self._pools: dict[int, Any] = {}  # by stream
        self._pinned: list[torch.Tensor] = []  # kept, since calls know but addresses
        self._events: dict[bool, Events] = {}
        self._starts: dict[tuple[bool, bool], list[Start]] = {}  # (timed, captured)
        self._whole: WholeRun | None = None

    @property
    def is_bound(self) -> bool:
        """Whether all tasks use the same tensors in every run."""
        return all(action.bound for action in self.actions if isinstance(action, Exec))

    def count_run(self) -> None:
        """Note that a run has begun."""
        self._begun += 1

    @property
    def _captures(self) -> bool:
        """Whether kernels are captured.

        What has run once has all that it loads when it first runs: from the second run on, a
        kernel of several launches costs the host no more than one of them.
        """
        return self._begun > 0 and self._may_capture

    def is_ready(self, *, timed: bool) -> bool:
        """Whether `starts` has nothing to make."""
        return (timed, self._captures) in self._starts

    def starts(self, *, timed: bool) -> list[Start]:
        """How each task is started. To capture a kernel runs it, once."""
        key = (timed, self._captures)
        if key not in self._starts:
            events = self._make_events(timed=timed)
            self._starts[key] = [
                Start([], []) if action is None else self._start(task, action, events)
                for task, action in enumerate(self.actions)
            ]
        return self._starts[key]

    def whole(self, order: Sequence[int], origin: torch.cuda.Stream) -> "WholeRun":
        """All tasks in this order as one CUDA graph, which is launched on a stream."""
        if self._whole is None:
            plain = CudaCommands(self._wiring, self.actions, self._behind)
            plain._may_capture = False  # a graph cannot hold another
            starts = plain.starts(timed=False)
            calls = [call for task in order for call in starts[task].calls[0]]
            lanes = {id(lane): lane for task in order for lane in starts[task].lanes[:1]}
            streams = [stream for lane in lanes.values() for stream in lane.streams.values()]
            # What a copy waits for first must be part of the graph.
            tails = [tail for lane in lanes.values() for tail in lane.tails.values()]
            calls = [*(partial(tail.record, streams[0]) for tail in tails), *calls]
            self._whole = WholeRun(origin, streams, calls, plain)
            for tail in tails:
                tail.record(streams[0])  # what was recorded in a graph means nothing outside
        return self._whole

    def ends(self, *, timed: bool) -> list[Any]:
        """The event behind each task."""
        return self._make_events(timed=timed).end

    def marks(self) -> Iterator[tuple[int, Any, Any, int, int]]:
        """Each task, its events in timed runs, and the GPUs on whose clocks they are."""
        events, where = self._make_events(timed=True), self._wiring.addresses
        for task, action in enumerate(self.actions):
            if isinstance(action, Exec):
                source = target = where[action.device].gpu
            elif action is not None:
                source, target = self._wiring.gpus(action)
                if isinstance(action.value, Cell) or not self._wiring.through_host(action):
                    target = source  # torch too copies on a stream of the source
            else:
                continue
            yield task, events.begin[task], events.end[task], source, target

    def _make_events(self, *, timed: bool) -> Events:
        if timed not in self._events:
            count = len(self.actions)
            self._events[timed] = Events(
                [new_event(timed=True) if timed else None for _ in range(count)],
                [new_event(timed=timed) for _ in range(count)],
            )
        return self._events[timed]

    def _start(self, task: int, action: Action, events: Events) -> Start:
        wiring = self._wiring
        if isinstance(action, Exec):
            lanes = wiring.slots[action.device]
        else:
            lanes = wiring.lanes[action.link]
        if self._behind is not None and self._behind.rooms[task] >= 0:
            lanes = [lanes[self._behind.rooms[task]]]
        make = self._exec if isinstance(action, Exec) else self._copy
        return Start([make(task, action, lane, events) for lane in lanes], lanes)  # type: ignore[arg-type]

    def _waits(self, task: int, stream: torch.cuda.Stream, events: Events) -> Calls:
        """Calls that make a stream wait for what a task needs, unless the stream runs that."""
        if self._behind is None:
            return []
        return [
            partial(events.end[need].wait, stream)
            for need in self._behind.needs[task]
            if not self._runs(need, stream)
        ]

    def _runs(self, task: int, stream: torch.cuda.Stream) -> bool:
        """Whether an exec is started on that stream and no other."""
        action = self.actions[task]
        if not isinstance(action, Exec):
            return False
        lanes, room = self._wiring.slots[action.device], self._behind.rooms[task]  # type: ignore[union-attr]
        return lanes[room].stream(self._wiring.addresses[action.device], RUN) is stream

    def _exec(self, task: int, action: Exec, lane: Lane, events: Events) -> Calls:
        stream = lane.stream(self._wiring.addresses[action.device], RUN)
        calls: list[Launch] = [partial(torch.cuda.set_stream, stream)]
        calls += self._waits(task, stream, events)
        calls += _record(events.begin[task], stream)
        key = (task, stream.cuda_stream)
        if self._captures and action.bound and key not in self._captured:
            self._captured[key] = _capture(action.launches, stream, self._pool_of(stream))
        captured = self._captured.get(key)
        calls += _launches(action.launches) if captured is None else [captured]
        calls += _record(events.end[task], stream)
        return calls

    def _on_stream(
        self, task: int, stream: torch.cuda.Stream, launches: Calls, events: Events
    ) -> Calls:
        """Calls that queue these launches for a task, with what it waits for and its events."""
        calls: list[Launch] = [partial(torch.cuda.set_stream, stream)]
        calls += self._waits(task, stream, events)
        calls += [*_record(events.begin[task], stream), *_launches(launches)]
        return [*calls, *_record(events.end[task], stream)]

    def _pool_of(self, stream: torch.cuda.Stream) -> Any:
        """Memory for what kernels on a stream allocate themselves: they run one after another."""
        if stream.cuda_stream not in self._pools:
            self._pools[stream.cuda_stream] = torch.cuda.graph_pool_handle()
        return self._pools[stream.cuda_stream]

    def _copy(self, task: int, action: Copy, lane: Lane, events: Events) -> Calls:
        source, target = self._wiring.gpus(action)
        if isinstance(action.value, Cell) or isinstance(action.output, Cell):
            return self._copy_cell(task, action, lane, (source, target), events)
        if self._wiring.through_host(action):
            return self._copy_through_host(task, action, lane, (source, target), events)
        stream, tail = lane.stream(self._wiring.whole[source], OUT), lane.tail_of(source)
        calls = [*self._enter(stream), *self._waits(task, stream, events)]
        calls += [partial(each.wait, stream) for each in self._tails(lane, tail)]
        calls += _record(events.begin[task], stream)
        if source == target:  # or the host; at a quarter of the host's time that `copy_` takes
            calls.append(_copy_bytes(action.output, action.value, stream))
        else:
            calls += _launches((partial(action.output.copy_, action.value, non_blocking=True),))
        return [*calls, *_record(events.end[task], stream), *_record(tail, stream)]

    def _copy_cell(
        self, task: int, action: Copy, lane: Lane, gpus: tuple[int, int], events: Events
    ) -> Calls:
        """A copy of a tensor that is known only when the task is started.

        Room for it is allocated on a stream of its own, on which nothing runs: what was freed
        there has no reader left.
        """
        source, target = gpus
        stream, tail = lane.stream(self._wiring.whole[source], OUT), lane.tail_of(source)
        rooms = lane.stream(self._wiring.whole[target], IN)

        def copy() -> None:
            value = action.value.value if isinstance(action.value, Cell) else action.value
            if not isinstance(action.output, Cell):
                action.output.copy_(value, non_blocking=True)
                return
            with torch.cuda.stream(rooms):
                room = torch.empty_like(value, device=where(target))
            room.copy_(value, non_blocking=True)
            action.output.value = room

        calls: list[Launch] = [partial(torch.cuda.set_stream, stream)]
        calls += self._waits(task, stream, events)
        calls += [partial(each.wait, stream) for each in self._tails(lane, tail)]
        calls += [*_record(events.begin[task], stream), *_launches((copy,))]
        return [*calls, *_record(events.end[task], stream), *_record(tail, stream)]

    def _copy_through_host(
        self, task: int, action: Copy, lane: Lane, gpus: tuple[int, int], events: Events
    ) -> Calls:
        """Device to pinned memory on one stream, from there to the device on another.

        In chunks, so that both run at once. The next transfer of the lane begins after the end of
        this one, and so may use the same pinned memory.
        """
        source, target = gpus
        value = action.value
        up = lane.stream(self._wiring.whole[source], OUT)
        down = lane.stream(self._wiring.whole[target], IN)
        moves = self._moves(action, lane, (up, down), source)
        waits = [*self._enter(up), *self._waits(task, up, events)]
        if len(self._wiring.whole) == 1 and value.nbytes and self._may_capture:
            # One graph, whose end is on the first stream: the next one comes after it.
            calls = [*waits, *_record(events.begin[task], up)]
            calls.append(driver.Captured(up.cuda_stream, [*moves, *_join(down, up)]))
            return [*calls, *_record(events.end[task], up)]
        tail = lane.tail_of(target)
        calls = [*waits, *(partial(each.wait, up) for each in self._tails(lane, tail))]
        calls += [*_record(events.begin[task], up), *moves]
        return [*calls, *_record(events.end[task], down), *_record(tail, down)]

    def _moves(
        self, action: Copy, lane: Lane, streams: tuple[torch.cuda.Stream, ...], source: int
    ) -> list[Launch]:
        """The copies of all chunks, up and down."""
        (up, down), size_bytes = streams, action.value.nbytes
        pinned, marks = lane.room(size_bytes), lane.marks_of(source)
        self._pinned.append(pinned)
        pieces = list(zip(marks, chunks(size_bytes), strict=False))
        origin, middle, goal = (x.data_ptr() for x in (action.value, pinned, action.output))
        calls: list[Launch] = []
        for mark, (at, size) in pieces:
            calls.append(partial(driver.copy, middle + at, origin + at, size, up.cuda_stream))
            calls += _record(mark, up)
        calls += self._enter(down)
        for mark, (at, size) in pieces:
            calls.append(partial(mark.wait, down))
            calls.append(partial(driver.copy, goal + at, middle + at, size, down.cuda_stream))
        return calls

    def _tails(self, lane: Lane, own: Any) -> list[Any]:
        """What the next copy of a lane waits for: the last one, to whichever GPU it went."""
        if len(self._wiring.whole) == 1:
            return [own]
        return [lane.tail_of(gpu) for gpu in self._wiring.whole]

    def _enter(self, stream: torch.cuda.Stream) -> list[Launch]:
        """Make a copy's GPU the current one, where there are several."""
        return [partial(torch.cuda.set_stream, stream)] if len(self._wiring.whole) > 1 else []


def _capture(launches: Calls, stream: torch.cuda.Stream, pool: Any) -> Launch | None:
    """The launches of a kernel as one, on the stream that is current; None where it cannot be."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_stream(stream)
    try:
        graph.capture_begin(pool=pool, capture_error_mode="relaxed")
        try:
            for launch in launches:
                launch()
        finally:
            with catch_warnings():
                simplefilter("ignore")  # an empty graph, of a kernel that cannot be captured
                graph.capture_end()
        graph.replay()  # the first time takes longer
    except RuntimeError:  # a kernel that waits for the device, or asks it something
        return None
    return graph.replay


class WholeRun:
    """A whole run as one CUDA graph: the host launches it once and has nothing else to do."""

    def __init__(
        self, origin: torch.cuda.Stream, streams: Sequence[Any], calls: Calls, kept: Any
    ) -> None:
        """`calls` queue work on `streams`; `kept` is what they use."""
        self._origin, self._kept, self.end = origin, kept, new_event(timed=False)
        fork, joins = new_event(timed=False), [new_event(timed=False) for _ in streams]
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.set_stream(origin)
        self._graph.capture_begin(capture_error_mode="relaxed")
        try:
            fork.record(origin)
            for stream in streams:
                fork.wait(stream)
            for call in calls:
                call()
            for stream, join in zip(streams, joins, strict=True):
                join.record(stream)
                join.wait(origin)
        finally:
            torch.cuda.set_stream(origin)
            self._graph.capture_end()

    def launch(self) -> None:
        """Queue the run."""
        torch.cuda.set_stream(self._origin)
        self._graph.replay()
        self.end.record(self._origin)


def _launches(launches: Calls) -> Calls:
    """What torch launches on the current stream."""
    return launches


def _join(ahead: torch.cuda.Stream, behind: torch.cuda.Stream) -> list[Launch]:
    """Calls that make one stream wait for what is queued on another."""
    event = new_event(timed=False)
    return [*_record(event, ahead), partial(event.wait, behind)]


def _record(event: Any, stream: torch.cuda.Stream) -> list[Launch]:
    return [] if event is None else [partial(event.record, stream)]


def _copy_bytes(output: torch.Tensor, value: torch.Tensor, stream: torch.cuda.Stream) -> Launch:
    size = value.nbytes
    return partial(driver.copy, output.data_ptr(), value.data_ptr(), size, stream.cuda_stream)
