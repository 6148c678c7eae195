from typing import Any

import numpy as np
import pytest

import doppler as dp
from doppler.errors import ConfigError, PlacerError, UnknownNameError, WrongTypeError
from doppler.problem import Problem


def test_names_and_objects_are_compared_best_first() -> None:
    class Everywhere:  # cannot be pickled
        name = "everywhere"

        def place(
            self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
        ) -> dp.Assignment:
            graph, size = problem.graph, problem.topology.num_devices
            devices = (np.arange(graph.num_vertices) + seed) % size
            return dp.Assignment(np.where(graph.is_input, -1, devices))

    class Broken(Everywhere):
        name = "broken"

        def place(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Any:
            raise ZeroDivisionError

    graph, topology = dp.programs.random_dag(vertices=20, depth=4, seed=0), "p100x4"
    rows = dp.compare(graph, topology, [Broken(), Everywhere(), "critical-path"], seeds=3, seed=1)
    assert {row.placer for row in rows[:2]} == {"everywhere", "critical-path"}
    assert rows[0].makespan_s <= rows[1].makespan_s
    assert (rows[2].placer, rows[2].error) == (
        "broken",
        "placer `broken` failed: ZeroDivisionError",
    )
    own = next(row for row in rows if row.placer == "everywhere")
    placed = Everywhere().place(Problem(graph, dp.Topology.preset(topology)), seed=1)
    assert own.makespan_s == dp.simulate(graph, topology, placed).makespan_s
    assert own.lower_bound_s == dp.lower_bounds(graph, topology).best_s


def test_two_placers_of_one_name_each_have_a_row() -> None:
    graph = dp.GraphBuilder("empty").build()
    placers = [dp.make_placer("single"), "single"]
    rows = dp.compare(graph, "cpu2", placers, seeds=1)
    assert [(row.placer, row.makespan_s, row.gap) for row in rows] == [("single", 0.0, 0.0)] * 2
    assert dp.compare(graph, "cpu2", []) == []


def test_mistakes_are_found_before_anything_runs() -> None:
    graph = dp.GraphBuilder("empty").build()
    with pytest.raises(UnknownNameError, match="hetf"):
        dp.compare(graph, "cpu2", ["single", "hetf"])
    with pytest.raises(PlacerError, match="no method `place`"):
        dp.compare(graph, "cpu2", ["single", 4])  # type: ignore[list-item]
    with pytest.raises(WrongTypeError, match="a list of names"):
        dp.compare(graph, "cpu2", "single")
    with pytest.raises(ConfigError, match="budget_s"):
        dp.compare(graph, "cpu2", ["annealing"], budget_s=-1)
    with pytest.raises(ConfigError, match="seeds"):
        dp.compare(graph, "cpu2", ["single"], seeds=0)
