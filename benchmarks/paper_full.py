"""The paper at its full budget: the jobs of `dop reproduce all`, and what follows from them.

    dop reproduce all -o out                        # hours; what is done is kept in out/jobs
    python benchmarks/paper_full.py collect out > benchmarks/results/paper-full.jsonl
    python benchmarks/paper_full.py findings benchmarks/results/paper-full.jsonl > findings.jsonl
    python benchmarks/paper_full.py show benchmarks/results/paper-full.jsonl

`collect` keeps six digits of every number and some points of every curve. `findings` prints those
of all labels whose jobs are there, as `dop reproduce` writes them. `restore FILE DIR` puts the jobs
of a file into a folder, so that `dop reproduce all -o DIR` goes on from there.
"""

import argparse
import json
from pathlib import Path

from doppler.reproduce.budgets import Settings
from doppler.reproduce.findings import Finding, to_json
from doppler.reproduce.jobs import TRAINING, Result, Results, with_needs
from doppler.reproduce.registry import LABELS, find, jobs_of

POINTS = 20  # of the curve of a training; those of Stage III are shown, and kept
DIGITS = 6


def rounded(value: object) -> object:
    """The same JSON value with fewer digits.

    >>> rounded({"ms": [1.23456789, 2]})
    {'ms': [1.23457, 2]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


def compact(result: Result) -> Result:
    """A result without what no table or chart shows."""
    if result["kind"] == TRAINING:
        step = max(-(-len(result["curve"]) // POINTS), 1)
        result = result | {"curve": result["curve"][::step]}
    parameters = result["parameters"]  # a key depends on them: as they are
    small = rounded({key: value for key, value in result.items() if key != "parameters"})
    assert isinstance(small, dict)
    return {"kind": small.pop("kind"), "parameters": parameters, **small}


def collect(folder: Path) -> dict[str, Result]:
    """The results of the jobs of all labels that are done in a folder, by their keys."""
    wanted = with_needs(jobs_of(list(LABELS), Settings()))
    paths = sorted((folder / "jobs").glob("*.json"))
    found = {path.stem: path for path in paths if path.stem in wanted}
    return {key: compact(json.loads(path.read_text("utf-8"))) for key, path in found.items()}


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


def complete(found: dict[str, Result]) -> list[str]:
    """The labels whose jobs are all there."""
    return [
        label
        for label in LABELS
        if all(key in found for key in with_needs(jobs_of([label], Settings())))
    ]


def findings(found: dict[str, Result]) -> list[Finding]:
    """What follows for each label that is complete."""
    return [find(label, Settings(), Results(found)) for label in complete(found)]


def show(found: dict[str, Result]) -> str:
    """How much work each label took, that which it shares with others included."""
    lines = ["", "| label | jobs | policies trained | episodes of Stage II | CPU hours |"]
    lines.append("|---|---:|---:|---:|---:|")
    for label in complete(found):
        results = [found[key] for key in with_needs(jobs_of([label], Settings()))]
        trained = [r for r in results if r["kind"] == TRAINING]
        episodes = sum(r["parameters"]["episodes"] for r in trained)
        hours = sum(r.get("seconds", 0.0) for r in results) / 3600
        cells = (f"`{label}`", len(results), len(trained), f"{episodes:,}", f"{hours:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("collect").add_argument("folder", type=Path)
    for verb in ("show", "findings"):
        verbs.add_parser(verb).add_argument("file", type=Path)
    again = verbs.add_parser("restore")
    again.add_argument("file", type=Path)
    again.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.verb == "collect":
        for key, result in collect(options.folder).items():
            print(json.dumps({"key": key, "result": result}))
    elif options.verb == "show":
        print(show(read(options.file)))
    elif options.verb == "findings":
        for finding in findings(read(options.file)):
            print(json.dumps(to_json(finding), ensure_ascii=False))
    else:
        restore(read(options.file), options.folder)


if __name__ == "__main__":
    main()
