"""GGUF files of Llama models, written with the `gguf` package; llama.cpp and Ollama read them.

Query and key matrices are permuted: llama.cpp rotates neighboring pairs of dimensions, Transformers rotates halves.

Note:
    llama.cpp splits text into words by rules that it knows by name. A tokenizer with other rules would give other
    tokens than in training, so a file is written only if the rules are known to be the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from whetstone.errors import PolicyError
from whetstone.optional_dependencies import install_command
from whetstone.policies.policy import Policy
from whetstone.policies.tiny_model import WORDS

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1
"""Token types of GGUF."""


def check_gguf(policy: Policy) -> str:
    """Return why `write_llama_gguf` does not support a policy, in one line; empty if it does.

    Raises:
        PolicyError: If the `gguf` package is not installed.
    """
    try:
        import gguf  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise PolicyError(f"--gguf: requires gguf: {install_command('gguf')}") from error
    config: Any = policy.model.config
    if config.model_type != "llama":
        return f"models of type {config.model_type} are not written here"
    if _rope(config).get("rope_type", "default") != "default" or config.attention_bias or config.mlp_bias:
        return "its rotary embedding is scaled, or its layers have biases"
    if word_rules(policy.tokenizer) is None:
        return "llama.cpp has no rules that split text as its tokenizer does"
    return ""


def word_rules(tokenizer: Any) -> str | None:
    """Return llama.cpp's name for the pre-tokenizer rules of a BPE tokenizer.

    None if llama.cpp has no equal rules.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    if written["model"]["type"] != "BPE" or written["model"].get("byte_fallback") or written["normalizer"]:
        return None
    rules = written["pre_tokenizer"] or {}
    steps = rules["pretokenizers"] if rules.get("type") == "Sequence" else [rules]
    kinds = [step.get("type") for step in steps]
    if steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"] and steps[1]["use_regex"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and steps[0]["pattern"].get("Regex") == _LLAMA3_WORDS:
        return "llama-bpe"
    return None


def is_tiny_tokenizer(tokenizer: Any) -> bool:
    """Return whether a tokenizer was trained with a randomly initialized model (`policy.tiny`).

    llama.cpp's converter supports only the rules of published tokenizers.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    rules = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    return any((step.get("pattern") or {}).get("Regex") == WORDS for step in rules.get("pretokenizers") or ())


def write_llama_gguf(policy: Policy, file: Path, dtype: str, *, name: str) -> None:
    """Write a Llama model with its tokenizer and chat template as a GGUF file.

    Args:
        policy: A policy for which `check_gguf` returns an empty text, without adapters.
        dtype: Precision of matrices: `float32`, `float16` or `bfloat16`. Vectors are float32.
        name: Name of the model in the file.
    """
    import gguf

    model: Any = policy.model
    config = model.config
    kind = {
        "float32": gguf.GGMLQuantizationType.F32,
        "float16": gguf.GGMLQuantizationType.F16,
        "bfloat16": gguf.GGMLQuantizationType.BF16,
    }[dtype]
    writer = gguf.GGUFWriter(file, "llama")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = config.head_dim or config.hidden_size // heads
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(_rope(config).get("rope_theta", 10_000.0)))
    writer.add_file_type({"float32": 0, "float16": 1, "bfloat16": 32}[dtype])
    _add_tokenizer(writer, policy, model.get_input_embeddings().weight.shape[0])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for key, tensor in model.state_dict().items():
        if tied and key == "lm_head.weight":
            continue
        weight = tensor.float()
        for part, count in ((".q_proj.", heads), (".k_proj.", kv_heads)):
            if part in key:
                weight = _interleave(weight, count)
        numbers = weight.contiguous().numpy()
        wanted = kind if weight.dim() > 1 else gguf.GGMLQuantizationType.F32
        data = numbers if wanted == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(numbers, wanted)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), data, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head from halves to neighboring pairs."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _rope(config: Any) -> dict[str, Any]:
    written = config.to_dict()
    return dict(written.get("rope_parameters") or {"rope_theta": written.get("rope_theta", 10_000.0)})


def _add_tokenizer(writer: Any, policy: Policy, size: int) -> None:
    """Write tokens, types and merges; embedding rows without a token get a placeholder.

    Args:
        writer: GGUF writer.
        policy: Policy with the tokenizer.
        size: Number of embedding rows.
    """
    tokenizer = policy.tokenizer
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for number in range(size):
        tokens.append(by_id.get(number, f"[PAD{number}]"))
        special = number not in by_id or (number in added and added[number].special)
        types.append(_CONTROL if special else _USER_DEFINED if number in added else _NORMAL)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in written["model"]["merges"]]
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(word_rules(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    model: Any = policy.model
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    end = ends[0] if isinstance(ends, list) else ends if ends is not None else tokenizer.eos_token_id
    writer.add_eos_token_id(end)
    for token, add in (
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
    ):
        if token is not None:
            add(token)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
