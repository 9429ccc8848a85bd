"""A scripted person who makes mistakes takes over during episodes: training on their messages and on the
interventions."""

import asyncio
from statistics import fmean

import pytest

from people import train_guessing, train_run


@pytest.mark.slow
def test_corrections_and_interventions_teach_more_than_the_reward(tmp_path):
    checkpoint = train_guessing(tmp_path / "guessing")

    def gained(contender):
        results = asyncio.run(train_run(checkpoint, tmp_path / contender, contender, seed=1, episodes=64))
        return fmean(results["after"]) - fmean(results["before"])

    assert gained("corrections") > 0.3
    assert gained("interventions") > 0.1
    assert gained("rewards only") < 0.1
