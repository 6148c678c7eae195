"""Findings as Markdown."""

from collections.abc import Iterable, Sequence

from doppler.reproduce.findings import FigureTable, Finding


def overview(findings: Iterable[Finding]) -> str:
    """A table with a line per label: command, paper, verdict."""
    rows = ["| label | in the paper | verdict | claims |", "|---|---|---|---|"]
    rows += [
        f"| [`{f.label}`](#{f.label}) | {f.where}: {f.title} | **{f.verdict}** | {f.summary} |"
        for f in findings
    ]
    return "\n".join(rows)


def section(finding: Finding, *, level: int = 2) -> str:
    """One finding: command, claims with verdicts, tables."""
    mark, settings = "#" * level, finding.settings
    options = " --quick" if settings.get("budget") == "quick" else ""
    command = f"dop reproduce {finding.label}{options} --executor {settings.get('executor')}"
    lines = [
        f"{mark} {finding.label}",
        "",
        f"{finding.where}: {finding.title}. `{command}`. {finding.budget}".strip(),
        "",
        "| the paper's claim | verdict | why |",
        "|---|---|---|",
    ]
    lines += [f"| {c.text} | **{c.verdict}** | {c.reason} |" for c in finding.claims]
    for table in finding.tables:
        lines += ["", *markdown(table)]
    return "\n".join(lines) + "\n"


def markdown(table: FigureTable) -> list[str]:
    """A table with its title, as lines."""
    lines = [f"**{table.title}**", "", _row(table.heads), "|" + "---|" * len(table.heads)]
    return [*lines, *(_row(row) for row in table.rows)]


def page(findings: Sequence[Finding]) -> str:
    """All findings: an overview, then a section for each."""
    return "\n".join([overview(findings), "", *(section(f) for f in findings)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
