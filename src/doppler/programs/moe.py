"""A mixture-of-experts layer with top-k routing, as a static program."""

from doppler.errors import ConfigError
from doppler.programs.functions import relu, softmax
from doppler.programs.program import Program
from doppler.programs.program_builder import ProgramBuilder
from doppler.programs.tensor import Tensor, binary


def moe_layer(
    *,
    tokens: int = 4096,
    width: int = 4096,
    hidden: int = 8192,
    experts: int = 8,
    top_k: int = 2,
    dtype: str = "float16",
) -> Program:
    """Experts weighted by a softmax gate of which only the `top_k` largest are kept.

    The graph is static: every expert sees every token, and the gates of the tokens that are
    routed elsewhere are 0. Equal gates count once: open are those that are at least as large as
    the `top_k`-th largest of a token's distinct gates (all, where it has fewer), so ties, which
    rounding to float16 makes, open more than `top_k` experts.
    """
    if not 1 <= top_k <= experts:
        raise ConfigError(f"top_k is {top_k}, must be between 1 and the {experts} experts")
    b = ProgramBuilder("moe-layer", dtype=dtype)
    x = b.input("x", (tokens, width))
    logits = (x @ b.input("wg", (width, experts), weight=True)).named("router")
    gates = _keep_largest(softmax(logits, prefix="router."), top_k)
    total = None
    for e in range(experts):
        up = (x @ b.input(f"e{e}.w1", (width, hidden), weight=True)).named(f"e{e}.up")
        down = relu(up, name=f"e{e}.relu") @ b.input(f"e{e}.w2", (hidden, width), weight=True)
        gate = gates[:, e : e + 1].named(f"e{e}.gate")
        share = binary("mul", down.named(f"e{e}.down"), gate, name=f"e{e}.weighted")
        total = share if total is None else binary("add", total, share, name=f"e{e}.sum")
    assert total is not None
    return b.build(total)


def _keep_largest(gates: Tensor, count: int) -> Tensor:
    """The gates of each token among the `count` largest distinct ones, normalised; 0 otherwise."""
    rest, least = gates, gates.max(-1, name="top1")
    for i in range(1, count):
        rest = binary("keep_if_below", rest, least[:, None], name=f"rest{i}")
        least = rest.max(-1, name=f"top{i + 1}")
    kept = binary("keep_if_at_least", gates, least[:, None], name="kept")
    return binary("div", kept, kept.sum(-1, name="kept.sum")[:, None], name="gates")
