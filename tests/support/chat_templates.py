"""Tokenizers in the style of published model families, built without a model hub.

Some templates are short versions of those of each family for plain text messages; those of real models are in
`data/templates`.
"""

import gzip
import json
import re
from contextlib import suppress
from pathlib import Path

from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from whetstone.chat.template import compile_template
from whetstone.policies import build_tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# earlier reasoning is dropped at a new question; a tool result is not a new question
QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "<bos>{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)

FAMILIES = {
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3": (QWEN3, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": (LLAMA3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>"),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], "</s>"),
}


def build(family):
    if family == "tiny":
        markers = ["<call>", "</call>", "<result>", "</result>"]
        return build_tiny(["Compute 12*34"] * 5, markers=markers, hidden=8, heads=1, layers=1).tokenizer
    template, special, end = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the user asked the assistant for the answer", "tool result: 42"] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, chat_template=template)


ALL_FAMILIES = ["tiny", *FAMILIES]

SPECIAL = ("<|im_start|>", "<|im_end|>", "[INST]")


def byte_tokenizer(normalizer):
    """Build a tokenizer of bytes and special tokens; `normalized` ones are matched after the normalizer, as in some
    models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer_ = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer_.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer_.normalizer = normalizer
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer_)
    wrapped.add_special_tokens(
        {"additional_special_tokens": [AddedToken(text, special=True, normalized=True) for text in SPECIAL]}
    )
    wrapped.eos_token = "<|im_end|>"
    wrapped.chat_template = CHATML
    return wrapped


NORMALIZERS = {
    "none": None,
    "compatibility": normalizers.NFKC(),
    "no zero-width spaces": normalizers.Replace("\u200b", ""),
    "both": normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\u200b", "")]),
}


def tokenizer_with(template, special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), end="<|im_end|>"):
    """Build a tokenizer of bytes and these special tokens with this template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer_ = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer_.decoder = decoders.ByteLevel()
    tokenizer_.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer_, eos_token=end, chat_template=template)


REAL = Path(__file__).parents[1] / "data" / "templates" / "templates.jsonl.gz"
_SIGN = re.compile(
    r"<[|｜][^<>\n]{1,60}?[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>|\[/?[A-Z_]{3,}\]|</?s>|<(?:start|end)_of_\w+>"
    r"|\[\|[^\[\]|\n]{1,30}\|\]|<(?:beginning|end)_of_sentence>|<[a-z]+:(?:eos|bos)>|\[e~\[|\]~b\]|</?(?:user|assistant)>|<SPECIAL_\d+>|<sep>"
)
"""Text of real templates that is a special token of their models."""
_NOT_WRITTEN = {"LFM2-8B-A1B": ("<|tool_call_start|>", "<|tool_call_end|>")}
_NOT_WRITTEN |= dict.fromkeys(("LFM2.5-Instruct", "trl/lfm2", "trl/lfm2_training"), _NOT_WRITTEN["LFM2-8B-A1B"])
"""Tokens of a model that its template never writes."""
_ENDS = ("<|END_OF_TURN_TOKEN|>", "<|eot_id|>", "<|end_of_msg|>", "<|return|>")


def real_templates():
    """Return name → template of real models."""
    lines = [json.loads(line) for line in gzip.decompress(REAL.read_bytes()).decode().splitlines()]
    return {line["name"]: line["template"] for line in lines}


def axolotl_templates():
    """Return name → template of axolotl."""
    lines = gzip.decompress(REAL.with_name("axolotl.jsonl.gz").read_bytes()).decode().splitlines()
    return {line["name"]: line["template"] for line in map(json.loads, lines)}


def real_tokenizer(name, template):
    """Build a tokenizer of bytes and the markers of a real template as special tokens; the one after a response ends
    a turn."""
    turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "QQ"}]
    rendered = ""
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "u"}]}]
    for conversation, with_prompt in ((turns, False), ([*turns, turns[0]], True), (in_parts, True)):
        with suppress(TemplateError):
            rendered += compile_template(template).render(
                conversation,
                tools=[],
                add_generation_prompt=with_prompt,
                special={"bos_token": "<s>", "eos_token": "</s>"},
            )
    following = _SIGN.findall(rendered.partition("QQ")[2].partition("QQ")[0])
    end = next((sign for sign in following if sign in _ENDS), following[0] if following else "</s>")
    special = {*_SIGN.findall(template), *_SIGN.findall(rendered), *_NOT_WRITTEN.get(name, ()), "<s>", "</s>"}
    tokenizer = tokenizer_with(template, sorted(special), end)
    tokenizer.bos_token = "<s>"
    return tokenizer
