"""The CUDA backend: GPUs, or parts of one, are devices; streams run the tasks.

A slot of a device is a stream, and so is a lane of a link; two, where it goes through the host.
All that starting a task takes is decided when it is prepared: a list of calls without arguments
(`cuda_commands.py`). An event is recorded behind every task. `wait` asks the oldest event of every
lane that has work, again and again for a moment, then with naps between. In a fixed order streams
wait for the events of one another, and the host is ahead of them all.
"""

import os
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

from doppler.base.arrays import FloatArray
from doppler.engine.backends import driver
from doppler.engine.backends.addresses import addresses
from doppler.engine.backends.base import Actions, Arenas, Behind, Copy, NeverInline, TaskError
from doppler.engine.backends.cuda_commands import CudaCommands, Wiring
from doppler.engine.backends.cuda_ready import run_something, tick
from doppler.engine.backends.driver import Address, as_engine_errors, first_line, where
from doppler.engine.backends.lanes import OUT, RUN, Lane, least_loaded, new_event, pinned_memory
from doppler.engine.pieces import Cell
from doppler.errors import EngineError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

Route = tuple[int, int, int, bool]  # link, GPU, GPU, through pinned memory
_UNLIMITED_LANES = 4  # streams of a link on which any number of transfers may run
_NAP_S = 5e-5  # between two looks; the system adds as much
_GRACE_S = 5.0  # for what runs when a run is stopped


