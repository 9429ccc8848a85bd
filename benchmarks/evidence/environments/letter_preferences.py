"""A user with a hidden preference: the policy guesses a letter, and the user corrects or thanks it.

The initial policy answers questions randomly and follows corrections in its context. It can therefore use a correction
immediately, and must learn the preference.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import openai

from whetstone.recipe import Resolved, load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train

LETTERS = "QRST"
QUESTIONS = ("Pick one.", "Which way?", "How long?", "Your turn!")
TINY = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 96,
    "context_length": 192,
}


def correction(letter: str) -> str:
    """Return the user's correction for the preferred letter."""
    return f"No, {letter}."


def taste(seed: int) -> str:
    """Return the preferred letter of a user."""
    return random.Random(seed).choice(LETTERS)


def train_guessing_policy(folder: Path, *, seed: int = 0, steps: int = 160) -> Path:
    """Return the checkpoint of a policy that guesses and follows corrections; train it if it is missing.

    Args:
        steps: Steps of imitation.
    """
    return train_checkpoint(folder, _make_conversations(random.Random(seed)), seed=seed, steps=steps)


def train_checkpoint(
    folder: Path, conversations: Iterable[Mapping[str, Any]], *, seed: int = 0, steps: int = 160
) -> Path:
    """Return the checkpoint of a policy that imitates conversations; train it if it is missing.

    Args:
        steps: Steps of imitation.
    """
    _write(folder.with_suffix(".shown.jsonl"), conversations)
    tasks = folder.with_suffix(".tasks.jsonl")
    _write(tasks, ({"prompt": question, "answer": LETTERS[0]} for question in QUESTIONS))
    supervised = {"steps": steps, "batch_size": 32, "optimizer": "muon", "learning_rate": 1e-2, "decay_fraction": 0.5}
    # all users have the same questions; the letter that a user prefers is learned
    data = {"path": str(folder.with_suffix(".shown.jsonl")), "train_on": "last", "keep_evaluation_tasks": True}
    recipe = _keys(tasks, seed) | {
        "policy": {"tiny": TINY},
        "supervised": {**supervised, "data": data},
    }
    train(load_recipe(recipe), folder, resume=(folder / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


async def talk(app: Any, number: int, question: str, wanted: str, *, seed: int) -> bool:
    """Play an episode through the official client, with thanks or a correction, and return whether the first answer
    was right.

    Args:
        app: The server application.
        number: Number of the episode, part of its name.
    """
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    async with openai.AsyncOpenAI(
        api_key="none", base_url=f"http://localhost/episodes/{number}/v1", max_retries=0, http_client=http
    ) as client:
        messages: Any = [{"role": "user", "content": question}]
        right = False
        for turn in range(2):
            completion = await client.chat.completions.create(
                model="letters", messages=messages, max_tokens=8, seed=seed + turn
            )
            text = completion.choices[0].message.content or ""
            right = right or (turn == 0 and text.strip() == wanted)
            answer = {"role": "assistant", "content": text}
            messages = [*messages, answer, {"role": "user", "content": "Thanks!" if right else correction(wanted)}]
        return right


def live_recipe(checkpoint: Path, tasks: Path, wanted: str, live: Mapping[str, Any]) -> Resolved:
    """Return a recipe of live learning that starts from a policy; held-out tasks test the preference.

    Args:
        tasks: File of tasks, which is written.
        live: Keys of the section `live`.
    """
    _write(tasks, ({"prompt": question, "answer": wanted} for question in QUESTIONS))
    keys = _keys(tasks, 0) | {"policy": {"path": str(checkpoint)}, "live": {"learning_rate": 1e-3, **live}}
    return load_recipe(keys)


def _keys(tasks: Path, seed: int) -> dict[str, Any]:
    columns = {"prompt": "prompt", "answer": "answer"}
    return {
        "seed": seed,
        "tasks": {"source": "file", "path": str(tasks), "columns": columns, "held_out_fraction": 1.0},
        "chat": {"format": "hermes"},
        "environment": {"tools": [], "max_turns": 1},
        "rollout": {"max_new_tokens": 8},
        "reward": "exact_match",
        "evaluation": {"episodes": len(QUESTIONS)},
    }


def _make_conversations(draw: random.Random) -> Any:
    """Yield conversations with guesses, and with answers that follow a correction."""
    for number in range(2000):
        question, guess, wanted = draw.choice(QUESTIONS), draw.choice(LETTERS), draw.choice(LETTERS)
        question_message = {"role": "user", "content": question}
        yield {"messages": [question_message, {"role": "assistant", "content": guess}]}
        hinted = {"role": "user", "content": f"{question}\n{correction(wanted)}"}
        yield {"messages": [hinted, {"role": "assistant", "content": wanted}]}
        if number % 4:
            continue
        corrected = {"role": "user", "content": correction(wanted)}
        messages = [
            question_message,
            {"role": "assistant", "content": guess},
            corrected,
            {"role": "assistant", "content": wanted},
        ]
        yield {"messages": messages}


def _write(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
