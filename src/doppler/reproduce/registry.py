"""The labels: one for every table and figure of the paper."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from doppler.errors import UnknownNameError
from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import Found
from doppler.reproduce.findings import Finding, cannot_test
from doppler.reproduce.job_rows import budget_text
from doppler.reproduce.jobs import PaperJob, Results, run_jobs
from doppler.reproduce.paper_figures import FOUR

ALL = "all"


class Experiment(Protocol):
    """What a label does: jobs, and what follows from their results."""

    def jobs(self) -> list[PaperJob]:
        """All that it needs."""
        ...

    def find(self, results: Results) -> Found:
        """Tables, claims and charts."""
        ...


@dataclass(frozen=True, slots=True)
class Label:
    """A table or a figure of the paper."""

    where: str
    title: str
    experiment: str  # "module:class", which takes `Settings`
    graphs: tuple[str, ...] = FOUR  # that policies are trained on
    engine: str = ""  # the same for real machines; empty: it is about the simulator


LABELS = {
    "chain-example": Label("Fig. 1", "a chain of three matrices", "pictures:ChainExample", ()),
    "blocking": Label(
        "Table 1", "work-conserving against synchronous", "systems:Blocking", (), "systems:Blocking"
    ),
    "placement": Label(
        "Table 2",
        "all methods on four P100",
        "makespans:Placement",
        FOUR,
        "real_tables:RealPlacement",
    ),
    "ablation": Label("Table 3", "SEL and PLC alone", "ablations:Ablation"),
    "stages": Label(
        "Sec. 6, Q3",
        "the three stages",
        "systems:Stages",
        ("llama-layer",),
        "real_tables:RealStages",
    ),
    "transfer": Label("Table 4", "transfer between graphs", "transfers:Transfer"),
    "scaling": Label("Sec. 6, Q6", "time by the size of the graph", "growth:Scaling", ()),
    "assignments": Label(
        "Fig. 4, App. A", "assignments", "pictures:Assignments", ("ffnn", "llama-layer")
    ),
    "utilization": Label("App. A.2", "devices in use", "pictures:Utilization", ("chainmm", "ffnn")),
    "selection-order": Label(
        "App. A.3", "SEL's order", "pictures:SelectionOrder", ("llama-block",)
    ),
    "sim-vs-real": Label(
        "App. G.1", "simulator and system", "systems:SimVersusReal", (), "systems:SimVersusReal"
    ),
    "seeds": Label("App. G.2", "five seeds", "ablations:Seeds", ("chainmm",)),
    "messages": Label("App. G.3", "message passing per step", "ablations:Messages", ("chainmm",)),
    "placeto-pretrain": Label(
        "App. G.4", "Placeto after Stage I", "ablations:PlacetoPretrain", ("ffnn",)
    ),
    "memory-8gb": Label("App. H.1", "8 of 16 GB", "makespans:MemoryEightGb"),
    "eight-gpus": Label("App. H.2", "eight V100", "makespans:EightGpus"),
    "machines": Label(
        "App. J", "from P100 to V100", "transfers:MachineTransfer", ("chainmm", "ffnn")
    ),
}


def chosen(names: Sequence[str]) -> list[str]:
    """The labels that are asked for, each once, in the paper's order.

    >>> chosen(["seeds", "blocking"])
    ['blocking', 'seeds']
    """
    for name in names:
        if name != ALL and name not in LABELS:
            raise UnknownNameError("label", name, [ALL, *LABELS])
    return [name for name in LABELS if name in names or ALL in names]


def experiment(name: str, settings: Settings) -> Experiment | None:
    """The experiment of a label; None where the executor is none for it."""
    label = LABELS[name]
    where = label.experiment if settings.is_simulated else label.engine
    if not where:
        return None
    module, _, cls = where.partition(":")
    found: Experiment = getattr(import_module(f"doppler.reproduce.experiments.{module}"), cls)(
        settings
    )
    return found


def jobs_of(names: Sequence[str], settings: Settings) -> list[PaperJob]:
    """All jobs of labels."""
    every = [experiment(name, settings) for name in names]
    return [job for one in every if one is not None for job in one.jobs()]


def reproduce(
    names: Sequence[str], settings: Settings, folder: Path, *, workers: int | None = None
) -> list[Finding]:
    """What was found for labels, after all their jobs are done, in one go."""
    results = run_jobs(jobs_of(names, settings), folder, workers=workers)
    return [find(name, settings, results) for name in names]


def find(name: str, settings: Settings, results: Results) -> Finding:
    """What follows for a label from results that are there."""
    label, one = LABELS[name], experiment(name, settings)
    found: Found
    if one is None:
        reason = f"it is about the simulator: --executor sim, not {settings.executor}"
        found = [], [cannot_test(label.title, reason)], []
    else:
        found = one.find(results)
    tables, claims, charts = found
    usual = budget_text(settings.budgets, label.graphs) if label.graphs else ""
    budget = getattr(one, "budget", usual)
    return Finding(
        label=name,
        title=label.title,
        where=label.where,
        budget=budget,
        tables=tuple(tables),
        claims=tuple(claims),
        charts=tuple(charts),
        settings=origin(settings),
    )


def origin(settings: Settings) -> dict[str, Any]:
    """When, where and how it was measured."""
    from doppler import __version__

    return {
        "budget": settings.budgets.name,
        "executor": settings.executor,
        "version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
    }
