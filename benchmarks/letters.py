"""A world in which a user has a taste nobody told the policy: it guesses a letter, and is corrected or thanked.

The policy begins as one that answers each question by chance, and that follows a correction it can read. So what a
correction says is in its reach, and what the user wants is not, until it is learned.
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
    """What the user says where he wanted this one."""
    return f"No, {letter}."


def taste(seed: int) -> str:
    """The letter a user wants, whatever he asks."""
    return random.Random(seed).choice(LETTERS)


def guessing_policy(folder: Path, *, seed: int = 0, steps: int = 160) -> Path:
    """A checkpoint of a policy that guesses and follows corrections; made where it is not there.

    Args:
        steps: Of imitation.
    """
    return checkpoint_of(folder, _shown(random.Random(seed)), seed=seed, steps=steps)


def checkpoint_of(folder: Path, shown: Iterable[Mapping[str, Any]], *, seed: int = 0, steps: int = 160) -> Path:
    """A checkpoint of a policy that imitates these conversations; made where it is not there.

    Args:
        steps: Of imitation.
    """
    _write(folder.with_suffix(".shown.jsonl"), shown)
    tasks = folder.with_suffix(".tasks.jsonl")
    _write(tasks, ({"prompt": question, "answer": LETTERS[0]} for question in QUESTIONS))
    supervised = {"steps": steps, "batch_size": 32, "optimizer": "muon", "learning_rate": 1e-2, "decay_fraction": 0.5}
    recipe = _keys(tasks, seed) | {
        "policy": {"tiny": TINY},
        "supervised": {**supervised, "data": {"path": str(folder.with_suffix(".shown.jsonl")), "train_on": "last"}},
    }
    train(load_recipe(recipe), folder, resume=(folder / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


async def talk(app: Any, number: int, question: str, wanted: str, *, seed: int) -> bool:
    """An episode of the user through the official client: he asks, and thanks or corrects. Whether the first answer was
    right.

    Args:
        app: The application that answers.
        number: Names the episode.
    """
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    async with openai.AsyncOpenAI(
        api_key="none", base_url=f"http://localhost/episodes/{number}/v1", max_retries=0, http_client=http
    ) as client:
        asked: Any = [{"role": "user", "content": question}]
        right = False
        for turn in range(2):
            told = await client.chat.completions.create(model="letters", messages=asked, max_tokens=8, seed=seed + turn)
            said = told.choices[0].message.content or ""
            right = right or (turn == 0 and said.strip() == wanted)
            answer = {"role": "assistant", "content": said}
            asked = [*asked, answer, {"role": "user", "content": "Thanks!" if right else correction(wanted)}]
        return right


def live_recipe(checkpoint: Path, tasks: Path, wanted: str, live: Mapping[str, Any]) -> Resolved:
    """A recipe of live learning from that policy; held-out tasks ask what the user wants.

    Args:
        tasks: A file that is written.
        live: The keys of its section.
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


def _shown(draw: random.Random) -> Any:
    """Guesses, and answers behind a correction: in the question, and now and then as a conversation."""
    for number in range(2000):
        question, guess, wanted = draw.choice(QUESTIONS), draw.choice(LETTERS), draw.choice(LETTERS)
        asked = {"role": "user", "content": question}
        yield {"messages": [asked, {"role": "assistant", "content": guess}]}
        hinted = {"role": "user", "content": f"{question}\n{correction(wanted)}"}
        yield {"messages": [hinted, {"role": "assistant", "content": wanted}]}
        if number % 4:
            continue
        corrected = {"role": "user", "content": correction(wanted)}
        said = [asked, {"role": "assistant", "content": guess}, corrected, {"role": "assistant", "content": wanted}]
        yield {"messages": said}


def _write(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
