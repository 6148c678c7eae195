"""MkDocs hooks: parts of pages that are generated when the site is built.

A page asks for such a part by a comment on a line of its own:

- `<!-- cli -->`: the help of `dop` and of each of its verbs;
- `<!-- table: NAME -->`: the tables of `benchmarks/results/NAME.jsonl`, as the benchmark that
  measured them prints them, and when, where and with which commit they were measured.
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from doppler.cli.main import VERBS, app

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HELP_COLUMNS = 92


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page with its generated parts filled in."""
    markdown = re.sub(r"^<!-- cli -->$", lambda _: cli(), markdown, flags=re.MULTILINE)
    return re.sub(
        r"^<!-- table: (\S+) -->$", lambda found: table(found[1]), markdown, flags=re.MULTILINE
    )


def cli() -> str:
    """The help of `dop` and of each of its verbs, one section each."""
    sections = [f"## dop\n\n{_help()}"]
    sections += [f"## dop {verb}\n\n{_help(verb)}" for verb in VERBS]
    return "\n\n".join(sections)


def _help(*arguments: str) -> str:
    environment = {"COLUMNS": str(HELP_COLUMNS), "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*arguments, "--help"], prog_name="dop", env=environment)
    if result.exit_code:
        raise RuntimeError(f"`dop {' '.join(arguments)} --help` failed: {result.output}")
    lines = [line.rstrip() for line in result.output.strip().splitlines()]
    return "\n".join(["```text", *lines, "```"])


@cache
def table(name: str) -> str:
    """The tables of a file of results, below a line that says where they are from."""
    source = measurements()[name]
    script, results = f"benchmarks/{source['script']}", f"benchmarks/results/{name}.jsonl"
    shown = subprocess.run(
        [sys.executable, script, "show", results],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    origins = "; ".join(
        f"{part['rows']} {part['date']} with commit `{part['commit']}` on {part['machine']}"
        for part in ({"rows": "Measured", **source}, *source.get("again", ()))
    )
    show = f"`python {script} show {results}` prints these tables; `run` measures them again."
    return f"{origins}. {show}\n{shown}"


def measurements() -> dict[str, dict[str, Any]]:
    """When, where and with which commit each file of results was measured, by its name."""
    return tomllib.loads((RESULTS / "measured.toml").read_text("utf-8"))
