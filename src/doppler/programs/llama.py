"""Transformers: the paper's Llama block and layer (App. D.3), stacks of them, attention alone."""

from doppler.errors import ConfigError
from doppler.programs.functions import softmax, to_complex, to_real
from doppler.programs.program import Program
from doppler.programs.program_builder import ProgramBuilder
from doppler.programs.tensor import Tensor, binary, einsum, unary

MASKED = -3e4  # what the causal mask adds: exp of it is 0 in float16


def llama_block(
    *,
    sequence: int = 4096,
    heads: int = 32,
    head_dim: int = 128,
    hidden: int = 11008,
    batch: int = 1,
    dtype: str = "float16",
) -> Program:
    """Attention and feed-forward of a Llama-7B layer (App. D.3); its width is heads × head_dim."""
    b = ProgramBuilder("llama-block", dtype=dtype)
    weights = _weights(b, heads, head_dim, hidden)
    x = b.input("x", (batch, sequence, heads, head_dim))
    freqs = b.input("freqs", (sequence, head_dim // 2), dtype="complex64", weight=True)
    return b.build(block(x, weights, freqs))


def llama_layer(
    *,
    sequence: int = 4096,
    heads: int = 32,
    head_dim: int = 128,
    hidden: int = 11008,
    vocabulary: int = 32000,
    table: int = 32768,
    batch: int = 1,
    dtype: str = "float16",
) -> Program:
    """The block with causal mask, frequency table, final norm and the last token's logits."""
    b = ProgramBuilder("llama-layer", dtype=dtype)
    weights = _weights(b, heads, head_dim, hidden)
    rotations = (max(table, sequence), head_dim // 2)
    freqs = b.input("full_freqs", rotations, dtype="complex64", weight=True)
    norm = b.input("norm", (heads, head_dim), weight=True)
    vocab = b.input("vocab", (vocabulary, heads, head_dim), weight=True)
    x = b.input("x", (batch, sequence, heads, head_dim))
    mask = b.fill((sequence, sequence), 0.0, above=MASKED, name="mask")
    rows = freqs[:sequence].named("freqs")
    y = block(x, weights, rows, mask)
    y = rms_norm(y, norm, "norm")
    last = y[:, sequence - 1 :].named("last").squeeze(1)
    return b.build(einsum("bde,vde->bv", last, vocab, name="logits"))


def transformer(
    *,
    layers: int = 4,
    sequence: int = 4096,
    heads: int = 32,
    head_dim: int = 128,
    hidden: int = 11008,
    batch: int = 1,
    dtype: str = "float16",
) -> Program:
    """`layers` Llama blocks one after the other, each with weights of its own."""
    if layers < 1:
        raise ConfigError(f"layers is {layers}, must be at least 1")
    b = ProgramBuilder("transformer", dtype=dtype)
    x = b.input("x", (batch, sequence, heads, head_dim))
    freqs = b.input("freqs", (sequence, head_dim // 2), dtype="complex64", weight=True)
    for i in range(layers):
        prefix = f"l{i}."
        x = block(x, _weights(b, heads, head_dim, hidden, prefix), freqs, prefix=prefix)
    return b.build(x)


def attention(
    *,
    sequence: int = 4096,
    heads: int = 32,
    head_dim: int = 128,
    batch: int = 1,
    dtype: str = "float16",
) -> Program:
    """Multi-head self-attention with its four projections, no mask."""
    b = ProgramBuilder("attention", dtype=dtype)
    x = b.input("x", (batch, sequence, heads, head_dim))
    shape = (heads, head_dim, heads, head_dim)
    wq, wk, wv, wo = (b.input(name, shape, weight=True) for name in ("wq", "wk", "wv", "wo"))
    q, k, v = (
        einsum("bsde,hkde->bshk", x, w, name=n) for n, w in (("q", wq), ("k", wk), ("v", wv))
    )
    return b.build(einsum("bhsk,dehk->bsde", attend(q, k, v), wo, name="out"))


def _weights(
    b: ProgramBuilder, heads: int, head_dim: int, hidden: int, prefix: str = ""
) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("wq", "wk", "wv", "wo"), (heads, head_dim, heads, head_dim)
    )
    shapes |= {"w1": (hidden, heads, head_dim), "w2": (heads, head_dim, hidden)}
    shapes |= {"w3": (hidden, heads, head_dim), "an": (heads, head_dim), "fn": (heads, head_dim)}
    return {name: b.input(prefix + name, shape, weight=True) for name, shape in shapes.items()}


def block(
    x: Tensor,
    weights: dict[str, Tensor],
    freqs: Tensor,
    mask: Tensor | None = None,
    *,
    prefix: str = "",
) -> Tensor:
    """One transformer block: `y = x + attention(norm(x))`, then `y + feed_forward(norm(y))`."""
    h = rms_norm(x, weights["an"], f"{prefix}an")
    q, k, v = (einsum("bsde,hkde->bshk", h, weights[f"w{n}"], name=prefix + n) for n in "qkv")
    q, k = rotate(q, freqs, f"{prefix}q"), rotate(k, freqs, f"{prefix}k")
    heads = attend(q, k, v, mask, prefix=prefix)
    out = einsum("bhsk,dehk->bsde", heads, weights["wo"], name=f"{prefix}attn.wo")
    x = binary("add", x, out, name=f"{prefix}add1")
    h = rms_norm(x, weights["fn"], f"{prefix}fn")
    up = einsum("bsde,fde->bsf", h, weights["w1"], name=f"{prefix}ffn.w1")
    up = unary("silu", up, name=f"{prefix}silu")
    gate = einsum("bsde,fde->bsf", h, weights["w3"], name=f"{prefix}ffn.w3")
    hidden = binary("mul", up, gate, name=f"{prefix}gate")
    down = einsum("bsf,def->bsde", hidden, weights["w2"], name=f"{prefix}ffn.w2")
    return binary("add", x, down, name=f"{prefix}add2")


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, prefix: str = ""
) -> Tensor:
    """`softmax(q kᵀ / √d + mask) v` of (batch, sequence, heads, head_dim) tensors, by head."""
    scores = einsum("bshk,bthk->bhst", q, k, name=f"{prefix}qk")
    scores = scores.affine(q.shape[-1] ** -0.5, name=f"{prefix}scale")
    if mask is not None:
        scores = binary("add", scores, mask, name=f"{prefix}mask.add")
    p = softmax(scores.astype("float32", name=f"{prefix}s.f32"), prefix=prefix)
    return einsum(
        "bhst,bthk->bhsk", p.astype(v.dtype, name=f"{prefix}p.cast"), v, name=f"{prefix}pv"
    )


def rms_norm(x: Tensor, weight: Tensor, prefix: str) -> Tensor:
    """`x / rms(x) * weight` over the last two axes, in float32 up to the weight."""
    width = x.shape[-1] * x.shape[-2]
    full = x.astype("float32", name=f"{prefix}.f32")
    total = unary("square", full, name=f"{prefix}.sq").sum(-2, -1, name=f"{prefix}.sum")
    mean = total.affine(1 / width, 1e-5, name=f"{prefix}.eps")
    scale = unary("rsqrt", mean, name=f"{prefix}.rsqrt")
    normed = binary("mul", full, scale[..., None, None], name=f"{prefix}.mul")
    return binary("mul", normed.astype(x.dtype, name=f"{prefix}.cast"), weight, name=f"{prefix}.w")


def rotate(x: Tensor, freqs: Tensor, prefix: str) -> Tensor:
    """Rotary position embedding: pairs as complex numbers, times their position's rotation."""
    pairs = to_complex(x.astype("float32", name=f"{prefix}.f32"), name=f"{prefix}.to_complex")
    turned = binary("mul", pairs, freqs[:, None], name=f"{prefix}.rot")
    return to_real(turned, name=f"{prefix}.to_real").astype(x.dtype, name=f"{prefix}.cast")
