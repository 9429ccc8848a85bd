"""What judges said on the way to a score is kept beside it."""

import asyncio
from dataclasses import replace

from tests_judged import reads, says_yes
from tests_rewards import episode, task
from whetstone.rewards import compared, scored
from whetstone.rewards.judged.preferred import Preferred
from whetstone.rewards.judged.rubric import Rubric
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.judges.heard import MOST_KEPT
from whetstone.trajectory import Score

CITIES = [{"criterion": 'It says "Rome".', "points": 1}, {"criterion": 'It says "Oslo".', "points": 1}]


def rubric(answers=reads):
    return Rubric(judge=ScriptedJudge(answers=answers), criteria=CITIES)


def said(trajectory):
    return {each.question.rpartition(" criterion? ")[2]: dict(each.said) for each in trajectory.score.judgements}


def test_each_question_is_kept_with_its_answer_and_reason():
    found = asyncio.run(scored(rubric(), episode("Rome"), task("?")))
    assert said(found) == {
        'It says "Rome".': {"reason": "Rome", "met": True},
        'It says "Oslo".': {"reason": "Oslo", "met": False},
    }


def test_two_that_are_judged_at_once_each_have_their_own_also_from_what_was_kept():
    reward = rubric()

    async def both():
        return await asyncio.gather(*(scored(reward, episode(text), task("?")) for text in ("Rome", "Oslo", "Rome")))

    rome, oslo, again = asyncio.run(both())
    assert said(rome)['It says "Rome".']["met"] is True
    assert said(oslo)['It says "Rome".']["met"] is False
    assert said(again) == said(rome)
    assert reward.judge.meter.cached == 2


def test_a_reward_that_asks_nobody_keeps_nothing_and_scores_with_and_without_are_equal():
    async def plain(trajectory, given):
        return Score(1.0)

    assert asyncio.run(scored(plain, episode("7"), task("?"))).score.judgements == ()
    judged = asyncio.run(scored(rubric(), episode("Rome"), task("?"))).score
    assert judged == Score(judged.value, judged.parts, success=judged.success)


def test_long_answers_are_cut_and_no_more_than_so_many_are_kept():
    many = [{"criterion": f"{k}", "points": 1} for k in range(MOST_KEPT + 9)]
    judge = ScriptedJudge(answers=lambda question: {"reason": "a" * 2000, "met": True})
    found = asyncio.run(scored(Rubric(judge=judge, criteria=many), episode("7"), task("?")))
    assert len(found.score.judgements) == MOST_KEPT
    assert len(found.score.judgements[0].said["reason"]) < 1100


def test_a_preference_says_of_which_two_it_was():
    def longer(question):
        first, second = question.material["first"], question.material["second"]
        return {"reason": "longer", "better": "first" if len(first) > len(second) else "second"}

    reward = Preferred(judge=ScriptedJudge(answers=longer), base_reward=rubric(says_yes))
    group = [asyncio.run(scored(reward, replace(episode(text), id=text), task("?"))) for text in ("a", "bbb")]
    one, other = asyncio.run(compared(reward, group, task("?")))
    assert one.score.judgements == other.score.judgements
    (judgement,) = one.score.judgements
    assert judgement.question.endswith("First: a; second: bbb")
    assert judgement.said == {"reason": "longer", "better": "second"}
