"""The engine of one rank: every process of a job calls it alike, and runs its part."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, csr, rows
from doppler.engine.backends.base import Action, Backend, Behind, Commands
from doppler.engine.config import GLOO, EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.kernels import torch_dtype
from doppler.engine.loops import Loop, Times
from doppler.engine.prepared import PlannedTasks, Preparation, Prepared
from doppler.engine.ranks.dealing import ranks_of
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.own_part import Part, ends_of, part_of, with_others
from doppler.engine.ranks.rank_backend import RankBackend, RankCpuBackend
from doppler.engine.ranks.rank_cuda import RankCudaBackend
from doppler.errors import ConfigError, DopplerError, EngineError
from doppler.resolve import as_topology
from doppler.sharding.evaluate import kernel_of
from doppler.tasks import Tasks, TaskTable, dependencies, task_levels
from doppler.topology.topology import Topology


class _RankPreparation(Preparation):
    """Prepares one rank's part of an assignment."""

    _part: Part

    @property
    def _rank_backend(self) -> RankBackend:
        assert isinstance(self._backend, RankBackend)
        return self._backend

    def tables(self, assignment: Assignment, seed: int) -> PlannedTasks:
        """The part of this rank; every rank must have decided the same."""
        whole, backend = super().tables(assignment, seed), self._rank_backend
        group = backend.group
        if len(set(group.gather(_digest(whole)))) > 1:
            raise EngineError(
                "the ranks do not run the same assignment",
                hint="give every process the same graph, assignment, topology and options",
            )
        topology, rank = self._problem.topology, group.rank
        self._part = part_of(
            *(whole.tasks, whole.table, whole.schedule, topology, backend.ranks, rank),
            mutual=backend.is_mutual,
        )
        return whole._replace(table=self._part.table, schedule=self._part.schedule)

    def prepare(self, assignment: Assignment, tables: PlannedTasks) -> Prepared:
        """An assignment bound to the memory and threads of this rank."""
        found, part = super().prepare(assignment, tables), self._part
        grants = {grant: task for grant, (_, task) in part.gives.items()} | part.gets
        return replace(found, outside=part.outside, grants=grants)

    def _is_here(self, device: int) -> bool:
        return self._rank_backend.runs(device)

    def _bind(self, tasks: Tasks, actions: list[Action | None], behind: Behind | None) -> Commands:
        graph, part, size = self._problem.graph, self._part, tasks.num_vertices
        mine = set(part.table.tasks)
        kept = [action if task in mine else None for task, action in enumerate(actions)]
        shapes: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
        for task in (*part.sends, *part.receives):
            tensor = int(tasks.tensor[task - size])
            maker = int(graph.tensor_producer[tensor])
            made = graph.output_tensor[graph.output_ptr[maker] : graph.output_ptr[maker + 1]]
            kernel, i = kernel_of(graph, maker), made.tolist().index(tensor)
            shapes[task] = tuple(kernel.shapes[i]), torch_dtype(kernel.dtypes[i])
        return self._rank_backend.prepare_part(graph, tasks, kept, behind, part, shapes)


