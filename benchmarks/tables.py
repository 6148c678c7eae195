"""Tables of figures: printed as Markdown, kept as JSON lines, and printed again from those.

A benchmark that ends with `tables.main` has two verbs:

    python benchmarks/NAME.py run [PART …] [--results FILE]
    python benchmarks/NAME.py show FILE …

`run` measures and prints, and adds its tables to a file if there is one. A file has one table per
line; of several with the same name the last counts, in the place of the first.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are printed."""

    name: str  # one in a file
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""  # printed below


Part = Callable[[argparse.Namespace], Iterable[Table]]


def markdown(table: Table) -> str:
    """The table below its title."""
    lines = [f"\n**{table.title}**\n", row(table.head), "|---" * len(table.head) + "|"]
    lines += map(row, table.rows)
    return "\n".join([*lines, *([f"\n{table.note}"] if table.note else [])])


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read(paths: Iterable[Path]) -> dict[str, Table]:
    """The tables of some files, by name."""
    lines = (line for path in paths for line in path.read_text("utf-8").splitlines())
    found = (Table(**json.loads(line)) for line in lines)
    return {table.name: table for table in found}


def show(paths: Iterable[Path]) -> None:
    """Print the tables of some files."""
    for table in read(paths).values():
        print(markdown(table))


def run(parts: Mapping[str, Part], names: Sequence[str], args: argparse.Namespace) -> None:
    """Print the tables of some parts, or of all, as they are measured, and keep them."""
    began = perf_counter()
    for name in names or parts:
        for table in parts[name](args):
            print(markdown(table), flush=True)
            if args.results is not None:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(table), ensure_ascii=False) + "\n")
    print(f"\nIn {perf_counter() - began:.0f} s.")


def main(
    description: str | None,
    parts: Mapping[str, Part],
    options: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> None:
    """The command line of a benchmark; `options` adds those of `run`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    new.add_argument("--results", type=Path, help="a file that the tables are added to")
    options(new)
    verbs.add_parser("show").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.files)
        return
    if unknown := [name for name in args.parts if name not in parts]:
        parser.error(f"no part {unknown[0]}: it is one of {', '.join(parts)}")
    run(parts, args.parts, args)
