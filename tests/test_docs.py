"""Every command and every piece of Python in the documentation runs."""

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest
from command_line import runner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("make ", "git ", "pip ")  # set-up and suites, which cannot run inside a test


def write_shown_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows."""
    shown_files = r"(?ms)^`([\w.-]+)`:\n\n```\w*\n(.*?)^```"
    for name, content in re.findall(shown_files, page.read_text("utf-8")):
        (folder / name).write_text(content)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder, as a reader would type them; files shown in the page are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_shown_files(page, tmp_path)
    dop = runner(capsys, monkeypatch)
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            if line.startswith(LONG):
                continue
            command = shlex.split(line, comments=True)
            assert command[0] == "dop", line
            result = dop(*command[1:])
            assert result.code == 0, f"{line}\n{result.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_shown_files(page, tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


def test_the_readme_shows_what_the_demo_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for how long planning took, and for what the policy makes and the timeline of that.

    A policy's choices depend on how processors round, but are much the same everywhere.
    """
    block = next(block for block in blocks(ROOT / "README.md", "console") if "$ dop demo" in block)
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
