"""The rivals' networks: shapes, orders, groups, and that vertices may have any number."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from doppler.errors import ConfigError, UnknownNameError  # noqa: E402
from doppler.graph import Graph  # noqa: E402
from doppler.graph.builder import GraphBuilder, build_graph  # noqa: E402
from doppler.mdp import make_instance  # noqa: E402
from doppler.mdp.instance import Instance  # noqa: E402
from doppler.mdp.rollout import GREEDY, Sampling  # noqa: E402
from doppler.policies.configs import (  # noqa: E402
    AnyConfig,
    GdpConfig,
    PlacetoConfig,
    Seq2SeqConfig,
)
from doppler.policies.kinds import make_any  # noqa: E402
from doppler.policies.rivals import placeto, seq2seq  # noqa: E402
from doppler.policies.rivals.base import fixed_order, mixed, pick  # noqa: E402
from doppler.policies.rivals.placeto import reachable  # noqa: E402
from doppler.policies.rivals.seq2seq import grouped  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.programs import random_dag  # noqa: E402
from doppler.topology import Topology  # noqa: E402

CONFIGS: dict[str, AnyConfig] = {
    "placeto": PlacetoConfig(width=4, rounds=2, devices=4),
    "placeto improve": PlacetoConfig(width=4, rounds=2, devices=4, form="improve"),
    "gdp": GdpConfig(width=8, segment=7, devices=4),
    "seq2seq": Seq2SeqConfig(width=8, devices=4),
    "seq2seq in groups": Seq2SeqConfig(width=8, groups=9, devices=4),
}
SIZE = 20


def generator(seed: int = 0) -> Any:
    return torch.Generator().manual_seed(seed)


def instance(graph: Graph | None = None) -> Instance:
    graph = graph or random_dag(vertices=SIZE, depth=5, seed=0)
    return make_instance(Problem(graph, Topology.preset("p100x4")))


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_and_that_acting_sees_what_gradients_see(name: str) -> None:
    policy: Any = make_any(CONFIGS[name], 1)
    view = policy.view(instance())
    steps = 9 if "groups" in name else SIZE
    taken = policy.act(view, 6, Sampling(), generator())
    sampled = policy.choices(view, taken, Sampling())
    assert taken.shape == sampled.log_probs.shape == sampled.entropies.shape == (6, steps)
    assert view.devices(taken).shape == (6, SIZE)
    log_probs = policy.log_probs(view, taken)
    assert torch.allclose(log_probs.exp().sum(dim=2), torch.ones(6, steps))
    greedy = policy.act(view, 1, GREEDY, generator())
    assert torch.equal(policy.log_probs(view, greedy).argmax(dim=2), greedy)
    (sampled.log_probs.sum() + sampled.entropies.sum()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in policy.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_samples_follow_the_lottery(name: str) -> None:
    """The first choice of many episodes has the frequencies that its log-probabilities say."""
    policy: Any = make_any(CONFIGS[name], 1)
    view = policy.view(instance())
    count = 400 if name.startswith("placeto") else 2000
    taken = policy.act(view, count, Sampling(), generator())
    expected = policy.log_probs(view, taken[:1])[0, 0].exp()
    found = torch.bincount(taken[:, 0], minlength=4) / count
    assert torch.allclose(found, expected, atol=4 * 0.5 / count**0.5)


def plain_logits(policy: Any, view: Any, taken: Any, step: int) -> Any:
    """(D,) Placeto's logits at one step of one episode, as its formulas are written down."""
    n, weight = len(view.order), policy.state.weight
    hidden = policy.static(view.static)
    at = torch.tensor([taken[v] if v < step else view.start for v in range(n)])
    on = torch.nn.functional.one_hot(at, policy.config.devices + 1)[:, :-1]
    flags = torch.tensor([[float(v == step), float(v < step)] for v in range(n)])
    first = policy.embed(torch.relu(hidden + torch.cat([on, flags], dim=1) @ weight.T))
    ends = []
    for way, hears in enumerate(view.ways.both):
        mean = torch.tensor(hears.toarray())
        mean = mean / mean.sum(dim=1, keepdim=True).clamp(min=1.0)
        x = first
        for _ in range(policy.config.rounds):
            sent = torch.relu(x @ policy.send.weight[way] + policy.send.bias[way])
            heard = mean @ sent
            x = first + torch.relu(heard @ policy.receive.weight[way] + policy.receive.bias[way])
        ends.append(x)
    e = torch.cat(ends, dim=1)
    parts = [e[step]]
    for i, weights in enumerate(torch.as_tensor(view.groups(np.array([step]))[0])):
        parts.append(torch.relu(policy.outside[i](weights @ torch.relu(policy.inside[i](e)))))
    normal = (torch.cat(parts) - policy.normal.center) / policy.normal.spread
    return policy.head(normal)


