"""Models of the GPU benchmark: real weights if they are on this machine, otherwise random ones of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from whetstone.errors import PolicyError
from whetstone.policies import Policy, build_tiny, load_policy, resolve_model_folder, save_policy

SHAPES: dict[str, dict[str, Any]] = {
    "135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 2048,
    },
    "600m": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 2048,
    },
}  # fmt: skip
"""Shapes of SmolLM2-135M (Llama) and Qwen3-0.6B (Qwen3), with a context of 2,048 tokens."""
_SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 512} | {
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
}  # fmt: skip
_EMBEDDING_SCALE = 5.0
"""Factor on the tied embeddings: with the usual initialization every token is about equally likely."""
_TEXTS = [f"Compute {a} * {b} + {a + b} and state the answer." for a in range(11, 99, 7) for b in range(3, 99, 5)]


@dataclass(frozen=True)
class Weights:
    """A model folder of a part."""

    folder: Path
    is_real: bool
    """Whether the weights are trained ones."""


def weights_of(shape: str, *, small: bool, model: str, scratch: Path) -> Weights:
    """Return the folder of a model.

    Args:
        shape: A key of `SHAPES`.
        small: Use a model of a few thousand parameters of the same kind.
        model: The real weights of `135m`: a folder, or a model of `whetstone models`.
        scratch: Folder in which a model with random weights is written once.
    """
    if shape == "135m" and not small:
        try:
            return Weights(Path(resolve_model_folder(model)), True)
        except PolicyError:
            pass
    folder = scratch / f"model-{shape}"
    if not (folder / "config.json").is_file():
        _write_random(shape, folder, small=small, tokenizer=_tokenizer(model, small=small))
    return Weights(folder, False)


def _tokenizer(model: str, *, small: bool) -> Any:
    """Return the tokenizer of the real weights if they are on this machine, otherwise one trained on prompts."""
    if not small:
        try:
            return load_policy(model).tokenizer
        except PolicyError:
            pass
    return build_tiny(_TEXTS, hidden=16, heads=2, layers=1, intermediate=16, context_length=2048).tokenizer


def _write_random(shape: str, folder: Path, *, small: bool, tokenizer: Any) -> None:
    sizes = SHAPES[shape] | (_SMALL if small else {})
    if small:
        sizes = {name: value for name, value in sizes.items() if name != "head_dim"}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    kinds: tuple[Any, Any] = (Qwen3Config, Qwen3ForCausalLM) if shape == "600m" else (LlamaConfig, LlamaForCausalLM)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kinds[1](kinds[0](**sizes, **ids, tie_word_embeddings=True))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(_EMBEDDING_SCALE)
    folder.mkdir(parents=True)
    save_policy(Policy(model.to(torch.bfloat16).eval(), tokenizer), folder)
