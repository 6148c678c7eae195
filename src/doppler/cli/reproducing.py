"""`dop reproduce`: the paper, table by table."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doppler.cli.options import AsJson
from doppler.cli.output import announce, note, print_json, showing_progress, stdout, table
from doppler.errors import Interrupted, MissingExtraError

if TYPE_CHECKING:
    from doppler.reproduce.findings import Finding

FINDINGS, PAGE = "findings.jsonl", "findings.md"


def reproduce(
    labels: Annotated[
        list[str],
        typer.Argument(metavar="LABEL…", help="Tables and figures of the paper; `all` for all."),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Small budgets: minutes instead of hours.")
    ] = False,
    executor: Annotated[
        str, typer.Option(metavar="sim|cpu|cuda", help="What runs assignments.")
    ] = "sim",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for results.")
    ] = Path("reproduce"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per core if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what the paper claims, and say which claims hold, and why.

    Labels are tables and figures of the paper, such as `placement` for Table 2. Results of jobs
    are kept in the folder, so that the same command resumes after an interruption. It writes
    findings.jsonl, findings.md and, with the extra `plot`, charts.

    Example: dop reproduce all --quick
    """
    from doppler.reproduce.budgets import settings_of
    from doppler.reproduce.findings import to_json
    from doppler.reproduce.jobs import estimate_s, missing, num_workers
    from doppler.reproduce.registry import chosen, jobs_of
    from doppler.reproduce.registry import reproduce as run

    names, settings = chosen(labels), settings_of(quick=quick, executor=executor)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "reproducing the paper", extra="torch")
    left, count = missing(jobs_of(names, settings), output), workers or num_workers()
    minutes = estimate_s(left, count) / 60
    note(f"{len(left)} jobs left, about {max(minutes, 0.1):.1f} minutes on {count} cores")
    try:
        with showing_progress():
            found = run(names, settings, output, workers=workers)
    except (Interrupted, KeyboardInterrupt):
        note("what is done is kept: the same command resumes")
        raise
    written = _write(found, output)
    if as_json:
        print_json([to_json(finding) for finding in found])
        return
    _print(found)
    announce(*written)


def _write(found: "list[Finding]", folder: Path) -> list[Path]:
    """Write all findings as JSON lines, as Markdown and, where it is installed, as charts."""
    from doppler.base.writing import write_text
    from doppler.reproduce.findings import to_json
    from doppler.reproduce.pages import page
    from doppler.reproduce.plotting import write_charts

    lines = "".join(json.dumps(to_json(f), ensure_ascii=False) + "\n" for f in found)
    write_text(folder / FINDINGS, lines, force=True)
    write_text(folder / PAGE, page(found), force=True)
    written = [folder / FINDINGS, folder / PAGE]
    if find_spec("matplotlib") is not None:
        written += [path for finding in found for path in write_charts(finding, folder)]
    return written


def _print(found: "list[Finding]") -> None:
    out = stdout()
    for finding in found:
        out.print(f"{finding.label}: {finding.where}, {finding.title}")
        if finding.budget:
            out.print(finding.budget)
        for each in finding.tables:
            shown = table(*each.heads)
            for row in each.rows:
                shown.add_row(*row)
            out.print(each.title)
            out.print(shown)
        for claim in finding.claims:
            out.print(f"{claim.verdict}: {claim.text}")
            out.print(f"  {claim.reason}")
        out.print()
    shown = table("label", "paper", "verdict", "claims", left=4)
    for finding in found:
        shown.add_row(finding.label, finding.where, finding.verdict, finding.summary)
    out.print(shown)