def read_twice() -> Graph:
    """A vertex that reads two tensors of one producer, another that reads one of them, and more."""
    g = GraphBuilder("read twice")
    first = g.vertex("first", "matmul", exec_s=1)
    a, b = (g.tensor(first, size, transfer_s=1) for size in (1, 2))
    reads = [a, b]
    for number in range(SIZE - 1):
        costs = {"exec_s": 1 + number, "transfer_s": 1}
        made = g.op(f"v{number}", "matmul", reads=reads, output_bytes=1, **costs)
        reads = [made, b]
    return g.build()


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("form", ["pass", "improve"])
@pytest.mark.parametrize("steps", [1 << 20, 7 * SIZE, 1])
@pytest.mark.parametrize("graph", [None, read_twice()], ids=["random", "read twice"])
def test_what_steps_share_changes_nothing(
    rounds: int, form: str, steps: int, graph: Graph | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placeto as it is computed is Placeto as it is written down, step by step."""
    monkeypatch.setattr(placeto, "STEPS", steps)
    policy: Any = make_any(PlacetoConfig(width=4, rounds=rounds, devices=4, form=form), 1)
    view = policy.view(instance(graph))
    policy.log_probs(view, policy.act(view, 3, Sampling(), generator()))
    policy.after_step()
    seen: list[Any] = []
    real = placeto.play

    def noted(*given: Any) -> None:
        real(*given)
        seen.append(torch.as_tensor(given[7]))

    monkeypatch.setattr(placeto, "play", noted)
    taken = policy.act(view, 2, Sampling(), generator())
    plain = [[plain_logits(policy, view, t.tolist(), step) for step in range(SIZE)] for t in taken]
    expected = torch.stack([torch.stack(rows) for rows in plain])
    assert torch.allclose(seen[0], expected, atol=1e-5)
    log_probs = policy.log_probs(view, taken)
    assert torch.allclose(log_probs, expected.log_softmax(dim=2), atol=1e-5)
    weights = torch.rand(log_probs.shape, generator=generator())
    grads = [
        torch.autograd.grad((weights * found).sum(), list(policy.parameters()), allow_unused=True)
        for found in (log_probs, expected.log_softmax(dim=2))
    ]
    for mine, right in zip(*grads, strict=True):
        assert (mine is None) == (right is None)
        assert mine is None or torch.allclose(mine, right, atol=1e-4)


def plain_episodes(policy: Any, view: Any, count: int, sampling: Sampling, seed: int) -> Any:
    """(B, g) devices and (g, B, D) logits of the sequence placer, in torch, step by step."""
    drawn, logits, taken = generator(seed), [], []
    with torch.no_grad():
        encoded, *first = policy._encode(view)
        state = tuple(each.repeat(1, count, 1) for each in first)
        before = torch.full((count, 1), policy.config.devices)
        for step in range(view.num_steps):
            here = encoded[step].expand(count, 1, -1)
            found, state = policy._decode(before, here, state, encoded)
            logits.append(found[:, 0])
            taken.append(pick(logits[-1], sampling, drawn))
            before = taken[-1].unsqueeze(1)
    return torch.stack(taken, dim=1), torch.stack(logits)


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq in groups"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(epsilon=0.3, place_temperature=0.7), GREEDY]
)
@pytest.mark.parametrize(("vertices", "count"), [(1, 3), (20, 1), (60, 17)])
def test_compiled_sequences_are_those_of_torch(
    name: str, sampling: Sampling, vertices: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = seq2seq.play

    def noted(*given: Any) -> None:
        real(*given)
        seen.append(torch.as_tensor(given[5]))

    monkeypatch.setattr(seq2seq, "play", noted)
    for seed in range(3):
        policy: Any = make_any(CONFIGS[name], seed)
        graph = random_dag(vertices=vertices, depth=min(vertices, 9), seed=seed)
        view = policy.view(instance(graph))
        found = policy.act(view, count, sampling, generator(seed))
        taken, logits = plain_episodes(policy, view, count, sampling, seed)
        assert torch.equal(found, taken)
        assert torch.equal(
            policy.act(policy.on(view).view, count, sampling, generator(seed)), taken
        )
        assert torch.allclose(seen[-1], logits, atol=1e-5)


def test_placeto_normalises_what_it_decides_by() -> None:
    policy: Any = make_any(CONFIGS["placeto"], 1)
    view = policy.view(instance())
    taken = policy.act(view, 64, Sampling(), generator())
    seen: list[Any] = []
    policy.head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    before = policy.log_probs(view, taken)
    policy.after_step()
    after = policy.log_probs(view, taken)
    assert not torch.allclose(before, after)
    mean, spread = (f(seen[-1].flatten(0, 1), 0) for f in (torch.mean, torch.std))
    assert mean.abs().max() < 1e-3
    assert spread.max() < 1.01
    assert spread.max() > 0.9
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    policy.act(view, 2, Sampling(), generator())
    policy.zero_grad()
    with torch.no_grad():
        policy.log_probs(view, taken[:2])
    assert all(torch.equal(state[name], tensor) for name, tensor in policy.state_dict().items())


@pytest.mark.parametrize("name", ["placeto", "placeto improve"])
def test_large_and_small_chunks_and_recomputation_agree(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Any = make_any(CONFIGS[name], 1)
    view = policy.view(instance())
    taken = policy.act(view, 3, Sampling(), generator())
    found = []
    for chunk, saved in ((1 << 20, 1 << 30), (1, 1 << 30), (100, 0)):
        monkeypatch.setattr(placeto, "CHUNK", chunk)
        monkeypatch.setattr(placeto, "MAX_SAVED", saved)
        policy.zero_grad()
        log_probs = policy.log_probs(view, taken)
        log_probs[..., 0].sum().backward()
        found.append((log_probs.detach(), policy.static.weight.grad.clone()))
    for log_probs, grad in found[1:]:
        assert torch.allclose(log_probs, found[0][0], atol=1e-5)
        assert torch.allclose(grad, found[0][1], atol=1e-4)


def test_placeto_sees_what_was_placed_and_nothing_that_comes_later() -> None:
    policy: Any = make_any(CONFIGS["placeto"], 1)
    view = policy.view(instance())
    taken = policy.act(view, 1, Sampling(), generator())
    other = taken.clone()
    other[0, 10] = (other[0, 10] + 1) % 4
    one, two = policy.log_probs(view, taken)[0], policy.log_probs(view, other)[0]
    assert torch.equal(one[:11], two[:11])
    assert not torch.allclose(one[11:], two[11:])


def relabelled(graph: Graph, order: np.ndarray) -> Graph:
    """The same graph with its vertices in another order."""
    back = np.argsort(order)
    columns = graph.columns()
    texts = ("vertex_names", "kinds", "input_kinds", "meta_ops", "roles", "dtypes")
    for name in (*texts, "kernels"):
        if len(columns[name]):
            columns[name] = tuple(columns[name][v] for v in order.tolist())
    for name in ("flops", "touched_bytes", "temporary_bytes"):
        columns[name] = columns[name][order]
    columns["tensor_producer"] = back[graph.tensor_producer]
    columns["edge_reader"] = back[graph.edge_reader]
    return build_graph(**columns)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_numbers_of_vertices_do_not_matter(name: str) -> None:
    """Where no two vertices have paths of the same length to an exit."""
    graph = random_dag(vertices=SIZE, depth=5, seed=0)
    order = np.random.default_rng(0).permutation(graph.num_vertices)
    one, other = instance(graph), instance(relabelled(graph, order))
    assert len(np.unique(one.tables.bottom_s)) == SIZE
    policy: Any = make_any(CONFIGS[name], 1)
    views = [policy.view(i) for i in (one, other)]
    taken = policy.act(views[0], 3, Sampling(), generator())
    first, second = (policy.log_probs(view, taken) for view in views)
    assert torch.allclose(first, second, atol=1e-5)
    names = [
        {
            i.graph.vertex_names[v]: d
            for v, d in zip(i.vertices, view.devices(taken)[0], strict=True)
        }
        for i, view in zip((one, other), views, strict=True)
    ]
    assert names[0] == names[1]


def test_the_order_has_producers_first() -> None:
    found = instance()
    position = np.argsort(fixed_order(found))
    assert (position[found.edges[0]] < position[found.edges[1]]).all()
    assert (np.diff(found.tables.bottom_s[fixed_order(found)]) <= 0).all()


def test_reachable() -> None:
    """0 → 1 → 3 and 2 → 3."""
    source, target = np.array([0, 1, 2]), np.array([1, 3, 3])
    above = np.unpackbits(reachable(source, target, 4), axis=1, count=4)
    assert above.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    below = np.unpackbits(reachable(3 - target, 3 - source, 4, reverse=True), axis=1, count=4)
    assert below.tolist() == above.T.tolist()


def test_placetos_groups() -> None:
    policy: Any = make_any(CONFIGS["placeto"], 0)
    view = policy.view(instance())
    weights = torch.as_tensor(view.groups(np.arange(SIZE)))
    members = (weights > 0).sum(dim=1)
    assert torch.equal(members, 1 - torch.eye(SIZE, dtype=torch.int64))  # each other vertex once
    assert ((weights.sum(dim=2) - 1).abs() < 1e-6).logical_or(weights.sum(dim=2) == 0).all()


def test_groups_are_consecutive_and_few() -> None:
    found = instance(random_dag(vertices=200, depth=20, seed=1))
    order = fixed_order(found)
    assert grouped(found, order, 200).tolist() == list(range(200))
    group = grouped(found, order, 30)
    assert group.max() == 29
    assert sorted(set(group.tolist())) == list(range(30))


def test_gdp_remembers_the_segment_before() -> None:
    policy: Any = make_any(CONFIGS["gdp"], 0)
    view = policy.view(instance())
    before = policy(view)
    for layer in policy.sage:  # so that vertices tell their neighbours nothing
        torch.nn.init.zeros_(layer.update.weight)
    without = policy(view)
    view.features[0] += 1.0  # the first segment has seven vertices
    changed = (policy(view) != without).any(dim=1)
    assert changed[7:14].any()
    assert before.shape == (SIZE, 4)


def test_random_choices_are_as_many_as_they_should_be() -> None:
    logits = torch.tensor([[50.0, 0.0, 0.0, 0.0]]).expand(4000, 4)
    drawn = pick(logits, Sampling(epsilon=0.4), generator())
    assert abs(float((drawn != 0).float().mean()) - 0.3) < 0.03
    assert pick(logits, GREEDY, generator()).max() == 0
    log_probs = logits[:1].log_softmax(dim=1)
    assert mixed(log_probs, 0.4, 4).exp()[0].tolist() == pytest.approx([0.7, 0.1, 0.1, 0.1])
    assert mixed(log_probs, 1.0, 4).exp()[0].tolist() == pytest.approx([0.25] * 4)
    assert mixed(log_probs, 0.0, 4) is log_probs


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlacetoConfig(width=1),
        lambda: PlacetoConfig(devices=-1),
        lambda: GdpConfig(width=10, heads=4),
        lambda: GdpConfig(layers=-1),
        lambda: Seq2SeqConfig(groups=0),
    ],
)
def test_shapes_that_cannot_be(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_an_unknown_form() -> None:
    with pytest.raises(UnknownNameError, match="no form of Placeto named `passes`"):
        PlacetoConfig(form="passes")
