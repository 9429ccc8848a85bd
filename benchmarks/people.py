"""What do a person's interventions teach a policy that is served? Corrections in mid-episode, and the signal alone.

A policy that guesses one of four letters is asked three questions in a row, each of which wants a letter of its own; an
episode goes on only behind a right answer, and is worth 1 where all three are right. A scripted expert watches and
takes over most wrong answers, now and then wrongly: he overlooks one in ten, replaces one right answer in twenty, and
names a letter by chance one time in ten. Success is the share of right answers of the policy alone, afterwards.

    corrections        his words are imitated, as data nobody sampled, and the episode's reward pays the policy's own
    preferences        his words are to be likelier than the policy's, and the episode's reward pays
    interventions      an answer he took over is worth −1, any other and his own words 0; nothing else is paid
    without learning   he corrects, the episode's reward pays, and his words are not learned
    rewards alone      nobody corrects, the episode's reward pays

Runs that were made are kept in `--folder` and not made again. Claims are those of benchmarks/evidence/people.yaml;
`--write` keeps the result among benchmarks/results/evidence.
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

from evidence import BENCHES, keep, machine, page
from letters import LETTERS, QUESTIONS, checkpoint_of, live_recipe
from whetstone.analysis.evidence import read_bench, result_of, row_of
from whetstone.serving.live.service import LiveService

CHAIN = QUESTIONS[:3]
OVERLOOKS, MEDDLES, ERRS = 0.1, 0.05, 0.1
"""How often the expert lets a wrong answer stand, replaces a right one, and says a letter by chance."""
_TALKS = 16
"""Episodes in which the policy is by itself."""
CONTENDERS: dict[str, tuple[str, bool, bool]] = {
    "corrections": ("demonstration", True, True),
    "preferences": ("preference", True, True),
    "interventions": ("reward", True, False),
    "without learning": ("none", True, True),
    "rewards alone": ("none", False, True),
}
"""(`live.intervention`, whether somebody corrects, whether the episode's reward is paid)"""


class Talk:
    """An episode: the user asks his questions, the policy answers, and somebody may take over."""

    def __init__(self, service: LiveService, name: str, *, seed: int) -> None:
        self.service, self.name, self.seed = service, name, seed
        self.said: list[dict[str, Any]] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the service answers."""
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

    async def asked(self, question: str) -> str:
        """What the policy answers."""
        self.said.append({"role": "user", "content": question})
        body = {"model": "letters", "messages": self.said, "max_tokens": 8, "seed": self.seed + len(self.said)}
        told = await self.post(f"/episodes/{self.name}/v1/chat/completions", body)
        self.said.append(told["choices"][0]["message"])
        return str(self.said[-1]["content"] or "").strip()

    async def taken_over(self, letter: str) -> None:
        """The expert says this in its place."""
        message = {"content": letter}
        told = await self.post(f"/v1/episodes/{self.name}/take-over", {"message": message, "by": "expert"})
        self.said[-1] = told["message"]


def wanted_of(seed: int) -> list[str]:
    """The letter each question wants."""
    return random.Random(f"people/{seed}").sample(LETTERS, len(CHAIN))


async def learned(checkpoint: Path, folder: Path, contender: str, *, seed: int, episodes: int) -> dict[str, Any]:
    """What became of a run: whether the policy was right by itself, afterwards and before, and how often it was taken
    over."""
    wanted, draw = wanted_of(seed), random.Random(f"expert/{seed}")
    learned_as, corrects, pays = CONTENDERS[contender]
    live: dict[str, Any] = {"turns_per_update": 4, "replay_turns": 4, "reference_kl": 0.1, "hint_weight": 0.0}
    live["intervention"] = learned_as
    recipe = live_recipe(checkpoint, folder.with_suffix(".jsonl"), wanted[0], live)
    takes: list[int] = []
    async with LiveService(recipe, folder, name="letters") as service:
        before = await alone(service, wanted, seed=seed, name="before")
        for number in range(episodes):
            took, right = 0, True
            async with Talk(service, f"e{number}", seed=10_000 * (seed + 1) + 10 * number) as talk:
                for question, letter in zip(CHAIN, wanted, strict=True):
                    said = await talk.asked(question)
                    if corrects:
                        await talk.post(f"/v1/episodes/e{number}/watch", {"by": "expert"})
                    doubts = draw.random() < (MEDDLES if said == letter else 1 - OVERLOOKS)
                    shown = draw.choice(LETTERS) if draw.random() < ERRS else letter
                    if corrects and doubts and shown != said:
                        await talk.taken_over(shown)
                        said, took = shown, took + 1
                    right = said == letter
                    if not right:
                        break
                if pays:
                    await talk.post(f"/v1/episodes/e{number}/reward", {"reward": float(right)})
                else:
                    service.episodes.close()
            takes.append(took)
            await service.live.settled()  # so that timing decides nothing
        service.live.pause(True)
        after = await alone(service, wanted, seed=seed, name="after")
    return {"before": before, "after": after, "takes": takes}


async def alone(service: LiveService, wanted: list[str], *, seed: int, name: str, talks: int = _TALKS) -> list[bool]:
    """Whether each answer is right where nobody helps; questions go on behind wrong answers, too."""
    right = []
    for number in range(talks):
        async with Talk(service, f"{name}{number}", seed=900_000 + 1000 * seed + 10 * number) as talk:
            right += [await talk.asked(question) == letter for question, letter in zip(CHAIN, wanted, strict=True)]
    return right


def guessing(folder: Path) -> Path:
    """A checkpoint of a policy that guesses a letter behind each question; made where it is not there."""
    return checkpoint_of(folder, _shown(random.Random(0)))


def _shown(draw: random.Random) -> Any:
    for _ in range(2000):
        said: list[dict[str, str]] = []
        for question in CHAIN[: draw.randint(1, len(CHAIN))]:
            said.append({"role": "user", "content": question})
            said.append({"role": "assistant", "content": draw.choice(LETTERS)})
        yield {"messages": said}


def main() -> None:
    """Run them, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS), metavar="CONTENDER")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-people"), help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "people.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    checkpoint = guessing(arguments.folder / "guessing")
    for seed in range(arguments.seeds):
        for contender in arguments.only:
            folder = arguments.folder / f"{contender.replace(' ', '-')}-{seed}-{arguments.episodes}"
            made = folder.with_suffix(".json")
            if not made.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # half of a run that was stopped
                work = learned(checkpoint, folder, contender, seed=seed, episodes=arguments.episodes)
                made.write_text(json.dumps(asyncio.run(work)))
            found = json.loads(made.read_text())
            for name, of in ((contender, "after"), ("before", "before")):
                right = [float(each) for each in found[of]]
                measures = {"success": statistics.fmean(right)}
                if of == "after":
                    taken = [float(each) for each in found["takes"]]
                    measures |= {"taken over, first 16": statistics.fmean(taken[:16])}
                    measures |= {"taken over, last 16": statistics.fmean(taken[-16:])}
                rows.setdefault(name, {})[seed] = row_of(settings, name, seed, measures, right)
                if name != "before":
                    print(name, seed, measures, file=sys.stderr, flush=True)
    told = result_of("people", settings, rows, world="demo", machine=machine(), budget={}, tasks=_TALKS * len(CHAIN))
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
