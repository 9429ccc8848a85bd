"""Small random models of the architectures for which the local engine is tested."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
GROUPED = {**COMMON, "num_key_value_heads": 2}
CONFIGS = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "mistral": MistralConfig(**GROUPED, sliding_window=12),
    "gemma2": Gemma2Config(**GROUPED, head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
    "phi": PhiConfig(**COMMON),
    "gpt_neox": GPTNeoXConfig(**COMMON),
}


def random_model(name, seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
