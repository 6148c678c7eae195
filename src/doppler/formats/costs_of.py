"""The explicit seconds of a graph, for formats that know no other costs."""

from doppler.errors import GraphError
from doppler.graph.graph import Graph


def seconds_of(graph: Graph, format_name: str) -> list[float]:
    """The seconds of each vertex, the same on all devices; a `GraphError` where there are none."""
    if graph.exec_s is None or graph.exec_s.shape[1] != 1:
        has = "no seconds" if graph.exec_s is None else "other seconds on each device"
        raise GraphError(
            f"graph `{graph.name}` has {has}, and {format_name} needs one number for each vertex",
            hint="give its vertices `exec_s`, or write it as `dot`",
        )
    found: list[float] = graph.exec_s[:, 0].tolist()
    return found


def number_text(value: float) -> str:
    """A number that reads back equal, without a fraction where it has none."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
