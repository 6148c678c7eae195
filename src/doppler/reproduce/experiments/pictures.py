"""Pictures of assignments, as numbers and figures: `chain-example`, `assignments`, `utilization`,
`selection-order`.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.placers.bounds.lower import bounds_of
from doppler.problem import Problem
from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import Found
from doppler.reproduce.findings import (
    AssignmentDrawing,
    Inequality,
    LineChart,
    Spread,
    check,
    claim,
    spread,
)
from doppler.reproduce.job_rows import JobMaker, plain
from doppler.reproduce.jobs import PaperJob, Result, Results
from doppler.reproduce.placements import CHAIN, problem_of, trace_of
from doppler.trace import Trace

LATE_MS = 80.0  # after which the paper's EnumOpt leaves devices idle on ChainMM
BINS = 20  # of a makespan
STEPS = (78, 86, 94, 146, 153)  # of SEL's order that App. A.3 draws


def imbalance(trace: Trace) -> float:
    """The busiest device's work over the mean; 1 is balanced."""
    busy = trace.busy_s()
    return float(busy.max() / busy.mean())


def busy_over_time(trace: Trace) -> FloatArray:
    """(BINS,) the share of all devices that compute, over the run."""
    begin, end = trace.begin_s[~trace.is_transfer], trace.end_s[~trace.is_transfer]
    edges = np.linspace(0.0, trace.makespan_s, BINS + 1)
    covered = np.minimum(end[:, None], edges[1:]) - np.maximum(begin[:, None], edges[:-1])
    total = np.maximum(covered, 0.0).sum(axis=0)
    return np.array(total / (edges[1] * len(trace.busy_s())))


def kept_reads(problem: Problem, devices: Sequence[int]) -> float:
    """The share of reads whose tensor was made on the same device."""
    graph, at = problem.graph, np.array(devices)
    producer = graph.tensor_producer[graph.edge_tensor]
    kept = ~graph.is_input[producer]
    return float((at[producer[kept]] == at[graph.edge_reader[kept]]).mean())