class RankEngine(Engine):
    """Runs graphs on the devices of all ranks of a group; an Executor.

    Every rank makes one, and calls the same methods with the same arguments in the same order.
    Traces and makespans are those of the whole run, the same on every rank; results are put
    together on rank 0, and others get none.
    """

    _prepares_with = _RankPreparation

    def __init__(
        self,
        topology: Topology | str | Path,
        group: Group,
        config: EngineConfig | None = None,
        backend: str | Backend = "cpu",
    ) -> None:
        """`topology` names the hosts of its devices: `host1/cpu:0`; `backend` is cpu or cuda."""
        whole, config = as_topology(topology), config or EngineConfig()
        if config.synchronous:
            raise ConfigError("there are no barriers among ranks: synchronous must be false")
        self.group, self.ranks = group, ranks_of(whole, group.size)
        super().__init__(whole, _make_backend(whole, group, self.ranks, backend, config), config)
        self._resources = with_others(whole)
        self.clock_error_s = 0.0  # of the last trace: how far the ranks' clocks may be apart

    def _results(self, prepared: Prepared) -> dict[str, Any]:
        mine = {
            t: value
            for t, value in prepared.outputs.items()
            if self._has_vertex(prepared, int(prepared.graph.tensor_producer[t]))
        }
        found = self.group.gather(replace(prepared, outputs=mine).blocks(self.backend))
        if self.group.rank:
            return {}
        return prepared.whole({t: block for blocks in found for t, block in blocks.items()})

    def _has_vertex(self, prepared: Prepared, v: int) -> bool:
        device = int(prepared.tasks.devices[v])
        return self.ranks[device] == self.group.rank if device >= 0 else self.group.rank == 0

    def _give_up(self, error: BaseException) -> BaseException:
        assert isinstance(self.backend, RankBackend)
        reason = error.message if isinstance(error, DopplerError) else type(error).__name__
        if isinstance(error, EngineError) and self.group.trouble is None:
            self.group.look_for_silent()  # it may be another that hangs
            if self.group.trouble is not None:
                error = self.backend.why(self.group.trouble)
        self.group.fail(f"failed: {reason}")
        return error

    def _run_s(self) -> float:
        return float(max(self.group.gather(self.backend.now_s())))

    def _times(self, prepared: Prepared, loop: Loop) -> Times:
        """Of all ranks, on the clock of rank 0."""
        assert isinstance(self.backend, RankBackend)
        clocks = self.group.clocks()
        self.clock_error_s = max(clock.error_s for clock in clocks)
        count = prepared.tasks.num_vertices + prepared.tasks.num_transfers
        mine = [column[:count] for column in loop.times()]
        found = self.group.gather((self.backend.began_s, mine))
        began = [at - clock.offset_s for (at, _), clock in zip(found, clocks, strict=True)]
        zero = min(began)
        by_rank = [
            [column + (at - zero) for column in columns]
            for (_, columns), at in zip(found, began, strict=True)
        ]
        source, target = ends_of(prepared.tasks, self.ranks)
        home = [self.ranks[d] if d >= 0 else 0 for d in prepared.tasks.devices.tolist()]
        first, last = np.array([home + source, home + target])
        tasks = np.arange(count)
        ready, begin = (np.array([r[i] for r in by_rank])[first, tasks] for i in (0, 1))
        end = np.array([r[2] for r in by_rank])[last, tasks]
        _put_in_order(prepared, ready, begin, end)
        return ready, begin, end


def _make_backend(
    topology: Topology,
    group: Group,
    ranks: Sequence[int],
    backend: str | Backend,
    config: EngineConfig,
) -> RankCpuBackend | RankCudaBackend:
    """The devices of this rank."""
    if backend == "cuda":
        return RankCudaBackend(topology, group, ranks, config.transport)
    if backend != "cpu":
        name = backend if isinstance(backend, str) else backend.name
        raise EngineError(
            f"several processes run on backends cpu and cuda, not on `{name}`",
            hint="leave out the backend, or use one of these",
        )
    if config.transport != GLOO:
        raise ConfigError(
            f"transport `{config.transport}` is for GPUs, and the backend is `cpu`",
            hint="leave out the transport, or add `--backend cuda`",
        )
    return RankCpuBackend(topology, group, ranks)


def _put_in_order(
    prepared: Prepared, ready: FloatArray, begin: FloatArray, end: FloatArray
) -> None:
    """Let nothing begin before what it needs has ended: clocks may be a little apart."""
    plan, count = prepared.assignment.memory, len(begin)
    needed, needing = dependencies(prepared.graph, prepared.tasks, plan)
    levels = task_levels(needed, needing, count)
    assert levels is not None
    needs = rows(*csr(needing, needed, count))
    for task in np.argsort(levels, kind="stable").tolist():
        if needs[task]:
            ready[task] = end[needs[task]].max()
        begin[task] = max(begin[task], ready[task])
        end[task] = max(end[task], begin[task])


def _digest(whole: PlannedTasks) -> str:
    """Of all that the ranks must agree on."""
    table: TaskTable = whole.table
    found = hashlib.sha256(repr((table.needs, table.resource)).encode())
    found.update(repr((whole.places.offset, whole.places.top)).encode())
    order: Sequence[int] = [] if whole.schedule is None else whole.schedule.tasks.tolist()
    found.update(repr(order).encode())
    return found.hexdigest()
