"""Small randomly initialized Llama, as a policy without a download.

It has about a million parameters, a tokenizer trained on the task's own texts, and a chat template: a complete Hugging
Face folder once saved. A supervised stage must train it first.

Note:
    Digits merged into multi-digit tokens make copying a number, and computing with it, far harder for a small model.
    Digits and signs are therefore always separate tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from whetstone.policies.policy import Policy

PAD, END = "<|pad|>", "<|end|>"
"""Padding token, and the token that ends a message."""
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
"""Tokens that start a message of each role."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template: role token, content and end token of each message."""
# words with the space before them, single digits, single signs, white space
WORDS = r" ?[\p{L}_]+|\p{N}|[^\s\p{L}\p{N}_]|\s"
"""Regular expression of the words into which the tokenizer splits text."""
_PIECES = Regex(WORDS)


def build_tiny(
    texts: Iterable[str],
    *,
    markers: Sequence[str] = (),
    vocabulary: int = 512,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate: int = 384,
    context_length: int = 512,
    seed: int = 0,
) -> Policy:
    """Build a small Llama with random weights and a trained tokenizer.

    Args:
        texts: Training texts of the tokenizer: prompts and answers like those in training. Any other text also has
            tokens (single bytes), only more of them.
        markers: Tags of the tool-call format; each becomes one token.
        vocabulary: Maximum number of tokens; the 256 bytes and the special tokens are always included.
        hidden: Hidden size.
        layers: Number of layers.
        heads: Number of attention heads.
        intermediate: Width of the MLP.
        context_length: Context length in tokens.
        seed: Random seed of the weights.
    """
    tokenizer = _train_tokenizer(texts, markers, vocabulary, context_length)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Policy(model.eval(), tokenizer)


def _train_tokenizer(
    texts: Iterable[str], markers: Sequence[str], vocabulary: int, context_length: int
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, *ROLES]
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary - len(markers), 256 + len(special)),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
