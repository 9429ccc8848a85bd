"""A policy learns the preference of a correcting user within a number of interactions, and recovers from a poisoned
judge."""

import asyncio

import pytest

from letter_preferences import LETTERS, QUESTIONS, live_recipe, talk, train_guessing_policy
from whetstone.serving.online import Feedback, LiveService, by_rules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guessing(tmp_path_factory):
    return train_guessing_policy(tmp_path_factory.mktemp("letters") / "guessing")


def poisoned(followed):
    """Return the opposite verdict."""
    feedback = by_rules(followed)
    return Feedback(-feedback.reward, "", feedback.why)


def converse(checkpoint, folder, interactions, **live):
    """Return (whether each first response was correct, reported lines, the journal)."""
    wanted, results, lines = LETTERS[2], [], []

    async def run():
        recipe = live_recipe(checkpoint, folder / "tasks.jsonl", wanted, {"turns_per_update": 4, **live})
        async with LiveService(recipe, folder / "run", name="letters", say=lines.append) as service:
            for number in range(interactions):
                question = QUESTIONS[number % len(QUESTIONS)]
                results.append(await talk(service.app, number, question, wanted, seed=2 * number))
                await service.live.wait_idle()
            return service.live.journal

    journal = asyncio.run(run())
    return results, lines, journal


def test_corrections_of_a_user_are_learned_within_forty_interactions(guessing, tmp_path):
    right, _, journal = converse(guessing, tmp_path, 48, reference_kl=0.02)
    assert sum(right[:8]) <= 5  # a random guess of four
    assert sum(right[40:]) >= 7
    assert journal.step == 12


def test_updates_of_a_poisoned_judge_are_reverted(guessing, tmp_path):
    _, _, honest = converse(guessing, tmp_path / "honest", 40, guard={"interval_updates": 5, "max_drop": 0.3})
    assert honest.best == (honest.best[0], 1.0)
    checkpoint = tmp_path / "honest" / "run" / "checkpoints" / f"step-{honest.best[0]:06d}"
    _, lines, journal = converse(checkpoint, tmp_path / "poisoned", 40, scorer=poisoned, learning_rate=3e-3,
                               guard={"interval_updates": 5, "max_drop": 0.3})  # fmt: skip
    assert journal.success[0] == 1.0
    assert any("the weights of step 0 are restored" in line for line in lines)
