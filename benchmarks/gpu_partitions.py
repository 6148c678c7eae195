r"""The paper on real devices, in a given number of seconds: Table 2, stage combinations, few runs.

    python benchmarks/gpu_partitions.py run --executor cuda --seconds 450 --out results
    python benchmarks/gpu_partitions.py show results/real-devices.jsonl

One GPU in four partitions (`cuda`), or two shares of the cores (`cpu`), is the machine. In order of
importance, each until a deadline of its own:

1. Kernels are compiled, in processes beside one another; the machine is probed with each graph.
2. Placers place, and policies are trained on the simulator of the probed machine: on all cores,
   while nothing is timed. So are the searches that part 5 begins with.
3. Table 2: of each graph, Stage III on the engine, then runs of all rows in both modes.
4. Stage III after all combinations of Stages I and II on Llama-layer, and runs of what they give.
5. How many executions until an assignment within 1 % of the best known was run (`few_runs.py`).

The jobs are those of `dop reproduce placement stages` with budget `minutes`, and so are the tables;
a job that is done is written to the file of results at once. `--study-sizes` has the larger graphs
of `engine_study.py`, whose runs take 130 to 180 ms instead of about 50.
"""

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import few_runs

import doppler as dp
from doppler.placers.registry import make_placer
from doppler.problem import Problem
from doppler.reproduce.budgets import MINUTES, Budgets, Settings
from doppler.reproduce.experiments.engines import graph_for
from doppler.reproduce.experiments.real_jobs import RealJobs
from doppler.reproduce.experiments.real_tables import LAYER, RealPlacement, RealStages
from doppler.reproduce.experiments.real_work import engine_of
from doppler.reproduce.jobs import (
    TOPOLOGY,
    Leeway,
    PaperJob,
    Result,
    Results,
    Tool,
    Workshop,
    num_workers,
    perform,
    run_jobs,
    with_needs,
)
from doppler.reproduce.pages import markdown
from doppler.reproduce.paper_figures import FOUR
from doppler.topology.presets import read_topology

FILE = "real-devices.jsonl"
PARTS = ("table", "stages", "few")
UNTIL = {"table": 0.76, "stages": 0.92, "few": 0.99}  # shares of the time
REFINING_S = 25.0  # that a graph must have in part 3, or Stage III is left out
LAST_S = 14.0  # of part 4, for the runs of what was trained
FEW = FOUR  # graphs of part 5
WARM = ("search", "fixed", "policy")  # that this process needs, too
COMPILED = (*WARM, "imitation", "sim", "real", "placers", "placeto", "gdp")
COMPILING_S = 90  # at most
FEW_S = 12.0  # that part 5 must have to begin at all


