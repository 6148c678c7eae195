"""Placers of one's own: from a module, or from an installed package."""

import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.errors import DopplerError, PlacerError, UnknownNameError
from doppler.placers.base import Placer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "doppler.placers"  # of entry points
EXPECTED = (
    "a placer has a text `name` and a method `place(problem, *, seed=0, budget_s=None)` that "
    "returns an Assignment"
)

_log = logging.getLogger(__name__)


def check_placer(value: Any, where: str = "") -> Placer:
    """The value, if it is a placer; `where` says where it comes from."""
    where = where or f"an object of type `{type(value).__name__}`"
    if isinstance(value, type):
        raise PlacerError(
            f"the class `{value.__name__}` is not a placer", hint=f"make one: {value.__name__}()"
        )
    if not callable(getattr(value, "place", None)):
        raise PlacerError(f"{where} is not a placer: it has no method `place`", hint=EXPECTED)
    name = getattr(value, "name", None)
    if not isinstance(name, str) or not name:
        raise PlacerError(f"{where} is not a placer: its `name` is {name!r}", hint=EXPECTED)
    placer: Placer = value
    return placer


def is_reference(text: str) -> bool:
    """Whether a text may name an object in a module, as in `package.module:MyPlacer`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(
        part.isidentifier() for part in (*module.split("."), *attribute.split("."))
    )


def load_placer(reference: str, *, known: list[str]) -> Placer:
    """The placer that `package.module:MyPlacer` refers to: a class, a placer or a factory.

    The module may be in the current folder, as for `python -m`. `known` are the placers that may
    have been meant if there is no such module.
    """
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    where = f"`{reference}`"
    module, _, attribute = reference.partition(":")
    try:
        found = _attempt(partial(import_module, module), where, "its import failed")
    except PlacerError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{module}.".startswith(f"{cause.name}."):
            unknown = UnknownNameError("placer or module", str(cause.name), known)
            unknown.hint = f"{unknown.hint}; modules are looked for in this folder and sys.path"
            raise unknown from None
        raise
    try:
        value = attrgetter(attribute)(found)
    except AttributeError:
        raise PlacerError(
            f"placer {where}: module `{module}` has no `{attribute}`",
            hint=f"it is `{found.__file__}`" if getattr(found, "__file__", None) else None,
        ) from None
    return _made(value, where)


def installed_placers(taken: list[str]) -> dict[str, "EntryPoint"]:
    """By name, the placers that installed packages bring, but for those whose name is taken."""
    from importlib.metadata import entry_points  # takes a while to import

    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, package_of(p))):
        if point.name in taken or point.name in found:
            _log.warning(
                "placer `%s` of package `%s` is left out: the name is taken",
                point.name,
                package_of(point),
            )
        else:
            found[point.name] = point
    return found


def package_of(point: "EntryPoint") -> str:
    """The name of the package that brings an entry point."""
    return point.dist.name if point.dist is not None else "unknown"


def load_installed(point: "EntryPoint") -> Placer:
    """The placer of an installed package."""
    where = f"`{point.name}` of package `{package_of(point)}`"
    return _made(_attempt(point.load, where, "its import failed"), where)


def describe(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    reason = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def _made(value: Any, where: str) -> Placer:
    """The placer that a class or a factory makes, or the value if it is one."""
    if isinstance(value, type) or (callable(value) and not hasattr(value, "place")):
        value = _attempt(value, where, "it cannot be made")
    return check_placer(value, where)


def _attempt(step: Callable[[], Any], where: str, what: str) -> Any:
    """What a step of somebody else's code returns; a `PlacerError` if it fails."""
    try:
        return step()
    except (DopplerError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise PlacerError(f"placer {where}: {what}: {describe(error)}") from error
