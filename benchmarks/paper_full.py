"""Table 2 of the paper at its full budget: jobs of `dop reproduce placement` that are done.

    dop reproduce placement -o out                  # hours; what is done is kept in out/jobs
    python benchmarks/paper_full.py collect out > benchmarks/results/paper-full.jsonl
    python benchmarks/paper_full.py show benchmarks/results/paper-full.jsonl

`restore FILE DIR` puts the jobs of a file into a folder, so that `dop reproduce placement -o DIR`
goes on from there. `show` prints the rows of which all graphs and seeds are done.
"""

import argparse
import json
from pathlib import Path

from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import MORE_RIVALS, RIVALS, Placement
from doppler.reproduce.jobs import Result, Results
from doppler.reproduce.pages import markdown


def collect(folder: Path) -> dict[str, Result]:
    """The results of the jobs that are done in a folder, by their keys."""
    paths = sorted((folder / "jobs").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


def restore(found: dict[str, Result], folder: Path) -> None:
    """Write results to the files in which `dop reproduce` looks for them."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    for key, result in found.items():
        (jobs / f"{key}.json").write_text(json.dumps(result) + "\n", "utf-8")


def read(path: Path) -> dict[str, Result]:
    """The results of a file, by their keys."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["key"]: line["result"] for line in lines}


def complete(found: dict[str, Result]) -> Placement:
    """The table with those of the rival methods that are there with all graphs and seeds."""
    rivals = [
        method
        for method in (*RIVALS, *MORE_RIVALS)
        if all(job.key in found for job in Placement(Settings(), rivals=(method,)).jobs())
    ]
    return Placement(Settings(), rivals=rivals)


def show(found: dict[str, Result]) -> str:
    """Claims and tables, from the rows that are there."""
    table = complete(found)
    tables, claims, _ = table.find(Results(found))
    lines = ["", "| claim at the full budget | verdict | why |", "|---|---|---|"]
    lines += [f"| {c.text} | **{c.verdict}** | {c.reason} |" for c in claims]
    for one in tables:
        lines += ["", *markdown(one)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("collect").add_argument("folder", type=Path)
    verbs.add_parser("show").add_argument("file", type=Path)
    again = verbs.add_parser("restore")
    again.add_argument("file", type=Path)
    again.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.verb == "collect":
        for key, result in collect(options.folder).items():
            print(json.dumps({"key": key, "result": result}))
    elif options.verb == "show":
        print(show(read(options.file)))
    else:
        restore(read(options.file), options.folder)


if __name__ == "__main__":
    main()
