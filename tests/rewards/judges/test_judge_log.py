"""Judgements are stored with the score they lead to."""

import asyncio
from dataclasses import replace

from support.judges import reads, says_yes
from support.rewards import episode, task
from whetstone.rewards import score_group, score_trajectory
from whetstone.rewards.judge_rewards.pairwise import Preferred
from whetstone.rewards.judge_rewards.rubric import Rubric
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.judges.judge_log import MOST_KEPT
from whetstone.trajectory import Score

CITIES = [{"criterion": 'It says "Rome".', "points": 1}, {"criterion": 'It says "Oslo".', "points": 1}]


def rubric(answers=reads):
    return Rubric(judge=ScriptedJudge(answers=answers), criteria=CITIES)


def judgements_by_criterion(trajectory):
    return {each.question.rpartition(" criterion? ")[2]: dict(each.answer) for each in trajectory.score.judgements}


def test_each_prompt_is_stored_with_its_answer_and_reason():
    trajectory = asyncio.run(score_trajectory(rubric(), episode("Rome"), task("?")))
    assert judgements_by_criterion(trajectory) == {
        'It says "Rome".': {"reason": "Rome", "met": True},
        'It says "Oslo".': {"reason": "Oslo", "met": False},
    }


def test_concurrent_scores_have_separate_judgements_also_from_the_cache():
    reward = rubric()

    async def both():
        return await asyncio.gather(
            *(score_trajectory(reward, episode(text), task("?")) for text in ("Rome", "Oslo", "Rome"))
        )

    rome, oslo, cached = asyncio.run(both())
    assert judgements_by_criterion(rome)['It says "Rome".']["met"] is True
    assert judgements_by_criterion(oslo)['It says "Rome".']["met"] is False
    assert judgements_by_criterion(cached) == judgements_by_criterion(rome)
    assert reward.judge.meter.cached == 2


def test_reward_without_a_judge_stores_nothing_and_judgements_do_not_affect_equality():
    async def plain(trajectory, task):
        return Score(1.0)

    assert asyncio.run(score_trajectory(plain, episode("7"), task("?"))).score.judgements == ()
    judged = asyncio.run(score_trajectory(rubric(), episode("Rome"), task("?"))).score
    assert judged == Score(judged.value, judged.parts, success=judged.success)


def test_long_answers_are_truncated_and_stored_judgements_bounded():
    many = [{"criterion": f"{k}", "points": 1} for k in range(MOST_KEPT + 9)]
    judge = ScriptedJudge(answers=lambda question: {"reason": "a" * 2000, "met": True})
    trajectory = asyncio.run(score_trajectory(Rubric(judge=judge, criteria=many), episode("7"), task("?")))
    assert len(trajectory.score.judgements) == MOST_KEPT
    assert len(trajectory.score.judgements[0].answer["reason"]) < 1100


def test_preference_names_the_compared_trajectories():
    def longer(question):
        first, second = question.material["first"], question.material["second"]
        return {"reason": "longer", "better": "first" if len(first) > len(second) else "second"}

    reward = Preferred(judge=ScriptedJudge(answers=longer), base_reward=rubric(says_yes))
    group = [asyncio.run(score_trajectory(reward, replace(episode(text), id=text), task("?"))) for text in ("a", "bbb")]
    one, other = asyncio.run(score_group(reward, group, task("?")))
    assert one.score.judgements == other.score.judgements
    (judgement,) = one.score.judgements
    assert judgement.question.endswith("First: a; second: bbb")
    assert judgement.answer == {"reason": "longer", "better": "second"}
