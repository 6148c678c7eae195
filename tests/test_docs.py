"""Every command and every piece of Python in the documentation runs, and links lead somewhere."""

import doctest
import importlib
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
from command_line import compare_in_this_process, runner

import doppler as dp
from doppler.mdp.features import DEVICE_FEATURES, SCORED_BY
from doppler.placers import placer_names
from doppler.view.web_server import ViewServer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LONG = ("make ", "git ", "pip ")  # set-up and suites, which cannot run inside a test


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def write_shown_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows."""
    shown_files = r"(?ms)^`([\w.-]+)`:\n\n```\w*\n(.*?)^```"
    for name, content in re.findall(shown_files, page.read_text("utf-8")):
        (folder / name).write_text(content)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def in_a_hurry(code: str) -> str:
    """A command or Python whose budgets of seconds are short."""
    return re.sub(r"(--budget |--seconds |\bbudget_s=|\bseconds=)[\d.]+", r"\g<1>0.2", code)


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("console"), ids=name_of)
def test_commands(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder, as a reader would type them; files shown in the page are there.

    But budgets are short, `dop train` compares its result with other placers for a moment only, and
    `dop view` ends as soon as it listens.
    """
    monkeypatch.setattr("doppler.runs.comparison.MAX_S", 0.02)
    monkeypatch.setattr(ViewServer, "serve_forever", lambda *_, **__: None)  # it would not end
    compare_in_this_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_shown_files(page, tmp_path)
    dop = runner(capsys, monkeypatch)
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            if line.startswith(LONG):
                continue
            command = shlex.split(in_a_hurry(line), comments=True)
            if command[0] == "python":
                runpy.run_path(command[1])
                continue
            assert command[0] == "dop", line
            result = dop(*command[1:])
            assert result.code == 0, f"{line}\n{result.err}"


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_shown_files(page, tmp_path)
    for block in blocks(page, "python"):
        exec(compile(in_a_hurry(block), str(page), "exec"), {})


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).is_file(), target


def test_the_navigation_has_every_page() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES[1:])


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: doppler\.(\S+)$", pages, re.MULTILINE)
    assert sorted(name for name in named if "." not in name) == sorted(dp.__all__)
    for name in named:  # raises where there is none
        resolve_name(":".join(f"doppler.{name}".rsplit(".", 1)))


def test_results_say_where_they_are_from() -> None:
    results = ROOT / "benchmarks" / "results"
    measured = tomllib.loads((results / "measured.toml").read_text("utf-8"))
    assert sorted(measured) == sorted(path.stem for path in results.glob("*.jsonl"))
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "results").glob("*.md"))
    assert sorted(re.findall(r"^<!-- table: (\S+) -->$", pages, re.MULTILINE)) == sorted(measured)
    for source in measured.values():
        origin = {"date", "commit", "machine"}
        assert set(source) - {"again"} == {"script", *origin}
        assert all(set(part) == {"rows", *origin} for part in source.get("again", ()))
        assert (ROOT / "benchmarks" / source["script"]).is_file()


def first_column(page: str, heading: str) -> list[str]:
    """The names in the first column of the tables under a heading of a page, as they come."""
    text = (DOCS / "explanation" / page).read_text("utf-8")
    section = re.split(r"(?m)^## ", text.partition(f"## {heading}\n")[2])[0]
    cells = re.findall(r"(?m)^\| (`[^|]*?) \|", section)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_device_features_are_those_of_the_decision_process() -> None:
    assert first_column("decision-process.md", "What the policies see") == [*DEVICE_FEATURES]


def test_the_devices_that_are_scored_are_chosen_in_the_order_of_the_list() -> None:
    text = (DOCS / "explanation" / "decision-process.md").read_text("utf-8")
    listed = re.findall(r"(?m)^\d+\. (least|largest) `(\w+)`$", text)
    keys = [DEVICE_FEATURES[key] for key in SCORED_BY]
    assert [name for _, name in listed] == keys
    assert [name for which, name in listed if which == "largest"] == ["guided", "sibling_share"]


def test_the_table_of_placers_has_all() -> None:
    listed = first_column("placers.md", "The placers")
    assert sorted(name for name in listed if ":" not in name) == sorted(placer_names())


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_the_layers_are_those_of_the_import_contract(page: str) -> None:
    """A line of the page has one or more layers of the contract, from the bottom up."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    left = [set(re.findall(r"doppler\.(\w+)", layer)) for layer in reversed(layers)]
    listed = re.search(r"(?ms)^ *```text\n *(errors$.*?)^ *```", (ROOT / page).read_text("utf-8"))
    assert listed is not None
    for line in listed[1].strip().splitlines():
        names = set(line.strip().split("  ")[0].split(" · "))
        found: set[str] = set()
        while left and not names <= found:
            found |= left.pop(0)
        assert names == found
    assert left == []


def test_the_readme_shows_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for how long planning took, and for what the policy makes and the timeline of that.

    A policy's choices depend on how processors round, but are much the same everywhere.
    """
    block = next(block for block in blocks(ROOT / "README.md", "console") if "$ dop demo" in block)
    monkeypatch.chdir(tmp_path)
    dop = runner(capsys, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    shown, printed = block.split("\n", 1)[1], dop("demo").out

    def essence(text: str) -> list[str]:
        lines = [re.sub(r"[\d.]+ (µs|ms|s)\s*$", "", line).strip() for line in text.splitlines()]
        kept = [re.sub(r"─+", "─", line) for line in lines if line]
        return [re.sub(r"^(doppler(?= +\d)|gpu\d run|in\b|0\b).*", r"\1", line) for line in kept]

    def makespan_ms(text: str) -> float:
        found = re.search(r"^ ?doppler +([\d.]+) ms", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    assert essence(shown) == essence(printed)
    assert len(shown.splitlines()) == len(printed.splitlines())
    assert makespan_ms(printed) == pytest.approx(makespan_ms(shown), rel=0.02)


def test_the_readme_shows_what_place_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for how long planning took."""
    page = (ROOT / "README.md").read_text("utf-8")
    toy = re.search(r"(?ms)^`toy.json`:\n\n```json\n(.*?)^```", page)
    block = next(b for b in blocks(ROOT / "README.md", "console") if "$ dop place toy.json" in b)
    assert toy is not None
    (tmp_path / "toy.json").write_text(toy[1])
    monkeypatch.chdir(tmp_path)
    command, shown = block.split("\n$ ")[0].split("\n", 1)
    printed = runner(capsys, monkeypatch)(*shlex.split(command)[2:]).out

    def essence(text: str) -> list[str]:
        lines = [re.sub(r"placed in .*", "", line).rstrip() for line in text.splitlines()]
        return [line for line in lines if line]

    assert essence(printed) == essence(shown)


@pytest.mark.parametrize("module", ["doppler", "doppler.graph.builder", "doppler.graph.signatures"])
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
