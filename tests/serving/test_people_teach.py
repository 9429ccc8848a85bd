"""A scripted person who errs takes over in mid-episode: his words as data teach, and so does that he intervened."""

import asyncio
from statistics import fmean

import pytest

from people import guessing, learned


@pytest.mark.slow
def test_corrections_in_mid_episode_and_interventions_alone_teach_what_the_reward_alone_does_not(tmp_path):
    checkpoint = guessing(tmp_path / "guessing")

    def gained(contender):
        found = asyncio.run(learned(checkpoint, tmp_path / contender, contender, seed=1, episodes=64))
        return fmean(found["after"]) - fmean(found["before"])

    assert gained("corrections") > 0.3
    assert gained("interventions") > 0.1
    assert gained("rewards alone") < 0.1