class CudaBackend(NeverInline):
    """Every device is a GPU, or a part of one; `slots` streams run its tasks.

    A device's address is `cuda:0`, or `cuda:0/1of4` for part 1 (from 0) of GPU 0 cut into 4;
    without one, device i is GPU i. A link is `lanes` copies at a time, directly, or `via` pinned
    memory of the host. Copies are the work of copy engines, but the driver may let a direct copy
    within a GPU take multiprocessors, of any part. After a failed kernel CUDA works no more in
    this process, and says of the first task it is asked about that it failed, which need not be
    the one that did.
    """

    name = "cuda"
    computes = True

    def __init__(self, topology: Topology) -> None:
        self.grace_s, self.idle_s, self.spin_s = _GRACE_S, 0.0, 0.0
        self._may_spin = (os.cpu_count() or 1) > 1
        where = self._where(topology, driver.start())
        self._gpus = [address.gpu for address in where]
        self._slots = [[Lane() for _ in range(d.slots)] for d in topology.devices]
        self._lanes = [[Lane() for _ in range(n.lanes or _UNLIMITED_LANES)] for n in topology.links]
        self._wiring = Wiring(where, self._slots, self._lanes, topology.links)
        self._own = Lane()  # for the clock
        self._busy: dict[Lane, None] = {}  # lanes with tasks under way
        self._arenas = Arenas()
        self._commands: CudaCommands | None = None  # of the run under way, or the last
        self._warm: set[Route] = set()  # that were used
        self._timed, self._woken = True, False
        self._unsettled, self._broken = False, ""
        self._zero, self._clocks = perf_counter(), dict[int, tuple[Any, float]]()
        self._ticks = {gpu: [new_event(timed=True) for _ in range(5)] for gpu in self._wiring.whole}
        with as_engine_errors():
            self._remember()
            self._warm_up()
            self.end()

    # A run.

    def prepare(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None = None,
    ) -> CudaCommands:
        """The calls that start each task, with streams and pinned memory for all transfers."""
        self._check()
        with as_engine_errors():
            self._remember()
            self._get_links_ready([a for a in actions if isinstance(a, Copy)])
            self.end()
            return self._commands_for(actions, behind)

    def _commands_for(self, actions: Actions, behind: Behind | None) -> CudaCommands:
        return CudaCommands(self._wiring, actions, behind)

    def get_ready(self, commands: CudaCommands, *, timed: bool = True) -> None:
        """Capture what can be, which runs it: so before inputs are put in place."""
        self._end_earlier_run()
        if commands.is_ready(timed=timed):
            return
        with as_engine_errors():
            self._remember()
            commands.starts(timed=timed)
            self._synchronize()
            self.end()

    def begin(self, commands: CudaCommands, *, timed: bool = True) -> None:
        """Start the clock of a run."""
        self._end_earlier_run()
        with as_engine_errors():
            self._remember()
            self._commands, self._timed, self._starts = (
                commands,
                timed,
                commands.starts(timed=timed),
            )
            self._ends = commands.ends(timed=timed)
            commands.count_run()
            self._synchronize()
            self.idle_s, self._woken = 0.0, False
            self._start_clock()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._zero

    def start(self, task: int) -> None:
        """Start a task.

        Not in `no_grad` or `inference_mode`, which cost more than they save: nothing here ever
        requires a gradient.
        """
        choices, lanes = self._starts[task]
        at = 0 if len(lanes) == 1 else least_loaded(lanes)
        for call in choices[at]:
            call()
        lane = lanes[at]
        lane.flights.append(task)
        self._busy[lane] = None

    def start_all(self, tasks: Sequence[int]) -> None:
        """Start all tasks of a fixed order, in an untimed run, as one CUDA graph.

        One after the other, where they use other tensors in every run.
        """
        assert self._commands is not None
        assert not self._timed  # events inside a graph have no times
        if not self._commands.is_bound:
            for task in tasks:
                self.start(task)
            return
        stream = self._own.stream(self._wiring.whole[self._gpus[0]], OUT)
        whole = self._commands.whole(tasks, stream)
        self._zero = perf_counter()  # to capture it the first time is no part of the run
        whole.launch()
        self._ends = [whole.end] * len(self._ends)
        self._own.flights.extend(tasks)
        self._busy[self._own] = None

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended."""
        if done := self._ended():
            return done
        began, spin_s = perf_counter(), self.spin_s if self._may_spin else 0.0
        try:
            while not (done := self._ended()):
                waited = perf_counter() - began
                if self._woken or waited >= timeout_s:
                    self._woken = False
                    return []
                if waited > spin_s:
                    sleep(_NAP_S)
        finally:
            self.idle_s += perf_counter() - began
        return done

    def wake(self) -> None:
        """Make `wait` return."""
        self._woken = True

    def end(self) -> None:
        """Make the thread's device and streams what they were before the run."""
        for stream in self._outer.values():
            torch.cuda.set_stream(stream)
        torch.cuda.set_device(self._home)

    def times(self) -> tuple[FloatArray, FloatArray]:
        """When each task began and ended."""
        assert self._commands is not None
        assert self._timed
        begin_s, end_s = np.zeros((2, len(self._commands.actions)))
        for task, begin, end, source, target in self._commands.marks():
            begin_s[task] = self._seconds(source, begin)
            end_s[task] = self._seconds(target, end)
        return begin_s, end_s

    def stop(self, grace_s: float | None = None) -> None:
        """Wait a moment for what still runs. If it does not end, no run can begin until it has."""
        self.end()
        self._unsettled = True
        try:
            if self._drain(self.grace_s if grace_s is None else grace_s):
                self._forget()
        except RuntimeError as error:
            self._broken = first_line(error)

    def close(self) -> None:
        """Give back streams and memory."""
        self.stop()
        if self._broken or self._unsettled:
            return  # nothing can be freed, or is free
        self._let_go()
        self._warm.clear()
        self._clocks.clear()
        for lane in self._all_lanes():
            lane.give_back()
        self._arenas.clear()
        torch.cuda.empty_cache()

    # Memory.

    def memory(self, device: int) -> int:
        """The GPU: its parts share its memory."""
        return self._gpus[device]

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """A CPU tensor in a device's memory."""
        return value.contiguous().to(where(self._gpus[device]), copy=True)

    def share(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """The tensor itself if it is on that GPU, else a copy there."""
        return value.to(where(self._gpus[device]))

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of any device as a CPU tensor."""
        return value.to("cpu", copy=True)

    def host_memory(self, size: int) -> torch.Tensor:
        """Pinned, so that copies run by themselves."""
        return pinned_memory(size)

    @property
    def generation(self) -> int:
        """Of the arenas."""
        return self._arenas.generation

    def arena(self, device: int, size: int) -> torch.Tensor:
        """At least `size` bytes of a device's memory."""
        if self._arenas.must_grow(device, size):
            self._let_go()
        return self._arenas.get(device, size, where(self._gpus[device]))

    def free_arenas(self) -> None:
        """Give up all arenas."""
        self._let_go()
        self._arenas.clear()

    def _let_go(self) -> None:
        """Forget the last run's commands, whose calls hold tensors in the arenas."""
        self._commands, self._starts, self._ends = None, [], []

    # Completions.

    def _ended(self) -> list[int]:
        """The tasks whose end was reached since the last call, lane by lane."""
        done: list[int] = []
        ends = self._ends
        for lane in list(self._busy):
            flights = lane.flights
            try:
                while flights and ends[flights[0]].query():
                    done.append(flights.popleft())
            except RuntimeError as error:
                self._broken = first_line(error)
                raise TaskError(flights[0], error) from error
            if not flights:
                del self._busy[lane]
        return done

    def _drain(self, limit_s: float) -> bool:
        """Whether all streams have no work any more, after so long at most."""
        until = perf_counter() + limit_s
        streams = [stream for lane in self._all_lanes() for stream in lane.streams.values()]
        for stream in streams:
            while not stream.query():
                if perf_counter() > until:
                    return False
                sleep(1e-4)
        return True

    def _forget(self) -> None:
        """Forget the tasks under way, which have all ended."""
        for lane in self._all_lanes():
            lane.flights.clear()
        self._busy.clear()
        self._unsettled = False

    # What is made ready.

    def _end_earlier_run(self) -> None:
        if self._unsettled or self._busy:
            self.stop()
        self._check()
        if self._unsettled:
            raise EngineError("work of an earlier run is still on the GPU", hint="try again later")

    def _synchronize(self) -> None:
        for gpu in self._wiring.whole:
            torch.cuda.synchronize(gpu)

    def _check(self) -> None:
        if self._broken:
            raise EngineError(
                f"CUDA has failed in this process: {self._broken}", hint="start a new process"
            )

    def _all_lanes(self) -> list[Lane]:
        return [lane for lanes in (*self._slots, *self._lanes, [self._own]) for lane in lanes]

    def _where(self, topology: Topology, gpus: int) -> list[Address]:
        """The address of every device, on a machine with `gpus` GPUs."""
        return addresses(topology, gpus)

    def _is_here(self, device: int) -> bool:
        """Whether this process runs that device."""
        return True

    def _remember(self) -> None:
        """Note the current device and streams of the thread, which `end` restores."""
        self._home = torch.cuda.current_device()
        self._outer = {gpu: torch.cuda.current_stream(gpu) for gpu in self._wiring.whole}

    def _warm_up(self) -> None:
        """Run something on every slot: the first launch in a part of a GPU takes some 0.2 s."""
        for device, lanes in enumerate(self._slots):
            if not self._is_here(device):
                continue
            output = torch.empty((256, 256), device=where(self._gpus[device]))
            for lane in lanes:
                torch.cuda.set_stream(lane.stream(self._wiring.addresses[device], RUN))
                run_something(output)
            self._settle()

    def _get_links_ready(self, copies: Sequence[Copy]) -> None:
        """Have streams for the links that will be used, and pinned memory of the right size."""
        routes: dict[Route, tuple[Copy, int]] = {}
        for copy in copies:
            staged = self._wiring.through_host(copy)
            route = (copy.link, *self._wiring.gpus(copy), staged)
            _, largest = routes.get(route, (None, 0))
            size = 0 if isinstance(copy.value, Cell) else copy.value.nbytes
            routes[route] = (copy, max(size, largest))
        for route, (copy, size) in routes.items():
            if route[-1]:
                for lane in self._lanes[route[0]]:
                    lane.room(size)
            if route not in self._warm:
                self._use(copy)
                self._warm.add(route)

    def _use(self, like: Copy) -> None:
        """Copy something over every lane of a link."""
        value, output = (
            self.host_memory(256)
            if end == self._wiring.host
            else torch.empty(256, dtype=torch.uint8, device=where(self._gpus[end]))
            for end in (like.source, like.target)
        )
        commands = CudaCommands(self._wiring, [like._replace(value=value, output=output)], None)
        for calls in commands.starts(timed=False)[0][0]:
            for call in calls:
                call()
            self._settle()

    def _settle(self) -> None:
        """Wait for what was run to get ready."""
        if not self._drain(60.0):
            raise EngineError("a GPU did not end its warm-up within 60 s")
        self._forget()

    # Clocks: every GPU has its own.

    def _start_clock(self) -> None:
        """Note an event of each GPU, and when the host saw it."""
        for gpu, whole in self._wiring.whole.items():
            stream = self._own.stream(whole, OUT)
            tries = [tick(event, stream) for event in self._ticks[gpu]]
            _, event, middle = min(tries, key=lambda each: each[0])
            self._clocks[gpu] = (event, middle)
        self._zero = perf_counter()

    def _seconds(self, gpu: int, event: Any) -> float:
        """When an event was on the clock of the run."""
        clock, at = self._clocks[gpu]
        elapsed_ms: float = clock.elapsed_time(event)
        return at - self._zero + elapsed_ms * 1e-3
