"""Benchmarks run as scripts, in one process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

FOLDER = Path(__file__).parents[1] / "benchmarks"
MISSING = ("pymetis", "mtkahypar", "ortools", "gymnasium", "typer", "rich")
# A line of input has the name of a script, values of its constants, and command lines; the line of
# output has what each of them prints. The first argument names packages that cannot be imported.
PROCESS = f"""
import contextlib, io, importlib, json, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
sys.path.insert(0, {str(FOLDER)!r})
for line in sys.stdin:
    name, constants, commands = json.loads(line)
    script, printed = importlib.import_module(name), []
    vars(script).update(constants)
    for command in commands:
        sys.argv = [name, *command]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            script.main()
        printed.append(out.getvalue())
    print(json.dumps(printed), flush=True)
"""
Printed = Callable[..., list[str]]


@contextmanager
def scripts(missing: Sequence[str] = ()) -> Iterator[Printed]:
    """What a script prints for each of some command lines, where some packages are missing."""
    command = [sys.executable, "-c", PROCESS, " ".join(missing)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(script: str, *commands: tuple[str, ...], **constants: object) -> list[str]:
            process.stdin.write(json.dumps((script, constants, commands)) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, f"{script} failed"
            return [str(text) for text in json.loads(answer)]

        yield run
        process.stdin.close()
