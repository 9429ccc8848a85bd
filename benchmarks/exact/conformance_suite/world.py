"""A tiny model that calls a tool, its tokenizer and its tasks, the same for every trainer.

The model is trained for seconds to call `look_up` with a key of random letters, and to answer with random letters. It
samples letters as `a`, `b`, `ab` and `ba`, so the text of most answers has another canonical tokenization.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

CONTEXT, LETTERS = 512, 4
"""Context length; pieces of letters per key and answer."""
TASKS = 96
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with Hermes calls; it renders only the names of tools, so that prompts are equal for every trainer."""
SCHEMA = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a key.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "The key."}},
            "required": ["key"],
        },
    },
}
OPEN, CLOSE = '<tool_call>\n{"name": "look_up", "arguments": {"key": "', '"}}\n</tool_call><|im_end|>'


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with a ChatML template that renders Hermes calls."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    texts = ["ab", "ba", json.dumps(SCHEMA), OPEN, CLOSE, "assistant user system Task value: tool_response"]
    tokenizer.train_from_iterator([*texts * 4, *["ab", "ba"] * 50], trainer)
    added = [AddedToken(text, special=text.startswith("<|"), normalized=False) for text in SPECIAL]
    tokenizer.add_special_tokens(added)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
    )


def prompt_of(number: int) -> str:
    """Return the text of a task."""
    return f"Task {number}"


def _letters(tokenizer: Any, draw: random.Random) -> list[int]:
    return list(tokenizer.convert_tokens_to_ids([draw.choice(("a", "b", "ab", "ba")) for _ in range(LETTERS)]))


def _conversation(tokenizer: Any, draw: random.Random, *, tools: bool) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation; without tools it ends with the first answer."""

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(messages: list[Any], offered: list[Any] | None) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tools=offered, add_generation_prompt=True, tokenize=False)
        return encode(text)

    user = {"role": "user", "content": prompt_of(draw.randrange(1000))}
    ids = render([user], [SCHEMA] if tools else None)
    labels = [-100] * len(ids)
    answer = [*_letters(tokenizer, draw), tokenizer.eos_token_id]
    if tools:
        call = [*encode(OPEN), *_letters(tokenizer, draw), *encode(CLOSE)]
        content = draw.choice(("value: 7", '{"error": "ConnectionError"}', "error: it took too long"))
        rest = render([{"role": "tool", "name": "look_up", "content": content}], None)
        ids += [*call, *encode("\n"), *rest]
        labels += [*call, *[-100] * (len(rest) + 1)]
    return [*ids, *answer], [*labels, *answer]


def build_model(tokenizer: Any, *, steps: int = 420, seed: int = 0) -> Any:
    """Train and return the model."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        **sizes,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    optimizer, draw = torch.optim.AdamW(model.parameters(), lr=5e-3), random.Random(seed)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        rows = [_conversation(tokenizer, draw, tools=step % 4 > 0) for _ in range(3)]
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([[*one, *[tokenizer.pad_token_id] * (length - len(one))] for one, _ in rows])
        labels = torch.tensor([[*one, *[-100] * (length - len(one))] for _, one in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


def build_world(folder: Path) -> None:
    """Write `model/`, `tasks.jsonl` and `chats.jsonl` into a folder, if they are not there."""
    if (folder / "chats.jsonl").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"id": f"t{number}", "prompt": prompt_of(number), "answer": ""} for number in range(TASKS)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in _chats(16)))


def _chats(count: int) -> list[list[dict[str, str]]]:
    """Return conversations of two questions and two answers."""
    draw = random.Random(1)

    def say(role: str) -> dict[str, str]:
        return {"role": role, "content": "".join(draw.choice("abcd ") for _ in range(12)).strip() or "a"}

    return [[say("user"), say("assistant"), say("user"), say("assistant")] for _ in range(count)]


def logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return [T − 1] the log-prob of each token but the first."""
    tokens = torch.tensor([list(ids)])
    logits: torch.Tensor = model(input_ids=tokens).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