class ChainExample:
    """Fig. 1: a chain of three matrices on eight devices."""

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, JobMaker(settings.budgets, "v100x8")
        self.placed = {p: jobs.placed(CHAIN, p) for p in ("enumerative", "critical-path", "auto")}
        values = {"machine": "v100x8", "graph": CHAIN, "placer": "enumerative"}
        self.barriers = PaperJob("barriers", values)

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figure."""
        return [*self.placed.values(), self.barriers]

    def find(self, results: Results) -> Found:
        """Counts of vertices, makespans and claims."""
        problem = problem_of("v100x8", CHAIN)
        graph = problem.graph
        counts: dict[str, int] = {}
        for v in graph.assigned.tolist():
            kind = f"{graph.meta_ops[v]} {graph.kinds[v]}"
            counts[kind] = counts.get(kind, 0) + 1
        products = sum(n for kind, n in counts.items() if kind.endswith("matmul"))
        others = len(graph.assigned) - products
        bound_ms = bounds_of(problem).best_s * 1e3
        rows: list[Sequence[Any]] = [("lower bound", f"{bound_ms:.1f}", "", "")]
        for name, job in self.placed.items():
            trace = trace_of(problem, results[job]["devices"])
            moved = f"{trace.bytes_moved / 1e9:.2f} GB"
            rows.append((name, Spread(results[job]["ms"]), f"{imbalance(trace):.2f}", moved))
        barriers = results[self.barriers]
        claims = [
            check(
                "Each product becomes eight products of submatrices and four sums",
                (products, others) == (16, 8),
                f"{products} products and {others} others: "
                + ", ".join(f"{n} × {k}" for k, n in counts.items()),
            ),
            claim(
                "Running operations as soon as they can beats barriers after every level",
                [Inequality("EnumOpt", Spread(barriers["ms"]), Spread(barriers["barriers_ms"]))],
            ),
        ]
        heads = ("placer", "ms", "busiest device / mean", "moved")
        return [plain("Eight devices of `v100x8`", heads, rows)], claims, []


class Assignments:
    """Fig. 4 and App. A.2, A.4: what assignments of FFNN and Llama-layer are like."""

    graphs = ("ffnn", "llama-layer")

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, JobMaker(settings.budgets)
        self.learned = {
            (m, g): jobs.seeds(g, m) for m in ("doppler", "placeto", "gdp") for g in self.graphs
        }
        self.placed = {
            (p, g): [jobs.placed(g, p)]
            for p in ("critical-path", "enumerative")
            for g in self.graphs
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figures."""
        rows = (self.learned, self.placed)
        return [job for row in rows for jobs in row.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Balance and transfers of every method's best assignment."""
        rows, moved, drawings = [], {}, []
        for (method, g), jobs in {**self.learned, **self.placed}.items():
            problem = problem_of("p100x4", g)
            devices = [_devices(r) for r in results.all(jobs)]
            traces = [trace_of(problem, each) for each in devices]
            moved[method, g] = spread(trace.bytes_moved / 1e9 for trace in traces)
            balance = spread(imbalance(trace) for trace in traces)
            kept = spread(100 * kept_reads(problem, each) for each in devices)
            rows.append((g, method, balance, moved[method, g], kept, len(jobs)))
            drawings.append(AssignmentDrawing(f"{g}, {method}", "p100x4", g, devices[0]))
        ours = [r for r in rows if r[1] == "doppler"]
        claims = [
            check(
                "DOPPLER's assignments are balanced",
                all(r[2].mean <= 1.1 for r in ours),
                "the busiest device has "
                + ", ".join(f"{r[2]} times the mean ({r[0]})" for r in ours),
            ),
            claim(
                "On FFNN DOPPLER moves less between devices than Placeto",
                [Inequality("GB", moved["doppler", "ffnn"], moved["placeto", "ffnn"])],
            ),
        ]
        heads = (
            "graph",
            "method",
            "busiest device / mean",
            "GB moved",
            "% of reads on the same device",
        )
        tables = [plain("The best assignment of each run, `p100x4`", (*heads, "seeds"), rows)]
        return tables, claims, drawings


class Utilization:
    """App. A.2: devices in use over time."""

    cases = (("chainmm", "enumerative"), ("ffnn", "placeto"))

    def __init__(self, settings: Settings) -> None:
        self.settings, jobs = settings, JobMaker(settings.budgets)
        self.doppler = {g: jobs.seeds(g) for g, _ in self.cases}
        self.others = {
            "enumerative": [jobs.placed("chainmm", "enumerative")],
            "placeto": jobs.seeds("ffnn", "placeto"),
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figures."""
        rows = (self.doppler, self.others)
        return [job for row in rows for jobs in row.values() for job in jobs]

    def find(self, results: Results) -> Found:
        """Shares of devices that compute: over all of the run, and late in it."""
        rows, lines, used, drawings = [], {}, {}, []
        for g, other in self.cases:
            problem = problem_of("p100x4", g)
            for method, jobs in (("doppler", self.doppler[g]), (other, self.others[other])):
                devices = [_devices(r) for r in results.all(jobs)]
                traces = [trace_of(problem, each) for each in devices]
                name = f"{g}, {method}"
                drawings += [
                    AssignmentDrawing(name, "p100x4", g, devices[0], timeline)
                    for timeline in (False, True)
                ]
                over = [busy_over_time(trace) for trace in traces]
                late = spread(100 * _late(trace) for trace in traces)
                mean = spread(100 * float(trace.utilization().mean()) for trace in traces)
                overlap = spread(100 * trace.overlap() for trace in traces)
                used[g, method] = mean, late
                rows.append((g, method, mean, late, overlap, len(traces)))
                x = np.linspace(0, traces[0].makespan_s * 1e3, BINS)
                lines[name] = [x.tolist(), (100 * over[0]).tolist()]
        claims = [
            claim(
                "On ChainMM EnumOpt leaves devices idle late in the run, and DOPPLER does not",
                [
                    Inequality(
                        "% busy in the last third",
                        used["chainmm", "enumerative"][1],
                        used["chainmm", "doppler"][1],
                    )
                ],
            ),
            claim(
                "On FFNN DOPPLER uses devices more than Placeto does",
                [Inequality("% busy", used["ffnn", "placeto"][0], used["ffnn", "doppler"][0])],
            ),
        ]
        heads = (
            "graph",
            "method",
            "% busy",
            "% busy in the last third",
            "% of transfers overlapped",
        )
        table = plain("The best assignment of each run, `p100x4`", (*heads, "seeds"), rows)
        chart = LineChart("devices in use", "ms", "% of devices", lines)
        return [table], claims, [chart, *drawings]


def _late(trace: Trace) -> float:
    """The share of devices that compute in the last third of a run."""
    return float(busy_over_time(trace)[-(BINS // 3) :].mean())


def _devices(result: Result) -> list[int]:
    """Those of the best of a run, or of a placer."""
    found: list[int] = result.get("run", result)["devices"]
    return found


class SelectionOrder:
    """App. A.3: in which order SEL takes the vertices of Llama-block."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.learned = JobMaker(settings.budgets).seeds("llama-block")

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figures."""
        return list(self.learned)

    def find(self, results: Results) -> Found:
        """How level by level the order is, and how often it stays on a path and a device."""
        problem = problem_of("p100x4", "llama-block")
        rows = [
            (i, *order_figures(problem, r["order"], r["greedy"]["devices"]))
            for i, r in enumerate(results.all(self.learned))
        ]
        early, late = (spread(row[k] for row in rows) for k in (2, 3))
        level = spread(row[1] for row in rows)
        claims = [
            check(
                "SEL goes level by level (rank correlation of the order with levels above 0.8)",
                level.mean > 0.8,
                f"Spearman {level}",
            ),
            claim(
                "Late in the order SEL stays on a path more often than early",
                [Inequality("% of steps to a reader of the last vertex", early, late)],
            ),
        ]
        heads = ("seed", "Spearman of order and level", "% along a path, first half", "second half")
        shown = [(i, f"{a:.2f}", f"{b:.1f}", f"{c:.1f}") for i, a, b, c in rows]
        first = results[self.learned[0]]
        drawings = [
            AssignmentDrawing(
                f"llama-block, after step {step}",
                "p100x4",
                "llama-block",
                until(first["order"], first["greedy"]["devices"], step),
            )
            for step in STEPS
        ]
        return [plain("Llama-block, greedy order", heads, shown)], claims, drawings


def until(order: Sequence[int], devices: Sequence[int], step: int) -> list[int]:
    """The devices of vertices that are placed after a number of steps; -1 for the others.

    >>> until([2, 0, 1], [3, 4, 5], 2)
    [3, -1, 5]
    """
    placed = set(order[:step])
    return [device if v in placed else -1 for v, device in enumerate(devices)]


def order_figures(
    problem: Problem, order: Sequence[int], devices: Sequence[int]
) -> tuple[float, float, float]:
    """Spearman of an order with levels; percent of steps along an edge, in both halves."""
    graph = problem.graph
    producers = graph.tensor_producer[graph.edge_tensor]
    edges = set(zip(producers.tolist(), graph.edge_reader.tolist(), strict=True))
    level = np.zeros(graph.num_vertices)
    for v in graph.topological_order.tolist():
        readers = graph.edge_reader[producers == v]
        step = 0 if graph.is_input[v] else 1
        level[readers] = np.maximum(level[readers], level[v] + step)
    ranks = _ranks(level[np.array(order)])
    spearman = float(np.corrcoef(np.arange(len(order)), ranks)[0, 1])
    steps = np.array([(a, b) in edges for a, b in itertools.pairwise(order)])
    half = len(steps) // 2
    return spearman, 100 * float(steps[:half].mean()), 100 * float(steps[half:].mean())


def _ranks(values: FloatArray) -> FloatArray:
    """Mean ranks, ties sharing theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.array((ends - (counts - 1) / 2.0)[inverse])
