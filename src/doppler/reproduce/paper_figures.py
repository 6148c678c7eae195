"""The figures of the paper: `data/paper.toml`."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

FOUR = ("chainmm", "ffnn", "llama-block", "llama-layer")  # the paper's graphs
TO = " to "  # in columns of Table 4: from which graph to which
# Every table with measured runs of a machine, by the name of its preset.
MEASURED = {
    "p100x4": ("placement", "ablation", "transfer", "seeds", "messages", "memory-8gb"),
    "v100x8": ("eight-gpus", "machines"),
}
ONE_GPU = "one-gpu"


class Figure(NamedTuple):
    """One cell: mean and, where the paper gives it, standard deviation."""

    mean: float
    std: float | None = None


Rows = dict[str, dict[str, Figure]]  # by row and column


@cache
def _document() -> dict[str, dict[str, dict[str, list[float]] | str]]:
    text = (files("doppler.reproduce") / "data" / "paper.toml").read_text("utf-8")
    return tomllib.loads(text)


def paper(table: str) -> Rows:
    """The figures of one of the paper's tables, by row and column.

    >>> paper("placement")["doppler-sys"]["ffnn"]
    Figure(mean=47.4, std=0.7)
    """
    return {
        row: {column: Figure(*values) for column, values in cells.items()}
        for row, cells in _document()[table].items()
        if not isinstance(cells, str)
    }


def where(table: str) -> str:
    """Where in the paper a table is.

    >>> where("placement")
    'Table 2'
    """
    return str(_document()[table]["where"])


def least_measured(machine: str, graph: str) -> float:
    """The least ms that the paper measured on all devices of a machine: no bound may be above.

    >>> least_measured("p100x4", "llama-layer")
    150.6
    """
    return min(
        figure.mean
        for table in MEASURED[machine]
        for row, cells in paper(table).items()
        if row != ONE_GPU
        for column, figure in cells.items()
        if column.rpartition(TO)[2] == graph
    )
