import pickle
from dataclasses import replace

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from doppler.cost import Costs, DefaultCostModel, GivenCosts
from doppler.errors import ConfigError
from doppler.graph import Graph, GraphBuilder, build_graph
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import Topology, preset


def diamond() -> Graph:
    b = GraphBuilder("diamond")
    x = b.input("x", output_bytes=8)
    a = b.op("a", "matmul", reads=[x], output_bytes=1.5, exec_s=[2.0, 4.0], transfer_s=3.0)
    c = b.op("b", "matmul", reads=[a], output_bytes=4, exec_s=[1.0, 1.0], transfer_s=5.0)
    b.op("c", "matmul", reads=[a, c, x], output_bytes=2, exec_s=[6.0, 2.0], transfer_s=0.0)
    return b.build()


class Counting:
    """The default costs, and how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def costs(self, graph: Graph, topology: Topology) -> Costs:
        self.asked += 1
        return DefaultCostModel().costs(graph, topology)


def test_is_priced_once_and_only_when_needed() -> None:
    model = Counting()
    problem = Problem(diamond(), preset("reference:2"), model)
    assert problem.num_reads.tolist() == [0, 0, 1, 2]
    assert model.asked == 0
    _ = problem.costs, problem.bottom_levels, problem.link_class, problem.digest()
    assert model.asked == 1


def test_derived_arrays_leave_inputs_out() -> None:
    problem = Problem(diamond(), preset("reference:2"))
    edges = problem.edges
    assert edges.ptr.tolist() == [0, 0, 2, 3, 3]
    assert edges.producer.tolist() == [1, 1, 2]
    assert edges.reader.tolist() == [2, 3, 3]
    assert edges.tensor.tolist() == [1, 1, 2]
    assert problem.counted_bytes.tolist() == [0, 2, 4, 2]
    assert problem.whole_bytes.tolist() == [8, 2, 4, 2]
    assert problem.working_bytes.tolist() == [0, 2, 6, 8]
    assert problem.mean_exec_s.tolist() == [0, 3, 1, 4]
    assert problem.slot_ptr.tolist() == [0, 1, 2]


@given(st.data())
def test_tables_by_pair_and_by_link_agree_with_the_costs(data: st.DataObject) -> None:
    topology = data.draw(strategies.topologies())
    graph = data.draw(strategies.graphs(num_devices=topology.num_devices))
    problem = Problem(graph, topology)
    costs, table = problem.costs, problem.transfer_table(range(topology.num_links))
    for a, b in np.ndindex(topology.route.shape):
        link = int(topology.route[a, b])
        if link < 0:
            assert problem.latency_s[a, b] == problem.s_per_byte[a, b] == 0
            continue
        assert problem.latency_s[a, b] == costs.latency_s[link]
        for t in range(graph.num_tensors):
            assert table[t, link] == costs.transfer_s(graph, t, link)
        like = problem.distinct_links[problem.link_class[link]]
        assert (table[:, like] == table[:, link]).all()
    assert (np.diff(np.sort(problem.distinct_links)) > 0).all()


def test_kernels_need_no_table_of_tensors_and_links() -> None:
    """On 64 devices, each with a link to each other, it would take most of a short budget."""
    graph = random_dag(vertices=50, seed=0)
    topology = Topology.uniform(8, flops_per_s=1e13, bandwidth_bytes_per_s=1e10)
    arrays = Simulator(topology).arrays(graph)
    most = max(np.size(array) for array in arrays)
    assert most < graph.num_tensors * topology.num_links
    assert Problem(graph, topology).distinct_links.tolist() == [0]


def test_digest_depends_on_the_costs() -> None:
    graph, topology = diamond(), preset("reference:2")
    problem = Problem(graph, topology)
    twice = Costs(
        2 * problem.costs.exec_s,
        *(np.zeros(n) for n in (4, topology.num_links, topology.num_links)),
    )
    assert Problem(graph, topology).digest() == problem.digest()
    assert Problem(graph, topology, GivenCosts(twice)).digest() != problem.digest()


def test_digest_depends_on_input_kinds_and_host_links() -> None:
    graph, topology = diamond(), preset("reference:2")
    variants = [
        graph,
        build_graph(**graph.columns() | {"input_kinds": ["resident", "", "", ""]}),
        build_graph(**graph.columns() | {"input_kinds": ["streamed", "", "", ""]}),
        build_graph(**graph.columns() | {"temporary_bytes": [0, 0, 1, 0]}),
    ]
    digests = {Problem(each, topology).digest() for each in variants}
    digests.add(Problem(graph, replace(topology, host_links=(0, 0))).digest())
    assert len(digests) == 5


def test_survives_pickling() -> None:
    problem = Problem(diamond(), preset("reference:2"))
    assert pickle.loads(pickle.dumps(problem)).digest() == problem.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exec_s": np.ones((4, 3))}, "exec_s of shape"),
        ({"fixed_s": np.ones(1)}, "fixed_s of shape"),
        ({"exec_s": np.full((4, 2), -1.0)}, "exec_s that is negative"),
        ({"fixed_s": np.full(4, np.nan)}, "fixed_s that is negative or not finite"),
        ({"exec_s": np.ones((4, 2))}, "inputs exec_s other than 0"),
    ],
)
def test_costs_that_cannot_be_costs_are_refused(change: dict[str, object], message: str) -> None:
    graph, topology = diamond(), preset("reference:2")
    right = Problem(graph, topology).costs
    fields = {name: getattr(right, name) for name in right.__slots__}
    model = GivenCosts(Costs(**fields | change))
    with pytest.raises(ConfigError, match=message):
        _ = Problem(graph, topology, model).costs
