"""ViewSession: all that a server shows, and the one file that it may write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from doppler.assignment import Assignment, write_assignment
from doppler.errors import ConfigError, DopplerError
from doppler.graph.graph import Graph
from doppler.report.curves import CurveReader
from doppler.report.data import report_data, runs_data, trace_view
from doppler.report.page import page_html
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.view.config import ViewConfig
from doppler.view.what_if import PLACER, WhatIf

EDITS = {  # what a page may ask for, and with which numbers
    "move": ("vertices", "device"),
    "speed": ("index", "value"),
    "bandwidth": ("index", "value"),
    "undo": (),
    "redo": (),
    "reset": (),
}


@dataclass(frozen=True, slots=True)
class ViewContent:
    """Values that a view shows."""

    title: str
    traces: Mapping[str, Trace] = field(default_factory=dict)
    graph: Graph | None = None
    topology: Topology | None = None
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    lower_bounds_s: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, Path] = field(default_factory=dict)  # directories, by name
    message: str = ""  # why something is not there


class ViewSession:
    """What is shown, with a what-if where there is a graph to place; safe to use from threads."""

    def __init__(
        self,
        shown: ViewContent,
        what_if: WhatIf | None = None,
        *,
        save: Path | None = None,
        force: bool = False,
        config: ViewConfig | None = None,
    ) -> None:
        """`save` is the file that an assignment is saved to, or None; no request names one."""
        self._shown, self._what_if, self._save, self._force = shown, what_if, save, force
        self._told = (-1, 0.0)  # revision and bound of the last answer without an update
        self._config, self._lock = config or ViewConfig(), Lock()
        self._readers = {name: CurveReader(folder) for name, folder in shown.runs.items()}
        report = self._config.report
        self._views = {n: trace_view(t, shown.graph, report) for n, t in shown.traces.items()}

    @property
    def has_unsaved(self) -> bool:
        """Whether there is an assignment that was changed and not saved."""
        return self._what_if is not None and not self._what_if.is_saved

    def page(self, token: str) -> str:
        """The page as it is now; it answers to the server with the token."""
        with self._lock:
            shown, what_if, name = self._shown, self._what_if, self._name()
            views, bounds, ticks = dict(self._views), dict(shown.lower_bounds_s), {}
            if what_if is not None:
                views[name] = what_if.view
                bounds[name], ticks[name] = what_if.bound_s, what_if.tick_s
            data = report_data(
                views,
                graph=shown.graph,
                topology=shown.topology if what_if is None else what_if.topology,
                assignments=shown.assignments,
                lower_bounds_s={n: bound_s for n, bound_s in bounds.items() if bound_s},
                runs=self._curves(),
                config=self._config.report,
                detail=self._config.report.details[0],
                ticks_s=ticks,
            )
            data |= {"title": shown.title, "view": self._document(token)}
        page = page_html(data, connects=True)
        assert page is not None  # no limit was given
        return page

    def _name(self) -> str:
        """The name of the what-if among the traces."""
        name = PLACER.replace("-", " ")
        return f"{name} (changed)" if name in self._shown.traces else name

    def _document(self, token: str) -> dict[str, Any]:
        return {
            "token": token,
            "message": self._shown.message,
            "poll_ms": round(1000 * self._config.poll_s),
            "runs": self._seen(),
            "whatIf": self._state(),
        }

    def _state(self) -> dict[str, Any] | None:
        if self._what_if is None:
            return None
        save = None if self._save is None else str(self._save)
        return self._what_if.document() | {"save": save}

    def _curves(self) -> dict[str, Any]:
        return {n: r.read() if r.has_begun else () for n, r in self._readers.items()}

    def _seen(self) -> str:
        return ".".join(reader.seen for reader in self._readers.values())

    def state(self, since: int, seen: str) -> dict[str, Any]:
        """JSON values: what is new since a revision of the what-if and a state of the runs."""
        with self._lock:
            said: dict[str, Any] = {}
            curves = self._curves()
            if self._seen() != seen:
                said |= {"seen": self._seen(), "runs": runs_data(curves, self._config.report)}
            what_if = self._what_if
            if what_if is None:
                return said
            prove = what_if.prover()
        if prove is not None:
            prove()  # without the lock: changes go on
        with self._lock:
            if what_if.revision != since:
                said |= what_if.update(since) | {"whatIf": self._state()}
            elif prove is not None or self._told != (since, what_if.bound_s):
                # An update that had this bound may have come too late for the page to take it.
                self._told = since, what_if.bound_s
                said |= {"whatIf": self._state(), "bound": what_if.bound_s or None}
            return said

    def edit(self, request: Any) -> dict[str, Any]:
        """Change the what-if as a page asks; JSON values: what is new for that page, or why not."""
        what_if = self._editable()
        action, values, since = _checked(request)
        with self._lock:
            try:
                _apply(what_if, action, values)
            except DopplerError as error:
                return _refused(error)
            return what_if.update(since) | {"whatIf": self._state()}

    def save(self) -> dict[str, Any]:
        """Write the assignment to the file that was given at the start; or say why not."""
        what_if = self._editable()
        if self._save is None:
            raise ConfigError("no file to save to was given", hint="dop view … -o FILE")
        with self._lock:
            try:
                write_assignment(what_if.outcome.assignment, self._save, force=self._force)
            except DopplerError as error:
                return _refused(error)
            what_if.saved()
        return {"saved": str(self._save)}

    def _editable(self) -> WhatIf:
        if self._what_if is None:
            raise ConfigError("there is nothing to change", hint="dop view FILE --graph GRAPH")
        return self._what_if


def _apply(what_if: WhatIf, action: str, values: dict[str, Any]) -> None:
    match action:
        case "move":
            what_if.move(values["vertices"], values["device"])
        case "speed":
            what_if.set_speed(values["index"], values["value"])
        case "bandwidth":
            what_if.set_bandwidth(values["index"], values["value"])
        case "undo":
            what_if.undo()
        case "redo":
            what_if.redo()
        case _:
            what_if.reset()


def _refused(error: DopplerError) -> dict[str, Any]:
    """JSON values: what is wrong with a change that is well-formed."""
    return {"refused": f"{error.message} ({error.hint})" if error.hint else error.message}


def _checked(request: Any) -> tuple[str, dict[str, Any], int]:
    """The action, its values and the revision of a request; an error if it is none."""
    action = request.get("do") if isinstance(request, dict) else None
    if not isinstance(action, str) or action not in EDITS:
        raise ConfigError("the request is none that is known")
    if set(request) != {"do", "since", *EDITS[action]} or type(request["since"]) is not int:
        raise ConfigError(f"the request `{action}` has other values than it needs")
    for key in EDITS[action]:
        if not _is_value(key, request[key]):
            raise ConfigError(f"`{key}` of the request `{action}` is of a wrong type")
    return action, request, request["since"]


def _is_value(key: str, value: Any) -> bool:
    if key == "vertices":
        return isinstance(value, list) and all(type(one) is int for one in value)
    return type(value) is int or (key == "value" and type(value) is float)
