"""What `dop train` prints when it has ended: for people, or as JSON."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.cli.output import percent, seconds, stdout, table

if TYPE_CHECKING:
    from doppler.runs.comparison import Comparison
    from doppler.runs.run import ExerciseResult, Run


def placer_of_run(run: "Run", output: Path) -> str:
    """The name of the placer with the policy of the run."""
    return f"{run.trainer.policy.kind}:{output}"


def results_document(
    run: "Run", results: "list[ExerciseResult]", comparisons: "list[Comparison]", output: Path
) -> dict[str, Any]:
    """JSON values: the run, and each exercise with its makespans."""
    return {
        "run": str(output),
        "placer": placer_of_run(run, output),
        "placer_budget_s": comparisons[0].budget_s,
        "episodes": sum(run.tally.episodes.values()),
        "seconds": run.trainer.seconds,
        "exercises": [
            {
                "makespan_s": finite(result.makespan_s),
                "lower_bound_s": result.lower_bound_s,
                "gap": finite(result.gap) if result.measured is None else None,
                "simulated_makespan_s": finite(compared.best_s),
                "policy_makespan_s": finite(compared.policy_s),
                "shipped_makespan_s": finite(compared.shipped_s),
                "auto_makespan_s": finite(compared.auto_s),
                "graph": result.graph,
                "topology": result.topology,
                "episodes": result.episodes,
                "seconds": result.seconds,
                "assignment": str(result.assignment) if isfinite(result.makespan_s) else None,
                **({} if result.measured is None else {"measured": asdict(result.measured)}),
            }
            for result, compared in zip(results, comparisons, strict=True)
        ],
    }


def finite(value: float | None) -> float | None:
    """The value where it is a finite number, otherwise None, as JSON has no infinity."""
    return value if value is not None and isfinite(value) else None


def print_results(
    run: "Run",
    results: "list[ExerciseResult]",
    comparisons: "list[Comparison]",
    output: Path,
    how_to_place: str,
) -> None:
    """Print what was found on each exercise, with and without the run, and how to use it."""
    from doppler.cli.training_view import comparison_table, measured_table, verdict

    out = stdout()
    if any(result.measured for result in results):
        out.print(measured_table(results))
    shown = table("exercise", "best makespan", "bound", "gap", "episodes", "trained")
    for result in results:
        if result.measured is not None:
            continue
        runs = isfinite(result.makespan_s)
        shown.add_row(
            result.exercise,
            seconds(result.makespan_s) if runs else "none that fits",
            seconds(result.lower_bound_s),
            percent(result.gap) if runs else "",
            str(result.episodes),
            seconds(result.seconds),
        )
    if shown.rows:
        out.print(shown)
    labels = [result.exercise for result in results]
    out.print(comparison_table(labels, comparisons))
    out.print(
        f"simulated{' with measured costs' if results[0].measured else ''}; trained policy: "
        f"placer {placer_of_run(run, output)}; shipped policy: placer doppler; "
        f"each placer had up to {seconds(comparisons[0].budget_s)}"
    )
    for result, compared in zip(results, comparisons, strict=True):
        out.print(verdict(result.exercise, compared))
        if isfinite(result.makespan_s):
            best = f"best assignment, {seconds(result.makespan_s)}: {result.assignment}"
            out.print(best)
    took = seconds(run.trainer.seconds)
    out.print(f"trained for {took}; the run is in {output}")
    out.print("place with it:")
    out.print(f"  {how_to_place}")
