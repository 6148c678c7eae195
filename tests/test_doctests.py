"""Every public name has an example in its docstring, and all of these run."""

import doctest
import inspect
import os
import sys
from pathlib import Path

import pytest

import doppler


@pytest.mark.parametrize("name", [n for n in doppler.__all__ if n not in ("errors", "programs")])
def test_a_public_name_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = getattr(doppler, name)
    known = dict(vars(sys.modules[value.__module__]))
    text = inspect.getdoc(value) or ""
    example = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    assert example.examples, f"{name} has no example"
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.failed == 0, os.linesep.join(report)
