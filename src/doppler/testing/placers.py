"""PlacerContract: what every placer must do, as tests to inherit.

```python
class TestMyPlacer(PlacerContract):
    def placer(self):
        return MyPlacer()
```
"""

import numpy as np

from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph
from doppler.placers.base import Placer
from doppler.placers.bounds.lower import bounds_of
from doppler.placers.solution import solve
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.sim.simulator import Simulator
from doppler.topology.presets import PRESETS, preset


class PlacerContract:
    """Inherit and give `placer`; the test methods come along."""

    def placer(self) -> Placer:
        """The placer under test."""
        raise TypeError("override `placer`")

    def test_gives_every_vertex_a_device_on_every_machine(self) -> None:
        graph = random_dag(vertices=40, depth=6, seed=1)
        for name in PRESETS:
            problem = Problem(graph, preset(name))
            assignment = self.placer().place(problem, seed=0)
            assignment.check(graph, problem.topology)
            makespan = Simulator(problem).run(graph, assignment).makespan_s
            assert makespan >= bounds_of(problem).best_s * (1 - 1e-12)

    def test_same_seed_same_assignment(self) -> None:
        problem = Problem(random_dag(vertices=40, depth=6, seed=2), preset("p100x4"))
        first, second = (self.placer().place(problem, seed=5) for _ in range(2))
        assert first == second

    def test_says_who_made_it_for_what(self) -> None:
        graph, topology = random_dag(vertices=10, depth=3, seed=3), preset("cpu2")
        placer = self.placer()
        assignment = placer.place(Problem(graph, topology))
        assert assignment.placer == placer.name
        assert assignment.topology == topology.name
        assert assignment.graph == graph.digest()

    def test_takes_explicit_costs(self) -> None:
        graph, topology = _explicit(random_dag(vertices=30, depth=5, seed=4)), preset("reference:3")
        self.placer().place(Problem(graph, topology)).check(graph, topology)

    def test_takes_one_device(self) -> None:
        graph, topology = _explicit(random_dag(vertices=12, depth=3, seed=5)), preset("reference:1")
        assignment = self.placer().place(Problem(graph, topology))
        assert set(assignment.devices[graph.assigned].tolist()) == {0}

    def test_takes_a_graph_with_nothing_to_assign(self) -> None:
        builder = GraphBuilder("inputs only")
        builder.input("x", output_bytes=8)
        graph, topology = builder.build(), preset("p100x4")
        assert self.placer().place(Problem(graph, topology)).devices.tolist() == [-1]

    def test_takes_an_empty_graph(self) -> None:
        graph = GraphBuilder("empty").build()
        for name in (*PRESETS, "reference:1"):
            problem = Problem(graph, preset(name))
            solution = solve(self.placer(), problem)
            assert solution.assignment.devices.tolist() == []
            assert Simulator(problem).run(graph, solution.assignment).makespan_s == 0
            assert solution.bound_s == bounds_of(problem).best_s == 0

    def test_takes_one_vertex(self) -> None:
        builder = GraphBuilder("one vertex")
        builder.op("v", "matmul", reads=[], output_bytes=8, exec_s=[3.0, 1.0], transfer_s=1.0)
        graph, topology = builder.build(), preset("reference:2")
        solve(self.placer(), Problem(graph, topology))

    def test_order_names_each_vertex_after_its_producers(self) -> None:
        graph, topology = random_dag(vertices=40, depth=8, seed=6), preset("p100x4")
        order = self.placer().place(Problem(graph, topology)).order
        if order is None:
            return
        assert sorted(order.tolist()) == graph.assigned.tolist()
        position = np.full(graph.num_vertices, -1)
        position[order] = np.arange(len(order))
        producers = graph.tensor_producer[graph.edge_tensor]
        assert (position[producers] < position[graph.edge_reader]).all()


def _explicit(graph: Graph) -> Graph:
    """The graph with seconds of its own."""
    from doppler.graph.builder import build_graph

    columns = graph.columns()
    columns["exec_s"] = graph.flops.tolist()
    columns["transfer_s"] = graph.tensor_bytes.tolist()
    return build_graph(**columns)
