"""The findings of `dop reproduce`, as the documentation has them.

    dop reproduce all -o out && cp out/findings.jsonl benchmarks/results/paper.jsonl
    python benchmarks/paper.py show benchmarks/results/paper.jsonl
    python benchmarks/paper.py overview benchmarks/results/paper.jsonl  # the table of verdicts

`merge OLD NEW` prints the lines of both, those of NEW instead of those of OLD with the same label.
"""

import argparse
import json
from pathlib import Path

from doppler.reproduce.findings import Finding, from_json, to_json
from doppler.reproduce.pages import overview, section
from doppler.reproduce.registry import LABELS


def read(paths: list[Path]) -> list[Finding]:
    """The findings in files, in the paper's order; of the same label, the last."""
    lines = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    found = {line["label"]: from_json(line) for line in lines}
    return [found[label] for label in LABELS if label in found]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("show", "overview", "merge"))
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    found = read(options.files)
    if options.verb == "show":
        print("\n" + "\n".join(section(finding) for finding in found))
    elif options.verb == "overview":
        print(overview(found))
    else:
        print("\n".join(json.dumps(to_json(each), ensure_ascii=False) for each in found))


if __name__ == "__main__":
    main()
