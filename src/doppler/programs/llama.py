"""A Llama transformer block and layer (App. D.3), operation by operation."""

from doppler.programs.program import Program
from doppler.programs.tensor import (
    ProgramBuilder,
    Tensor,
    binary,
    einsum,
    softmax,
    to_complex,
    to_real,
    unary,
)

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
    """Attention and feed-forward of one Llama-7B layer (App. D.3); the width is (heads, head_dim)."""
    b = ProgramBuilder("llama-block", dtype=dtype)
    weights = _weights(b, heads, head_dim, hidden)
    x = b.input("x", (batch, sequence, heads, head_dim))
    freqs = b.input("freqs", (sequence, head_dim // 2), dtype="complex64")
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
    freqs = b.input("full_freqs", (max(table, sequence), head_dim // 2), dtype="complex64")
    norm = b.input("norm", (heads, head_dim))
    vocab = b.input("vocab", (vocabulary, heads, head_dim))
    x = b.input("x", (batch, sequence, heads, head_dim))
    mask = b.fill((sequence, sequence), 0.0, above=MASKED, name="mask")
    rows = freqs[:sequence].named("freqs")
    y = block(x, weights, rows, mask)
    y = rms_norm(y, norm, "norm")
    last = y[:, sequence - 1 :].named("last").squeeze(1)
    return b.build(einsum("bde,vde->bv", last, vocab, name="logits"))


def _weights(b: ProgramBuilder, heads: int, head_dim: int, hidden: int) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        name: (heads, head_dim, heads, head_dim) for name in ("wq", "wk", "wv", "wo")
    }
    shapes |= {"w1": (hidden, heads, head_dim), "w2": (heads, head_dim, hidden)}
    shapes |= {"w3": (hidden, heads, head_dim), "an": (heads, head_dim), "fn": (heads, head_dim)}
    return {name: b.input(name, shape) for name, shape in shapes.items()}


def block(
    x: Tensor, weights: dict[str, Tensor], freqs: Tensor, mask: Tensor | None = None
) -> Tensor:
    """One transformer block: `y = x + attention(norm(x))`, then `y + feed_forward(norm(y))`."""
    h = rms_norm(x, weights["an"], "an")
    q, k, v = (einsum("bsde,hkde->bshk", h, weights[f"w{n}"], name=n) for n in "qkv")
    q, k = rotate(q, freqs, "q"), rotate(k, freqs, "k")
    scores = einsum("bshk,bthk->bhst", q, k, name="qk")
    scores = scores.affine(q.shape[-1] ** -0.5, name="scale")
    if mask is not None:
        scores = binary("add", scores, mask, name="mask.add")
    dtype = x.dtype
    p = softmax(scores.astype("float32", name="s.f32")).astype(dtype, name="p.cast")
    heads = einsum("bhst,bthk->bhsk", p, v, name="pv")
    out = einsum("bhsk,dehk->bsde", heads, weights["wo"], name="attn.wo")
    x = binary("add", x, out, name="add1")
    h = rms_norm(x, weights["fn"], "fn")
    up = unary("silu", einsum("bsde,fde->bsf", h, weights["w1"], name="ffn.w1"))
    gate = einsum("bsde,fde->bsf", h, weights["w3"], name="ffn.w3")
    hidden = binary("mul", up, gate, name="gate")
    return binary("add", x, einsum("bsf,def->bsde", hidden, weights["w2"], name="ffn.w2"), name="add2")


def rms_norm(x: Tensor, weight: Tensor, prefix: str) -> Tensor:
    """`x / rms(x) * weight` over the last two axes, in float32 up to the weight."""
    width = x.shape[-1] * x.shape[-2]
    full = x.astype("float32", name=f"{prefix}.f32")
    total = unary("square", full, name=f"{prefix}.sq").sum(-2, -1, name=f"{prefix}.sum")
    scale = unary("rsqrt", total.affine(1 / width, 1e-5, name=f"{prefix}.eps"), name=f"{prefix}.rsqrt")
    normed = binary("mul", full, scale[..., None, None], name=f"{prefix}.mul")
    return binary("mul", normed.astype(x.dtype, name=f"{prefix}.cast"), weight, name=f"{prefix}.w")


def rotate(x: Tensor, freqs: Tensor, prefix: str) -> Tensor:
    """Rotary position embedding: pairs as complex numbers, times their position's rotation."""
    pairs = to_complex(x.astype("float32", name=f"{prefix}.f32"), name=f"{prefix}.to_complex")
    turned = binary("mul", pairs, freqs[:, None], name=f"{prefix}.rot")
    return to_real(turned, name=f"{prefix}.to_real").astype(x.dtype, name=f"{prefix}.cast")
