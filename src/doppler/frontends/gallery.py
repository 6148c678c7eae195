"""Small models of many architectures, with random weights: for tests and benchmarks.

`MODELS` are written here; `TRANSFORMERS` are built from configurations of that library, which the
extra `gallery` brings, and need no network. Each is a function without arguments that returns a
module, and the arguments and keywords of a call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

BATCH, LENGTH, WORDS = 2, 16, 128
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
}
_VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


class Decoder(nn.Module):
    """A decoder like Llama's: rotary positions, grouped heads, gated feed-forward layers."""

    rates: Tensor

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)
        size = width // heads
        self.register_buffer("rates", 1e4 ** (-torch.arange(0, size, 2) / size))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) tokens → (B, S, words) logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = places[:, None] * torch.cat([self.rates, self.rates])
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(x))
        return logits


class DecoderLayer(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, inner = width // heads, groups * (width // heads)
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, S, width) → (B, S, width)."""
        y = self.before(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(found.transpose(1, 2).flatten(2))
        y = self.after(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inner, H, W) → (B, outer, H / stride, W / stride)."""
        y = functional.relu(self.norm_a(self.a(x)), inplace=True)
        return functional.relu(self.norm_b(self.b(y)) + self.short(x))


class UNet(nn.Module):
    """Two levels down, two up, with skips between."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down_1, self.down_2 = _double(3, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up_2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up_1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.mix_2, self.mix_1 = _double(4 * width, 2 * width), _double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 2, H, W)."""
        a = self.down_1(x)
        b = self.down_2(functional.max_pool2d(a, 2))
        y = self.up_2(self.bottom(functional.max_pool2d(b, 2)))
        y = self.up_1(self.mix_2(torch.cat([y, b], 1)))
        result: Tensor = self.head(self.mix_1(torch.cat([y, a], 1)))
        return result


def _double(inner: int, outer: int) -> nn.Module:
    layers: list[nn.Module] = []
    for size in (inner, outer):
        layers += [nn.Conv2d(size, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(True)]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """An LSTM of two layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(64, WORDS)
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """(B, S) tokens → logits, and the last state."""
        y, (state, _) = self.lstm(self.embed(tokens))
        return {"logits": self.head(y), "state": state}


class Recommender(nn.Module):
    """DLRM: bags of embeddings and dense features, and the products of all pairs of them."""

    pairs: Tensor

    def __init__(self, tables: int = 8, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs)
        self.top = nn.Sequential(nn.Linear(width + pairs.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        """(B, 13), (tables, N), (tables, B) → (B, 1) probabilities."""
        x = self.bottom(dense)
        bags = [table(indices[i], offsets[i]) for i, table in enumerate(self.tables)]
        z = torch.stack([x, *bags], 1)
        rows, columns = self.pairs
        products = torch.bmm(z, z.transpose(1, 2))[:, rows, columns]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class Mixer(nn.Module):
    """One layer of an MLP-Mixer on patches of an image."""

    def __init__(self, patches: int = 16, width: int = 32) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 8, 8), nn.Linear(width, 10)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = _mlp(patches), _mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 32, 32) → (B, 10)."""
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = self.head((x + self.channels(self.norm_2(x))).mean(1))
        return result


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))


