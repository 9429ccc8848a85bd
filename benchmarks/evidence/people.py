"""Human interventions in the episodes of a served policy: corrections, preferences, and only the signal.

A policy that guesses one of four letters answers three questions in a row, each with its own right letter; an episode
continues only after a right answer, and has reward 1 if all three are right. A scripted expert replaces most wrong
answers, with errors: it misses one in ten, replaces one right answer in twenty, and gives a random letter one time in
ten. Success is the fraction of right answers of the policy without the expert, after training.

    corrections        imitates the expert's messages; the policy's own turns receive the episode's reward
    preferences        prefers the expert's messages to the policy's; the episode's reward applies
    interventions      a replaced answer has reward −1, all others 0; no other reward
    without learning   the expert corrects, the episode's reward applies, and its messages are not trained
    rewards only       no corrections; the episode's reward applies

`--folder` stores the runs; finished ones are reused. Claims are those of evidence/benchmarks/people.yaml; `--write`
stores the result in benchmarks/results/evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import httpx2

from claims.bench_settings import read_bench
from claims.evidence import build_result, build_row
from evidence import BENCHES, describe_machine, page, store_result
from letter_preferences import LETTERS, QUESTIONS, live_recipe, train_checkpoint
from whetstone.serving.online.service import LiveService

CHAIN = QUESTIONS[:3]
OVERLOOKS, MEDDLES, ERRS = 0.1, 0.05, 0.1
"""Probability that the expert misses a wrong answer, replaces a right one, and gives a random letter."""
_TALKS = 16
"""Number of evaluation episodes without the expert."""
CONTENDERS: dict[str, tuple[str, bool, bool]] = {
    "corrections": ("demonstration", True, True),
    "preferences": ("preference", True, True),
    "interventions": ("reward", True, False),
    "without learning": ("none", True, True),
    "rewards only": ("none", False, True),
}
"""Contender → (`live.intervention`, whether the expert corrects, whether the episode's reward applies)."""


class Talk:
    """Episode of questions and answers in which the expert can replace an answer."""

    def __init__(self, service: LiveService, name: str, *, seed: int) -> None:
        self.service, self.name, self.seed = service, name, seed
        self.messages: list[dict[str, Any]] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the response of the service."""
        answer = await self.service_http.post(path, json=body)
        answer.raise_for_status()
        return dict(answer.json())

    async def __aenter__(self) -> Talk:
        self.service_http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.service.app), base_url="http://localhost"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service_http.aclose()

    async def ask_question(self, question: str) -> str:
        """Ask a question and return the answer of the policy."""
        self.messages.append({"role": "user", "content": question})
        body = {"model": "letters", "messages": self.messages, "max_tokens": 8, "seed": self.seed + len(self.messages)}
        response = await self.post(f"/episodes/{self.name}/v1/chat/completions", body)
        self.messages.append(response["choices"][0]["message"])
        return str(self.messages[-1]["content"] or "").strip()

    async def replace_answer(self, letter: str) -> None:
        """Replace the last answer by the expert's."""
        message = {"content": letter}
        response = await self.post(f"/v1/episodes/{self.name}/take-over", {"message": message, "by": "expert"})
        self.messages[-1] = response["message"]


def right_letters_for(seed: int) -> list[str]:
    """Return the right letter of each question."""
    return random.Random(f"people/{seed}").sample(LETTERS, len(CHAIN))


async def train_run(checkpoint: Path, folder: Path, contender: str, *, seed: int, episodes: int) -> dict[str, Any]:
    """Train a run and return whether the policy was right without the expert, before and after, and the number of
    replaced answers per episode."""
    right_letters, draw = right_letters_for(seed), random.Random(f"expert/{seed}")
    learned_as, corrects, pays = CONTENDERS[contender]
    live: dict[str, Any] = {"turns_per_update": 4, "replay_turns": 4, "reference_kl": 0.1, "hint_weight": 0.0}
    live["intervention"] = learned_as
    recipe = live_recipe(checkpoint, folder.with_suffix(".jsonl"), right_letters[0], live)
    takes: list[int] = []
    async with LiveService(recipe, folder, name="letters") as service:
        before = await evaluate_policy(service, right_letters, seed=seed, name="before")
        for number in range(episodes):
            took, right = 0, True
            async with Talk(service, f"e{number}", seed=10_000 * (seed + 1) + 10 * number) as talk:
                for question, letter in zip(CHAIN, right_letters, strict=True):
                    answer = await talk.ask_question(question)
                    if corrects:
                        await talk.post(f"/v1/episodes/e{number}/watch", {"by": "expert"})
                    doubts = draw.random() < (MEDDLES if answer == letter else 1 - OVERLOOKS)
                    expert_letter = draw.choice(LETTERS) if draw.random() < ERRS else letter
                    if corrects and doubts and expert_letter != answer:
                        await talk.replace_answer(expert_letter)
                        answer, took = expert_letter, took + 1
                    right = answer == letter
                    if not right:
                        break
                if pays:
                    await talk.post(f"/v1/episodes/e{number}/reward", {"reward": float(right)})
                else:
                    service.episodes.close()
            takes.append(took)
            await service.live.wait_idle()  # makes the result independent of timing
        service.live.set_paused(True)
        after = await evaluate_policy(service, right_letters, seed=seed, name="after")
    return {"before": before, "after": after, "takes": takes}


async def evaluate_policy(
    service: LiveService, right_letters: list[str], *, seed: int, name: str, talks: int = _TALKS
) -> list[bool]:
    """Return whether each answer is right without the expert; questions continue after wrong answers."""
    right = []
    for number in range(talks):
        async with Talk(service, f"{name}{number}", seed=900_000 + 1000 * seed + 10 * number) as talk:
            right += [
                await talk.ask_question(question) == letter
                for question, letter in zip(CHAIN, right_letters, strict=True)
            ]
    return right


def train_guessing(folder: Path) -> Path:
    """Return the checkpoint of a policy that guesses letters; train it if it is missing."""
    return train_checkpoint(folder, _make_conversations(random.Random(0)))


def _make_conversations(draw: random.Random) -> Any:
    for _ in range(2000):
        messages: list[dict[str, str]] = []
        for question in CHAIN[: draw.randint(1, len(CHAIN))]:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": draw.choice(LETTERS)})
        yield {"messages": messages}


def main() -> None:
    """Run all contenders, print the table, and optionally store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS), metavar="CONTENDER")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/bench-people"), help="folder of runs; finished ones are reused"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "people.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    checkpoint = train_guessing(arguments.folder / "guessing")
    for seed in range(arguments.seeds):
        for contender in arguments.only:
            folder = arguments.folder / f"{contender.replace(' ', '-')}-{seed}-{arguments.episodes}"
            stored_path = folder.with_suffix(".json")
            if not stored_path.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
                work = train_run(checkpoint, folder, contender, seed=seed, episodes=arguments.episodes)
                stored_path.write_text(json.dumps(asyncio.run(work)))
            stored = json.loads(stored_path.read_text())
            for name, of in ((contender, "after"), ("before", "before")):
                right = [float(each) for each in stored[of]]
                measures = {"success": statistics.fmean(right)}
                if of == "after":
                    num_replaced = [float(each) for each in stored["takes"]]
                    measures |= {"taken over, first 16": statistics.fmean(num_replaced[:16])}
                    measures |= {"taken over, last 16": statistics.fmean(num_replaced[-16:])}
                rows.setdefault(name, {})[seed] = build_row(settings, name, seed, measures, right)
                if name != "before":
                    print(name, seed, measures, file=sys.stderr, flush=True)
    result = build_result(
        "people", settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=_TALKS * len(CHAIN)
    )
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
