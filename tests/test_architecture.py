"""The shape of the package: one name has one meaning; packages, modules, functions are small."""

import ast
from collections import defaultdict
from pathlib import Path

import doppler
from doppler.cli.main import VERBS

ROOT = Path(doppler.__file__).parent
MAX_MODULES, MAX_MODULE_LINES, MAX_FUNCTION_LINES = 15, 400, 60  # compiled kernels aside
LONG_MODULES: set[str] = set()
# Names of several modules, with the one meaning that all of them share.
SHARED_MODULES = {
    "acting": "how a policy plays episodes: with torch, and its array twin",
    "arrays": "plain numpy arrays: helpers for them, and policies made of them",
    "base": "the base class of a family, or the package below all others",
    "checkpoint": "policies as files: with torch, and the array twin",
    "comparison": "placers side by side on one graph: all, or those of a training run",
    "config": "the configuration of the package",
    "drawing": "the package's value as a small SVG",
    "doppler": "the package, and the paper's placer, whose name it has",
    "engine": "a package and its main module",
    "evaluate": "the values of a program, or of its graph, in numpy",
    "graph": "a package and its main module",
    "guides": "assignments that a policy compares with: where it places, and where it learns",
    "io": "the package's value as a file",
    "kernel": "compiled code of the package",
    "kernels": "kernels of vertices: their torch code, and their measured speed",
    "memory": "memory of devices: drawn, bounded, tracked",
    "placers": "placers, and their conformance suite",
    "plotting": "the package's value as a matplotlib figure; and the command that writes one",
    "presets": "values that come with the package: machines, and configurations",
    "reference": "the readable twin of compiled code",
    "registry": "the package's names, and what they stand for",
    "rivals": "the learned competitors: their policies, and placers that use them",
    "sharding": "a package, and the command that uses it",
    "topology": "a package and its main module",
    "trace": "a package and its main module",
    "training": "a package, and the command that uses it",
}
# Classes named like a module elsewhere, with the one meaning of both.
SHARED_WITH_CLASSES = {
    "Arrays": "plain numpy arrays",
    "Comparison": "placers side by side on one graph",
    "Host": "the host of a topology, and what measures it",
    "Kernel": "code that runs as one piece: of a vertex, or of this package",
    "Memory": "memory of devices",
    "Placer": "a placer, and the module of the exact one",
    "State": "the state of an algorithm under way",
}


def modules() -> dict[str, Path]:
    """Every module and package by its full name, those that begin with an underscore aside."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not parts[-1].startswith("_"):
            found[".".join(parts)] = path
    return found


def public_classes() -> dict[str, list[str]]:
    """The modules that define a public class, by the name of the class."""
    found = defaultdict(list)
    for module, path in modules().items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def modules_by_last_name() -> dict[str, list[str]]:
    found = defaultdict(list)
    for module in modules():
        found[module.rpartition(".")[2]].append(module)
    return found


def test_no_two_public_classes_share_a_name() -> None:
    assert {name: where for name, where in public_classes().items() if len(where) > 1} == {}


def test_modules_share_a_name_only_where_it_means_the_same() -> None:
    shared = {name for name, where in modules_by_last_name().items() if len(where) > 1}
    assert shared == set(SHARED_MODULES)


def test_a_class_named_like_a_module_is_defined_there() -> None:
    named = {name.replace("_", ""): where for name, where in modules_by_last_name().items()}
    elsewhere = {
        name
        for name, defined in public_classes().items()
        if any(where not in defined[0] for where in named.get(name.lower(), []))
    }
    assert elsewhere == set(SHARED_WITH_CLASSES)


def is_kernel(path: Path) -> bool:
    return path.stem == "kernel" or path.stem.endswith("_kernel")


def num_lines(module: str, function: ast.FunctionDef) -> int:
    """Lines of a function; of a command, whose options make it long, those of its body."""
    is_verb = module.startswith("doppler.cli.") and function.name in VERBS
    first = function.body[0].lineno if is_verb else function.lineno
    return int(function.end_lineno or first) - first + 1


def test_packages_are_small() -> None:
    """The command line has a module for each of its verbs, and more."""
    counts = defaultdict(int)
    for path in modules().values():
        counts[path.parent] += path.name != "__init__.py"
    large = {path.name for path, count in counts.items() if count > MAX_MODULES}
    assert large == {"cli"}


def test_modules_are_short() -> None:
    long = {
        module
        for module, path in modules().items()
        if not is_kernel(path) and len(path.read_text("utf-8").splitlines()) > MAX_MODULE_LINES
    }
    assert long == LONG_MODULES


def test_functions_are_short() -> None:
    long = {
        f"{module}.{node.name}"
        for module, path in modules().items()
        if not is_kernel(path)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and num_lines(module, node) > MAX_FUNCTION_LINES
    }
    assert long == set()