class GraphNetwork(nn.Module):
    """Two layers of message passing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32)])
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """(N, 16) features, (2, E) edges → (N, 4)."""
        source, target = edges
        ones = torch.ones(len(target))
        degree = torch.zeros(len(x)).index_add(0, target, ones).clamp(min=1)
        for layer in self.layers:
            h = layer(x)
            total = torch.zeros_like(h).index_add(0, target, h[source])
            x = functional.relu(h + total / degree[:, None])
        result: Tensor = self.head(x)
        return result


class Experts(nn.Module):
    """A mixture of experts, each on the rows that chose it: shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 16) → (N, 16)."""
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, rank = torch.where(chosen == i)
            y = y.index_add(0, row, expert(x[row]) * weight[row, rank, None])
        return y


class CachedAttention(nn.Module):
    """One step of a decoder that keeps keys and values in buffers."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("keys", torch.zeros(2, 4, LENGTH, 8))
        self.register_buffer("values", torch.zeros(2, 4, LENGTH, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """(2, 1, 32), (1,) → (2, 1, 32)."""
        q, k, v = self.qkv(x).view(2, 1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = (torch.arange(LENGTH) <= position)[None, None, None]
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        result: Tensor = self.out(y.transpose(1, 2).reshape(2, 1, 32))
        return result


def _tokens() -> Tensor:
    return torch.randint(0, WORDS, (BATCH, LENGTH))


def _image() -> Tensor:
    return torch.randn(BATCH, 3, 32, 32)


def _recommender() -> Example:
    offsets = torch.arange(0, 12, 3).repeat(8, 1)
    return Recommender().eval(), (torch.randn(4, 13), torch.randint(0, 1000, (8, 12)), offsets), {}


def _resnet() -> Example:
    stem = nn.Conv2d(3, 16, 3, padding=1)
    blocks = [ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(stem, *blocks, *head).eval(), (_image(),), {}


MODELS: dict[str, Callable[[], Example]] = {
    "mlp": lambda: (_mlp(16).eval(), (torch.randn(4, 16),), {}),
    "decoder": lambda: (Decoder().eval(), (_tokens(),), {}),
    "residual": _resnet,
    "unet": lambda: (UNet().eval(), (_image(),), {}),
    "lstm": lambda: (Recurrent().eval(), (), {"tokens": _tokens()}),
    "dlrm": _recommender,
    "mixer": lambda: (Mixer().eval(), (_image(),), {}),
    "graph-network": lambda: (
        GraphNetwork().eval(),
        (torch.randn(20, 16), torch.randint(0, 20, (2, 60))),
        {},
    ),
    "experts": lambda: (Experts().eval(), (torch.randn(32, 16),), {}),
    "kv-cache": lambda: (
        CachedAttention().eval(),
        (torch.randn(2, 1, 32), torch.tensor([3])),
        {},
    ),
}
# Class, configuration, its fields, and what the model takes: tokens, an image, …
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {}


def _causal(name: str, prefix: str, **fields: Any) -> None:
    sizes = _SIZES | {"use_cache": False} | fields
    TRANSFORMERS[name] = (f"{prefix}ForCausalLM", f"{prefix}Config", sizes, ("input_ids",))


def _encoder(name: str, prefix: str, **fields: Any) -> None:
    TRANSFORMERS[name] = (f"{prefix}Model", f"{prefix}Config", _SIZES | fields, ("input_ids",))


def _vision(name: str, prefix: str, **fields: Any) -> None:
    TRANSFORMERS[name] = (f"{prefix}Model", f"{prefix}Config", fields, ("pixel_values",))


_causal("llama", "Llama", num_key_value_heads=2)
_causal("mistral", "Mistral", num_key_value_heads=2, sliding_window=8)
_causal("qwen2", "Qwen2", num_key_value_heads=2)
_causal("qwen3", "Qwen3", num_key_value_heads=2, head_dim=16)
_causal("gemma2", "Gemma2", num_key_value_heads=2, head_dim=16)
_causal("phi", "Phi")
_causal("phi3", "Phi3", num_key_value_heads=2, pad_token_id=0)
_causal("mixtral", "Mixtral", num_key_value_heads=2, num_local_experts=4)
_causal("falcon", "Falcon")
_causal("opt", "OPT", ffn_dim=128, word_embed_proj_dim=64)
_causal("mamba", "Mamba", state_size=8)
_encoder("bert", "Bert")
_encoder("roberta", "Roberta")
_encoder("deberta-v2", "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"])
_vision("vit", "ViT", **_VISION)
_vision("swin", "Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
        window_size=4)  # fmt: skip
_vision("resnet", "ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2])
_vision("mobilenet-v2", "MobileNetV2", image_size=32, depth_multiplier=0.35)
_vision("convnext", "ConvNext", hidden_sizes=[16, 32], depths=[2, 2], num_stages=2)
TRANSFORMERS |= {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 64,
              "use_cache": False}, ("input_ids",)),
    "distilbert": ("DistilBertModel", "DistilBertConfig",
                   {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128,
                    "vocab_size": WORDS, "max_position_embeddings": 64}, ("input_ids",)),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
            "vocab_size": WORDS, "use_cache": False}, ("input_ids", "decoder_input_ids")),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                 "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": WORDS,
                 "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32,
                 "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                 "decoder_start_token_id": 1}, ("input_features", "decoder_input_ids")),
    "clip": ("CLIPModel", "CLIPConfig",
             {"text_config": dict(_SIZES), "vision_config": dict(_VISION), "projection_dim": 32},
             ("input_ids", "pixel_values")),
}  # fmt: skip
_TAKES: dict[str, Callable[[], Tensor]] = {
    "input_ids": _tokens,
    "decoder_input_ids": _tokens,
    "pixel_values": _image,
    "input_features": lambda: torch.randn(BATCH, 16, 64),
}


def make_example(name: str, seed: int = 0) -> Example:
    """The model of that name with random weights, and arguments for a call."""
    from doppler.errors import MissingExtraError, UnknownNameError

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in MODELS:
            return MODELS[name]()
        if name not in TRANSFORMERS:
            raise UnknownNameError("model", name, (*MODELS, *TRANSFORMERS))
        try:
            import transformers
        except ImportError:
            raise MissingExtraError("transformers", f"model `{name}`", extra="gallery") from None
        model, config, fields, takes = TRANSFORMERS[name]
        module = getattr(transformers, model)(getattr(transformers, config)(**fields))
        return module.eval(), (), {each: _TAKES[each]() for each in takes}
