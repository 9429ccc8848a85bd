"""A GGUF file of a small Llama in the layout of llama.cpp."""

import gguf
import numpy as np

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(file, *, licence="mit", hidden=32, layers=1, heads=2, intermediate=32):
    """Write random weights with one token per byte."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + k) for k in range(256 - len(letters))]
    tokens = [*WORDS, *letters, "ab"]
    writer = gguf.GGUFWriter(file, "llama")
    if licence:
        writer.add_license(licence)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(WORDS) + [1] * (len(tokens) - len(WORDS)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    draw = np.random.default_rng(0)

    def tensor(name, *shape, quantised=False):
        values = draw.normal(0, 0.1, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        data = gguf.quants.quantize(values, kind) if quantised else values
        writer.add_tensor(name, data, raw_dtype=kind if quantised else None)

    tensor("token_embd.weight", len(tokens), hidden)
    for k in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{k}.{name}.weight", hidden, hidden, quantised=True)
        tensor(f"blk.{k}.ffn_gate.weight", intermediate, hidden, quantised=True)
        tensor(f"blk.{k}.ffn_up.weight", intermediate, hidden, quantised=True)
        tensor(f"blk.{k}.ffn_down.weight", hidden, intermediate, quantised=True)
        tensor(f"blk.{k}.attn_norm.weight", hidden)
        tensor(f"blk.{k}.ffn_norm.weight", hidden)
    tensor("output_norm.weight", hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