@dataclass
class Study:
    """What was asked for, and how far it is."""

    settings: Settings
    args: argparse.Namespace
    folder: Path  # of jobs
    began: float
    tool: Tool
    failures: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    begun: dict[str, Any] = field(default_factory=dict)  # what part 5 begins with, by graph

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self.began

    def left_s(self, part: str) -> float:
        """Seconds until the deadline of a part."""
        return UNTIL[part] * float(self.args.seconds) - self.spent_s

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"{self.spent_s:6.1f} s  {text}", flush=True)

    def write(self, line: Result) -> None:
        """Add a line to the results."""
        with (self.args.out / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep(self, job: PaperJob) -> None:
        """Add the result of a job to the results."""
        result = Workshop(self.folder).result(job.key)
        if result is None or job.key in self.written:
            return
        self.written.add(job.key)
        self.write({"key": job.key, "result": result})
        values = job.parameters
        names = [values.get(k) for k in ("workload", "placer", "method", "form", "mode", "seed")]
        told = " ".join(str(name) for name in names if name is not None)
        self.say(f"{job.kind} {told}: {result.get('seconds', 0):.1f} s")

    def is_done(self, job: PaperJob) -> bool:
        """Whether there is a result."""
        return Workshop(self.folder).file(".json", job.key).exists()

    def do(self, job: PaperJob, *, partly: bool = False) -> None:
        """Do a job here, alone, if what it needs is there; `partly`: if the probe is."""
        needs = job.needs[:1] if partly else job.needs
        if self.is_done(job) or not all(self.is_done(need) for need in needs):
            return
        keys = tuple(need.key for need in job.needs)
        place = str(self.folder), job.key, keys
        try:
            perform(job.kind, dict(job.parameters), *place, tool=self.tool)
        except Exception as error:
            self.failed(job.kind, job.key, error)
        self.keep(job)

    def failed(self, what: str, key: str, error: BaseException) -> None:
        """Note a failure, which ends nothing else."""
        self.failures[key] = f"{type(error).__name__}: {error}"
        self.write({"failed": key, "error": self.failures[key]})
        self.say(f"{what} failed: {self.failures[key]}")
        traceback.print_exception(error)


def run(args: argparse.Namespace) -> None:
    """All parts, each until its deadline."""
    args.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(budgets=budgets_of(vars(args)), executor=args.executor)
    with ExitStack() as stack:
        folder = Path(args.jobs or stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        study = Study(settings, args, folder, monotonic(), stack.enter_context(Tool()))
        compiling = [compile_elsewhere(name) for name in COMPILED]
        study.write({"origin": origin(args)})
        for graph in wanted_graphs(args):
            graph_for(graph, args.executor, small=settings.budgets.small)
        for process in compiling:
            process.wait()
        for name in WARM if compiling else ():  # from the cache
            compile_kernels(name)
        study.say("kernels are compiled")
        for part in (probe_all, train_all, measure_table, measure_stages, count_runs):
            try:
                part(study)
            except Exception as error:
                study.failed(part.__name__, part.__name__, error)
        study.say("done")
    text = told(args.out / FILE)
    (args.out / "summary.md").write_text(text, "utf-8")
    print(text)


def wanted_graphs(args: argparse.Namespace) -> list[str]:
    """The graphs to probe."""
    layer = [LAYER] if "stages" in args.parts else []
    return list(dict.fromkeys([*args.graphs, *layer]))


def budgets_of(options: Result) -> Budgets:
    """Budget `minutes`, with all seconds scaled."""
    scale, b = options["scale"], MINUTES
    changed: Any = {name: getattr(b, name) * scale for name in ("real_s", "measure_s", "probe_s")}
    return replace(
        b,
        **changed,
        search_s=b.search_s * scale,
        train_s={graph: seconds * scale for graph, seconds in b.train_s.items()},
        imitation=max(int(b.imitation * min(scale, 1.0)), 32),
        samples=b.samples if scale >= 1 else max(int(b.samples * scale), 4),
        real=options["real"],
        seeds=options["seeds"],
        small=not options["study_sizes"],
    )


def origin(args: argparse.Namespace) -> Result:
    """How the results came about, and where."""
    kept = ("executor", "seconds", "scale", "real", "seeds", "study_sizes")
    machine = platform.processor() or platform.machine()
    if args.executor == "cuda":
        import torch

        machine = f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    return {**{name: getattr(args, name) for name in kept}, "machine": machine}


def compile_elsewhere(name: str) -> "subprocess.Popen[bytes]":
    """A process that fills the cache of kernels, for a limited time."""
    return subprocess.Popen([sys.executable, __file__, "compile", name])


def compile_kernels(name: str) -> None:
    """Compile what something needs, or load it from the cache."""
    from doppler.placers import warm_up

    if name == "search":
        warm_up.warm_up_search()
    elif name == "fixed":
        warm_up.warm_up_fixed()
    elif name == "policy":
        warm_up.warm_up_policy()
    elif name == "placers":
        problem = toy()
        for placer in ("critical-path", "critical-path:blind", "enumerative"):
            make_placer(placer).place(problem)
        make_placer("auto").place(problem, budget_s=0.2)
    elif name in ("placeto", "gdp"):
        compile_training("sim", name)
    else:
        compile_training(name)


def toy() -> Problem:
    """A problem that takes no time."""
    graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    return Problem(graph, dp.Topology.preset("p100x4"))


def compile_training(stage: str, method: str = "doppler") -> None:
    """Train a little in virtual time."""
    from doppler.training.presets import preset
    from doppler.training.trainer import Trainer

    config, problem = preset("default", method), toy()
    few: Any = {
        name: replace(getattr(config, name), episodes=getattr(config, name).batch)
        for name in ("imitation", "sim", "real")
    }
    few["sim"] = replace(few["sim"], expert=None)
    config = replace(config, stages=(stage,), threads=1, **few)
    executor = dp.Simulator(problem.topology) if stage == "real" else None
    trainer = Trainer([(problem.graph, problem.topology)], config, executor=executor)
    for _ in trainer.run():
        pass


def probe_all(study: Study) -> None:
    """Part 1: the graphs of Table 2 in its order, so that the last are left out, if any."""
    jobs = RealJobs.of(study.settings)
    for graph in wanted_graphs(study.args):
        study.do(jobs.probed(graph))


def train_all(study: Study) -> None:
    """Part 2; searches for part 5 begin beside it."""
    args = study.args
    wanted = table_jobs(study)
    if "stages" in args.parts:
        wanted += with_needs(RealStages(study.settings).jobs()).values()
    ready = [
        job
        for job in {job.key: job for job in wanted}.values()
        if not job.alone and study.is_done(job.needs[0])
    ]
    leeway = Leeway(failures=study.failures, done=study.keep)
    options, graphs = few_options(study), few_graphs(study)
    machines = {graph: read_topology(topology_file(study, graph)) for graph in graphs}
    with ExitStack() as stack:
        coming: dict[str, Any] = {}
        if args.workers > 1 and graphs:
            context = get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(args.workers, mp_context=context))
            for graph, machine in machines.items():
                coming[graph] = few_runs.submit_starts(
                    pool, graph_of(study, graph), machine, options
                )
        run_jobs(ready, study.folder, workers=args.workers, leeway=leeway)
        for key, error in study.failures.items():
            study.say(f"{key}: {error}")
        for graph, machine in machines.items():
            if graph in coming:
                study.begun[graph] = {key: one.result() for key, one in coming[graph].items()}
            else:
                study.begun[graph] = few_runs.all_starts(graph_of(study, graph), machine, options)


def measure_table(study: Study) -> None:
    """Part 3."""
    if "table" not in study.args.parts:
        return
    columns = RealPlacement(study.settings).columns
    graphs = [g for g in FOUR if g in study.args.graphs]
    for number, graph in enumerate(graphs):
        if study.left_s("table") < 0:
            break
        column = columns[graph]
        if study.left_s("table") / (len(graphs) - number) > REFINING_S * study.args.scale:
            for job in column.refined:
                study.do(job)
        for job in column.measured.values():
            study.do(job, partly=True)


def measure_stages(study: Study) -> None:
    """Part 4: all combinations of one seed, then of the next."""
    if "stages" not in study.args.parts:
        return
    stages = RealStages(study.settings)
    for some in zip(*stages.runs.values(), strict=True):
        for job in some:
            if job.alone and study.left_s("stages") > LAST_S * study.args.scale:
                study.do(job)
    study.do(stages.measured, partly=True)


def count_runs(study: Study) -> None:
    """Part 5: all graphs with one seed, then with the next."""
    longest = FEW_S * study.args.scale
    for seed in range(study.args.few_seeds):
        for graph in few_graphs(study):
            if study.left_s("few") < longest:
                return
            began = study.spent_s
            try:
                for row in counted(study, graph, seed):
                    study.write({"few": row})
            except Exception as error:
                study.failed("few runs", f"few/{graph}/{seed}", error)
            longest = max(longest, study.spent_s - began)
            study.say(f"few runs {graph} {seed}: {study.spent_s - began:.1f} s")


def counted(study: Study, graph: str, seed: int) -> Iterable[Result]:
    """A row of part 5 for each way."""
    options = few_options(study)
    topology = read_topology(topology_file(study, graph))
    job = RealJobs.of(study.settings).probed(graph)
    engine = engine_of(study.tool, job.key, topology, study.args.executor, mode=options.mode)
    own = graph_of(study, graph)
    return few_runs.spend_all(
        graph, own, topology, topology, engine, study.begun[graph], seed, options
    )


def few_graphs(study: Study) -> list[str]:
    """The graphs of part 5 that were probed."""
    jobs = RealJobs.of(study.settings)
    wanted = FEW if "few" in study.args.parts else ()
    return [g for g in wanted if g in study.args.graphs and study.is_done(jobs.probed(g))]


def few_options(study: Study) -> argparse.Namespace:
    """The options of `few_runs.py`."""
    args = study.args
    return argparse.Namespace(
        backend=args.executor,
        mode="fixed",
        ways=args.few_ways,
        executions=args.few_executions,
        seeds=args.few_seeds,
        repeats=4,
        search_seconds=4.0 * args.scale,
        error=None,
        warm_up=0,
        max_runs=6,
        final_runs=0,
        workers=1,
        threads=None,
    )


def graph_of(study: Study, graph: str) -> dp.Graph:
    """A graph of the study."""
    return graph_for(graph, study.args.executor, small=study.settings.budgets.small)


def topology_file(study: Study, graph: str) -> Path:
    """The probed machine."""
    job = RealJobs.of(study.settings).probed(graph)
    return Workshop(study.folder).file(TOPOLOGY, job.key)


def table_jobs(study: Study) -> list[PaperJob]:
    """The jobs of Table 2, with all that they need."""
    if "table" not in study.args.parts:
        return []
    columns = RealPlacement(study.settings).columns
    measured = [job for g in study.args.graphs for job in columns[g].measured.values()]
    return list(with_needs(measured).values())


def told(path: Path) -> str:
    """The tables of a file of results, as Markdown."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    options = next(line["origin"] for line in lines if "origin" in line)
    settings = Settings(budgets=budgets_of(options), executor=options["executor"])
    results = Results({line["key"]: line["result"] for line in lines if "key" in line})
    text = ["", f"On {options['machine']}."]
    for title, experiment in (("Table 2", RealPlacement), ("Stages", RealStages)):
        tables, claims, _ = experiment(settings).find(results)
        tables = [table for table in tables if table.rows]
        if not tables:
            continue
        text += ["", f"### {title}", "", experiment(settings).budget]
        text += ["", "| the paper's claim | verdict | why |", "|---|---|---|"]
        text += [f"| {c.text} | **{c.verdict}** | {c.reason} |" for c in claims]
        for table in tables:
            text += ["", *markdown(table)]
    few = [line["few"] for line in lines if "few" in line]
    if few:
        text += ["", "### Few runs", "", *few_runs.table(few)]
    lost = [f"- `{line['failed']}`: {line['error']}" for line in lines if "failed" in line]
    if lost:
        text += ["", "### Failures", "", *lost]
    return "\n".join(text) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run, or show, or compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("--executor", choices=("cpu", "cuda"), default="cuda")
    new.add_argument("--seconds", type=float, default=450.0)
    new.add_argument("--out", type=Path, default=Path("real-devices"))
    new.add_argument("--jobs", type=Path, help="a folder that keeps jobs; none are kept without")
    new.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    new.add_argument("--graphs", nargs="+", choices=FOUR, default=FOUR)
    new.add_argument("--workers", type=int, default=num_workers())
    new.add_argument("--scale", type=float, default=1.0, help="of the seconds of all jobs")
    new.add_argument("--real", type=int, default=MINUTES.real, help="executions of Stage III")
    new.add_argument("--seeds", type=int, default=MINUTES.seeds)
    new.add_argument("--few-seeds", type=int, default=3)
    new.add_argument("--few-executions", type=int, default=32)
    new.add_argument("--few-ways", nargs="+", choices=few_runs.WAYS, default=few_runs.WAYS)
    new.add_argument("--study-sizes", action="store_true", help="graphs of `engine_study.py`")
    verbs.add_parser("show").add_argument("file", type=Path)
    verbs.add_parser("compile").add_argument("name", choices=COMPILED)
    args = parser.parse_args(arguments)
    if args.verb == "run":
        run(args)
    elif args.verb == "show":
        print(told(args.file), end="")
    else:
        signal.alarm(COMPILING_S)
        compile_kernels(args.name)


if __name__ == "__main__":
    main()
