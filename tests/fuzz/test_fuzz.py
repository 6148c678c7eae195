"""Any bytes, as any of the files that `dop` reads, and any words on its command line.

`dop` works or refuses: exit 0 or 2, no traceback, no warning, nothing printed that a terminal might
obey, and no file touched but the one that `-o` names, and that only on success.

`make fuzz` runs many more cases, with another seed each time; `FUZZ_CASES` says how many.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fuzz import documents
from fuzz.documents import (
    ASSIGNMENT,
    CHECKPOINT,
    GRAPH,
    KERNELS,
    PROGRAM_DEVICES,
    TEXTS,
    TIMED,
    TOPOLOGY,
    TRACE,
    UNNAMED,
    changed,
    dumped,
)
from fuzz.running import Case, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = 13  # that share the cases
CASES = int(os.environ.get("FUZZ_CASES", "0"))
SETTINGS = settings(
    max_examples=CASES // TESTS + 1 if CASES else 110,
    derandomize=not CASES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SLOWER = {"models": 5, "onnx_models": 2}  # than the others, and so there are as many times fewer
PLACERS = ["single", "round-robin", "critical-path", "heft"]
ODD_NAMES = ["[bold].json", "a\x1b[2Jb.json", "x\u202ey.json", "\udcff.json", "a\nb.json", " .json"]
ODD_NAMES += ["漢.json", "\\.json", ":smile:.txt", "plain", ".json", "'x y'.toml"]


def run_cases(cases: st.SearchStrategy[Case], tmp_path: Path) -> None:
    """Check as many cases as there are to be, and say how many there were."""
    count, codes = 0, {0: 0, 2: 0}
    slower = SLOWER.get(name_of(cases), 1)
    chosen = settings(parent=SETTINGS, max_examples=SETTINGS.max_examples // slower)

    @chosen
    @given(cases)
    def each(case: Case) -> None:
        nonlocal count
        count += 1
        root = tmp_path / "case"
        root.mkdir()
        try:
            codes[check(case, root).code] += 1
        finally:
            shutil.rmtree(root)

    each()
    assert count >= chosen.max_examples
    sys.stdout.write(f"{count} cases: {codes[0]} worked, {codes[2]} were refused\n")


def name_of(strategy: object) -> str:
    """What a strategy is about."""
    return str(strategy).removeprefix("about_").partition("(")[0]


@st.composite
def ending(draw: st.DrawFn, files: dict[str, bytes], *, may_write: bool = True) -> Case:
    """The end of a command: how much it prints, and perhaps what it writes."""
    words = draw(st.lists(st.sampled_from(["--json", "-q", "-v", "-vv"]), max_size=2, unique=True))
    links: dict[str, str] = {}
    written = ""
    if may_write:
        files = files | {"old.json": dumped(draw(st.sampled_from([GRAPH, ASSIGNMENT, TRACE])))}
        links = {"link.json": "old.json", "loop": "loop", "dangling": "new.json"}
        targets = {
            "out.json": "out.json",
            "plan.csv": "plan.csv",
            "old.json": "old.json",
            "link.json": "old.json",
            "dangling": "new.json",
            **dict.fromkeys(["-", "/dev/null", "/dev/full", "loop", "folder", "no/such.json"], ""),
            **dict.fromkeys([*files.keys() - {"old.json"}, "."], ""),
            **{name: name for name in ODD_NAMES if name not in files},
        }
        target = draw(st.sampled_from([*["out.json"] * 30, *sorted(targets)]))
        words += ["-o", target]
        written = targets[target]
        words += ["--force"] if draw(st.integers(0, 3)) == 0 else []
    return Case(words, files, written=written, links=links)


def is_named(word: str, name: str) -> bool:
    """Whether a word names a file, as in `p` and `doppler:p`."""
    return word == name or word.endswith(f":{name}")


@st.composite
def command(
    draw: st.DrawFn,
    verb: list[str],
    files: dict[str, bytes],
    *,
    may_write: bool = True,
    must_write: bool = False,
) -> Case:
    """A command on files, one of which may come through the standard input, or have an odd name."""
    files = {name: files[name] for name in files if any(is_named(word, name) for word in verb)}
    stdin = b""
    name = draw(st.sampled_from(sorted(files)))
    how = draw(st.integers(0, 9))
    if how == 0:
        stdin, new = files.pop(name), "-"
    else:
        new = draw(st.sampled_from(ODD_NAMES)) if how == 1 else name
        files[new] = files.pop(name)
    verb = [f"{word.removesuffix(name)}{new}" if is_named(word, name) else word for word in verb]
    writes = must_write or (may_write and draw(st.booleans()))
    case = draw(ending(files, may_write=writes))
    return Case([*verb, *case.arguments], case.files, stdin, case.written, case.links)


@st.composite
def about_graphs(draw: st.DrawFn) -> Case:
    files = {"g.json": draw(documents.graphs), "m.json": dumped(TOPOLOGY)}
    machine = draw(st.sampled_from([[], ["-t", "m.json"], ["-t", "reference:2"], ["-t", "cpu2"]]))
    match draw(st.sampled_from(["show", "place", "place", "import", "simulate", "execute"])):
        case "show":
            return draw(command(["show", "g.json", *machine], files, may_write=False))
        case "place":
            placer = draw(st.sampled_from(PLACERS))
            full = draw(st.sampled_from([[], ["--full"], ["--mode", "fixed"]]))
            return draw(command(["place", "g.json", *machine, "-p", placer, *full], files))
        case "import":
            kinds = [
                ["--format", "doppler"],
                *(["--to", each] for each in ("dot", "stg", "wfformat")),
            ]
            kind = draw(st.sampled_from([[], *kinds]))
            return draw(command(["import", "g.json", *kind], files, must_write=True))
        case "simulate":
            files["a.json"] = dumped(UNNAMED)
            return draw(command(["simulate", "g.json", "a.json", *machine], files))
        case _:
            files["a.json"] = dumped(UNNAMED)
            verb = ["execute", "g.json", "a.json", *machine, "--backend", "null", "--repeat", "1"]
            return draw(command(verb, files))


@st.composite
def about_topologies(draw: st.DrawFn) -> Case:
    files = {"m.toml": draw(documents.topologies)}
    match draw(st.sampled_from(["show", "place", "simulate"])):
        case "show":
            return draw(command(["show", "m.toml"], files, may_write=False))
        case "place":
            files["g.json"] = dumped(draw(st.sampled_from([GRAPH, TIMED])))
            placer = draw(st.sampled_from(PLACERS))
            return draw(command(["place", "g.json", "-t", "m.toml", "-p", placer], files))
        case _:
            files |= {"g.json": dumped(GRAPH), "a.json": dumped(UNNAMED)}
            return draw(command(["simulate", "g.json", "a.json", "-t", "m.toml"], files))


@st.composite
def about_assignments(draw: st.DrawFn) -> Case:
    graph = draw(st.sampled_from([GRAPH, TIMED]))
    files = {"a.json": draw(documents.assignments), "g.json": dumped(graph)}
    files |= {"m.json": dumped(TOPOLOGY)}
    machines = [[], ["-t", "p100x4"], ["-t", "reference:2"], ["-t", "m.json"]]
    machine = draw(st.sampled_from(machines))
    match draw(st.sampled_from(["show", "show with", "simulate", "execute", "view"])):
        case "view":
            verb = ["view", "a.json", "--graph", "g.json", *machine]
            return draw(command(verb, files, may_write=False))
        case "show":
            full = draw(st.sampled_from([[], ["--full"]]))
            return draw(command(["show", "a.json", *full], files, may_write=False))
        case "show with":
            verb = ["show", "a.json", "-g", "g.json", *machine]
            return draw(command(verb, files, may_write=False))
        case "simulate":
            choices = [[], ["--strategy", "order"], ["--bulk-synchronous"], ["--mode", "fixed"]]
            options = draw(st.sampled_from(choices))
            return draw(command(["simulate", "g.json", "a.json", *machine, *options], files))
        case _:
            verb = ["execute", "g.json", "a.json", *machine, "--backend", "null", "--repeat", "1"]
            return draw(command(verb, files))


@st.composite
def about_traces(draw: st.DrawFn) -> Case:
    files = {"t.json": draw(documents.traces), "g.json": dumped(GRAPH)}
    match draw(st.sampled_from(["report", "show", "view", "view with"])):
        case "report":
            return draw(command(["report", "t.json"], files, must_write=True))
        case "show":
            return draw(command(["show", "t.json"], files, may_write=False))
        case "view":
            return draw(command(["view", "t.json"], files, may_write=False))
        case _:
            verb = ["view", "t.json", "--graph", "g.json", "-t", "p100x4"]
            return draw(command(verb, files, may_write=False))


@st.composite
def about_checkpoints(draw: st.DrawFn) -> Case:
    files = {"p": draw(documents.checkpoints)}
    if draw(st.booleans()):
        return draw(command(["show", "p"], files, may_write=False))
    files["g.json"] = dumped(GRAPH)
    placer = draw(st.sampled_from(["doppler", "doppler", "auto", "gdp"]))
    verb = ["place", "g.json", "-p", f"{placer}:p", "--budget", "0.01"]
    return draw(command(verb, files))


@st.composite
def about_configs(draw: st.DrawFn) -> Case:
    """There is no graph, so that no training begins."""
    files = {"c.toml": draw(documents.configs), "p": CHECKPOINT}
    source = draw(st.sampled_from([[], [], ["--from", "p"], ["--policy", "gdp"]]))
    verb = ["train", "none.json", "--config", "c.toml", *source]
    case = draw(command(verb, files, may_write=False))
    return Case([*case.arguments, "-o", "run"], case.files, case.stdin)


@st.composite
def about_arrays(draw: st.DrawFn) -> Case:
    graph = changed(GRAPH, {"vertices.kernel": KERNELS})
    files = {"x.npz": draw(documents.arrays), "g.json": dumped(graph), "a.json": dumped(UNNAMED)}
    verb = ["execute", "g.json", "a.json", "--inputs", "x.npz", "--backend", "null"]
    return draw(command(verb, files))


@st.composite
def about_kernels(draw: st.DrawFn) -> Case:
    """These run."""
    pytest.importorskip("torch")
    placed = dumped(UNNAMED | {"devices": PROGRAM_DEVICES, "order": None})
    files = {"g.json": draw(documents.kernels), "a.json": placed}
    verb = ["execute", "g.json", "a.json", "-t", "cpu2", "--repeat", "1", "--warm-up", "0"]
    if draw(st.booleans()):
        return draw(command(verb, files))
    case = draw(command([*verb, "--outputs", "r.npz"], files, may_write=False))
    return replace(case, written="r.npz")


@st.composite
def about_pieces(draw: st.DrawFn) -> Case:
    """These run."""
    pytest.importorskip("torch")
    placed = dumped(UNNAMED | {"devices": [None, 0, 1, 0], "order": None})
    files = {"g.json": draw(documents.pieces), "a.json": placed}
    verb = ["execute", "g.json", "a.json", "-t", "cpu2", "--repeat", "1", "--warm-up", "0"]
    return draw(command(verb, files))


@st.composite
def about_models(draw: st.DrawFn) -> Case:
    pytest.importorskip("torch")
    grain = draw(st.sampled_from([[], ["--coarsen", "none"], ["--coarsen", "1"]]))
    files = {"m.pt2": draw(documents.models)}
    return draw(command(["import", "m.pt2", *grain], files, must_write=True))


@st.composite
def about_onnx_models(draw: st.DrawFn) -> Case:
    pytest.importorskip("onnxruntime")
    grain = draw(st.sampled_from([[], ["--coarsen", "none"], ["--coarsen", "1"]]))
    sizes = draw(st.sampled_from([["--dim", "n=3"], ["--dim", "n=3"], [], ["--dim", "n=10000000"]]))
    files = {"m.onnx": draw(documents.onnx_models)}
    return draw(command(["import", "m.onnx", *grain, *sizes], files, must_write=True))


@st.composite
def about_anything(draw: st.DrawFn) -> Case:
    """A file of one kind, whole or broken, where another is expected."""
    whole = st.sampled_from([GRAPH, TIMED, TOPOLOGY, ASSIGNMENT, TRACE]).map(dumped)
    data = st.one_of(whole, documents.garbage, documents.checkpoints, documents.arrays)
    files = {"x": draw(data), "y": draw(data)}
    verbs = [
        ["show", "x"],
        ["show", "x", "-g", "y"],
        ["place", "x", "-p", "single"],
        ["place", "x", "-t", "y", "-p", "heft"],
        ["place", "x", "-p", "doppler:y"],
        ["simulate", "x", "y"],
        ["simulate", "x", "y", "-t", "x"],
        ["execute", "x", "y", "--backend", "null"],
        ["import", "x", "-o", "z.json", "--format", "reference-text"],
    ]
    return draw(command(draw(st.sampled_from(verbs)), files, may_write=False))


@st.composite
def about_words(draw: st.DrawFn) -> Case:
    """A command line of odd words; none of them makes a long command start its work."""
    odd = [text.replace("\0", "") for text in TEXTS] + ODD_NAMES
    odd += ["--", "--seed", "-1", "1e9", "inf", "nan", "--no-such", "-h", "-V", "--budget=inf"]
    odd += ["--size", "batch=1e9", "--parts", "0", "--slowdown", "1,x", "99999999999999999999"]
    texts = st.text(st.characters(exclude_characters="\0"), max_size=6)
    words = draw(st.lists(st.sampled_from(odd) | texts, max_size=4))
    verbs = ["show", "show", "list", "list", "shard", "place", "simulate", "execute", "import"]
    verbs += ["compare", "validate", "no-such-verb", "-q", "--help", "\x1b[2J", draw(texts)]
    verb = draw(st.sampled_from(verbs))
    if verb in ("place", "simulate", "execute", "compare", "validate", "import"):
        words = ["none.json", *words]  # nor that one of them is a graph
    if verb == "list":
        words = [draw(st.sampled_from(["placers", "topologies", "formats", "x"])), *words[:1]]
    return Case([verb, *words], {"[bold].json": dumped(GRAPH)})


@pytest.mark.parametrize(
    "cases",
    [
        about_graphs(),
        about_topologies(),
        about_assignments(),
        about_traces(),
        about_checkpoints(),
        about_configs(),
        about_arrays(),
        about_kernels(),
        about_pieces(),
        about_models(),
        about_onnx_models(),
        about_anything(),
        about_words(),
    ],
    ids=name_of,
)
def test_it_works_or_refuses(cases: st.SearchStrategy[Case], tmp_path: Path) -> None:
    run_cases(cases, tmp_path)
