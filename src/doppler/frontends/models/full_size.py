"""Models of the gallery at the size of a published one, on the meta device.

The configurations of transformers are, unless told otherwise, those of a published model: Llama-2
7B, GPT-2 124M, BERT base, … Such a model is of float16 and has no values: it can be placed and
simulated, not run.
"""

from typing import Any

import torch

from doppler.errors import MissingExtraError, UnknownNameError
from doppler.frontends.gallery import TRANSFORMERS, Example

TOKENS, BATCH = 2048, 1  # of an example, where the model can take as many
DTYPE = torch.float16
# What differs from the configuration that the library has, and why.
_FIELDS: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},  # as published
}


def make_full_example(name: str) -> Example:
    """The model of that name at its published size, without values, and arguments for a call."""
    if name not in TRANSFORMERS:
        raise UnknownNameError("model of full size", name, tuple(TRANSFORMERS))
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", f"model `{name}`", extra="gallery") from None
    model, config_class, small, takes = TRANSFORMERS[name]
    fields = _FIELDS.get(name, {}) | ({"use_cache": False} if "use_cache" in small else {})
    config = getattr(transformers, config_class)(**fields)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device("meta"):
            module = getattr(transformers, model)(config).to(DTYPE).eval()
            return module, (), {each: _argument(each, config) for each in takes}
    finally:
        torch.set_default_dtype(before)


def _argument(name: str, config: Any) -> torch.Tensor:
    if name == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 224)
        return torch.zeros(BATCH, 3, size, size)
    if name == "input_features":
        return torch.zeros(BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    text = getattr(config, "text_config", config)
    limits = ("max_position_embeddings", "n_positions", "max_target_positions")
    most = min(getattr(text, each, None) or TOKENS for each in limits)
    return torch.zeros(BATCH, min(most, TOKENS), dtype=torch.long)
