"""Relevant question reward: a solved episode scores less for unnecessary questions and for guessed details.

Note: A bonus per question is won by asking everything. Here questions only lower the reward of solved episodes, and the
relevant ones are free.
"""

from __future__ import annotations

from dataclasses import replace

from whetstone.bounded_types import Count, ShareBelowOne
from whetstone.rewards.environment_state.environment_outcome import verdict
from whetstone.rewards.protocol import Reward, needs_private
from whetstone.trajectory import Score, Task, Trajectory


@needs_private("missing")
async def relevant_questions(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = verdict,
    weight: ShareBelowOne = 0.5,
    max_mistakes: Count = 4,
) -> Score:
    """Multiply the reward of a solved episode by a factor for few, relevant questions to a simulated user.

        factor = 1 − weight · min(1, (unnecessary + guessed) / max_mistakes)

    `task.private["missing"]` lists the details that the request lacks. The environment's verdict counts `questions`,
    and `relevant_questions`: the missing details that the user stated when asked. The other questions are unnecessary;
    missing details that were not asked for are guessed. An unsolved episode keeps the value of the outcome.

    Args:
        outcome: Reward that determines whether the task was solved.
        weight: Fraction of the reward that is lost with `max_mistakes` mistakes; below 1, so that solving is always
            better.
        max_mistakes: Number of unnecessary questions and guessed details from which the factor is the lowest.

    Raises:
        ValueError: If the verdict does not count questions.

    Source: Ask-to-Act 2025, arXiv:2504.00907, whose agents ask few, relevant questions about ambiguous instructions;
    DoctorAgent-RL 2025, arXiv:2505.19630, which rewards the outcome and efficient questions. The factor is ours.
    """
    score = await outcome(trajectory, task)
    final = trajectory.final
    if score.invalid:
        return score
    if final and not {"questions", "relevant_questions"} <= final.keys():
        raise ValueError(
            "the verdict does not count questions and relevant_questions; return both from verdict(), or set tasks."
            "ambiguous_fraction of the source support"
        )
    questions, relevant = int(final.get("questions", 0)), int(final.get("relevant_questions", 0))
    unnecessary, guessed = questions - relevant, len(task.private["missing"]) - relevant
    factor = 1 - weight * min(1.0, (unnecessary + guessed) / max_mistakes) if score.success else 1.0
    counts = {"questions": questions, "unnecessary_questions": unnecessary, "guessed_details": guessed}
    return replace(score, value=score.value * factor, parts={**score.parts, **{k: float(v) for k, v in counts.items()}})
