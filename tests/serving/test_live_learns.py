"""A user who corrects teaches a policy his taste, in so many interactions; a judge who is poisoned does not keep it."""

import asyncio

import pytest

from letters import LETTERS, QUESTIONS, guessing_policy, live_recipe, talk
from whetstone.serving.live import Judgement, LiveService, by_rules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guessing(tmp_path_factory):
    return guessing_policy(tmp_path_factory.mktemp("letters") / "guessing")


def poisoned(followed):
    """The contrary of what was meant."""
    judgement = by_rules(followed)
    return Judgement(-judgement.reward, "", judgement.why)


def talked(checkpoint, folder, interactions, **live):
    """(whether each first answer was right, what was said meanwhile, the journal)"""
    wanted, found, lines = LETTERS[2], [], []

    async def run():
        recipe = live_recipe(checkpoint, folder / "tasks.jsonl", wanted, {"turns_per_update": 4, **live})
        async with LiveService(recipe, folder / "run", name="letters", say=lines.append) as service:
            for number in range(interactions):
                question = QUESTIONS[number % len(QUESTIONS)]
                found.append(await talk(service.app, number, question, wanted, seed=2 * number))
                await service.live.settled()
            return service.live.journal

    journal = asyncio.run(run())
    return found, lines, journal


def test_what_a_user_corrects_is_learned_within_forty_interactions(guessing, tmp_path):
    right, _, journal = talked(guessing, tmp_path, 48, reference_kl=0.02)
    assert sum(right[:8]) <= 5  # it guesses one of four
    assert sum(right[40:]) >= 7
    assert journal.step == 12


def test_what_a_poisoned_judge_taught_is_gone_again(guessing, tmp_path):
    _, _, honest = talked(guessing, tmp_path / "honest", 40, guard={"interval_updates": 5, "max_drop": 0.3})
    assert honest.best == (honest.best[0], 1.0)
    checkpoint = tmp_path / "honest" / "run" / "checkpoints" / f"step-{honest.best[0]:06d}"
    _, lines, journal = talked(checkpoint, tmp_path / "poisoned", 40, scorer=poisoned, learning_rate=3e-3,
                               guard={"interval_updates": 5, "max_drop": 0.3})  # fmt: skip
    assert journal.success[0] == 1.0
    assert any("the weights of step 0 are back" in line for line in lines)
