"""The audit finds the faults that are there, and no others."""

import asyncio
import json
from pathlib import Path

import pytest

from tests_cli import whetstone as command
from tests_sandbox import mark_isolation
from tests_slow import mostly_slow
from whetstone.assembly import judged_parts
from whetstone.chat import assistant, user
from whetstone.environments import Observation, StepResult
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.audit import PLAYERS, REWARD_VARIES, Audit
from whetstone.evaluation.checks import CheckStatus
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.rewards import exact_number, final_answer, last_number, verdict
from whetstone.rewards.efficiency.otc import Otc
from whetstone.tasks import Generated
from whetstone.trajectory import Score, Task

RECIPES = [*built_in_recipes(), *built_in_methods()]


def audited(reward, recipe="demo", tasks=3, **more):
    """By name, what each check came to."""
    source, make, own = judged_parts(load_recipe(recipe, [f"reward={reward}"] if isinstance(reward, str) else []))
    audit = Audit(make, source, own if isinstance(reward, str) else reward, tasks=tasks, max_turns=6, **more)

    async def main():
        return {check.name: check async for check in audit.checks()}

    return asyncio.run(main())


def bad(checks):
    return {name for name, check in checks.items() if check.verdict is CheckStatus.FAIL}


async def substring(trajectory, task):
    """Is the answer somewhere in it?"""
    right = str(task.private["answer"]) in (final_answer(trajectory) or "")
    return Score(float(right), {"correct": float(right)}, success=right)


async def swallowing(trajectory, task):
    """What goes wrong is a 0."""
    try:
        return await exact_number(trajectory, task)
    except Exception:
        return Score(0.0, {"correct": 0.0}, success=False)


async def noisy(trajectory, task):
    """Another each time."""
    noisy.count = getattr(noisy, "count", 0) + 1
    score = await exact_number(trajectory, task)
    return Score(score.value + 1e-3 * noisy.count, score.parts, success=score.success)


async def moody(trajectory, task):
    """Components come and go."""
    score = await exact_number(trajectory, task)
    return Score(score.value, {"short": 1.0} if len(trajectory.turns) == 1 else {"long": 1.0}, success=score.success)


OBEDIENT = (
    "{name: rubric, key: none, criteria: ['the answer is right'],"
    " judge: {name: scripted, answers: 'tests_judged:obeys'}}"
)
ADDED = "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 0.3}}}"
GATED = "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 0.3, times: correct}}}"


def test_a_substring_grader_is_caught():
    checks = audited(substring)
    assert bad(checks) == {"good before bad"}
    assert "answers everything has 1 where expert has 1" in checks["good before bad"].said


def test_an_efficiency_bonus_that_is_added_is_caught_and_one_that_is_a_factor_is_not():
    checks = audited(ADDED)
    assert bad(checks) == {"no pay for giving up"}
    assert "`gate` or `times`" in checks["no pay for giving up"].mend
    assert bad(audited(GATED)) == set()


def test_an_efficiency_bonus_larger_than_the_answer_is_caught_twice():
    assert bad(audited(ADDED.replace("0.3", "3.0"))) == {
        "no pay for giving up",
        "good before bad",
        "nothing for nothing",
    }


async def last_words(trajectory, task):
    """Is the last text right, whether it was finished or not?"""
    right = last_number(trajectory.final_text) == last_number(str(task.private["answer"]))
    return Score(float(right), {"correct": float(right)}, success=right)


class Rounds:
    """Say `on` three times, or that it is over; `wins` says what became of it."""

    def __init__(self, wins):
        self.wins, self.said = wins, []

    async def reset(self, task, *, seed):
        self.said = []
        return Observation((user("say on, three times"),))

    async def admissible(self):
        return ["on", *(f"m{k}" for k in range(7))]

    async def step(self, action):
        self.said.append(action.text)
        if len(action.text) > 10_000:
            self.wins(action.text)
        return StepResult(Observation((user("go on"),)), terminated=len(self.said) == 3)

    def verdict(self):
        won = self.wins(self.said)
        return {"success": won, "score": float(won)}

    async def close(self):
        pass


class OnAndOn(Generated):
    name = "on"

    def make(self, draw, level):
        return Task("", f"on {draw.randrange(1000)}", {})

    def demonstrate(self, task, conversation, tools):
        return assistant("on")


async def judged_by_itself(trajectory, task):
    """Ignores the environment, and pays every last text but the wrong moves."""
    right = not trajectory.final_text.startswith("m")
    return Score(float(right), {"right": float(right)}, success=right)


def of_rounds(wins, reward=verdict, tasks=6, source=None):
    audit = Audit(lambda: Rounds(wins), source or OnAndOn(), reward, tasks=tasks, max_turns=6)

    async def main():
        return {check.name: check async for check in audit.checks()}

    return asyncio.run(main())


def honest(said):
    return said == ["on"] * 3


def raising(said):
    if isinstance(said, str):
        raise ValueError("too long")
    return honest(said)


def test_a_sound_world_is_not_blamed_for_its_impostors():
    assert of_rounds(honest)["nothing for nothing"].verdict is CheckStatus.PASS


@pytest.mark.parametrize(
    ("wins", "reward", "said"),
    [
        (lambda said: True, verdict, "nothing wins 6 of 6"),  # the world says so, too
        (lambda said: "zzqx" in said or honest(said), verdict, "garbage wins 6 of 6"),
        (lambda said: "nan" in said or honest(said), verdict, "nonsense wins"),
        (lambda said: said[0] in ("on", *(f"m{k}" for k in range(7))), verdict, "one move wins 6 of 6"),
        (lambda said: bool({"done", "accept", "quit"} & set(said)) or honest(said), verdict, "stops wins"),
        (honest, judged_by_itself, "nothing wins 6 of 6"),
        (raising, verdict, "nonsense has no score in 1 of 6: test_audit.py:"),
    ],
)
def test_nonsense_and_stopping_at_once_that_are_paid_are_caught(wins, reward, said):
    found = of_rounds(wins, reward)["nothing for nothing"]
    assert found.verdict is CheckStatus.FAIL, found.said
    assert said in found.said


async def always_zero(trajectory, task):
    """Reads nothing."""
    return 0.0


async def number_equals_text(trajectory, task):
    """Compares a text with a number, so that it is always 0."""
    return float(trajectory.final_text == int(task.private["answer"]))


@pytest.mark.parametrize(
    ("reward", "cause"),
    [
        (
            always_zero,
            "the reward is 0 in all 48 episodes of 3 tasks; it reads neither the task's private data nor the",
        ),
        (
            number_equals_text,
            "48 episodes of 3 tasks; it reads the task's private data, and its result does not depend",
        ),
    ],
)
def test_a_constant_reward_is_reported_as_constant_and_as_nothing_else(reward, cause):
    checks = audited(reward)
    assert bad(checks) == {REWARD_VARIES}
    assert cause in checks[REWARD_VARIES].said
    assert checks[REWARD_VARIES].mend


class WithoutExpert(Generated):
    name = "without_expert"

    def make(self, draw, level):
        return Task("", f"on {draw.randrange(1000)}", {})


def test_a_constant_reward_is_undecided_if_no_episode_is_known_to_be_right():
    checks = of_rounds(honest, always_zero, source=WithoutExpert())
    assert checks[REWARD_VARIES].verdict is CheckStatus.WARN
    assert bad(checks) == set()


def test_a_lucky_move_is_no_fault():
    lucky = of_rounds(lambda said: said[0] == "on" and "zzqx" not in said)
    assert lucky["nothing for nothing"].verdict is CheckStatus.PASS
    assert lucky["good before bad"].verdict is CheckStatus.PASS


def test_pay_for_what_was_never_finished_is_caught():
    checks = audited(last_words)
    assert bad(checks) == {"good before bad"}
    assert "unfinished has 1 where expert has 1" in checks["good before bad"].said


def test_tasks_without_an_expert_have_honest_failures_too(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"prompt": "What is {k}+1?", "answer": {k + 1}}}\n' for k in range(9))
    )
    given = [f"tasks={{source: jsonl, path: {tmp_path / 'tasks.jsonl'}}}", "supervised=null", f"reward={ADDED}"]
    source, make, reward = judged_parts(load_recipe("demo", [*given, "ablations=null"]))

    async def main():
        return {check.name: check async for check in Audit(make, source, reward, tasks=4, max_turns=4).checks()}

    assert bad(asyncio.run(main())) == {"no pay for giving up"}


def test_a_zero_for_exceptions_is_caught():
    checks = audited(swallowing)
    assert bad(checks) == {"failures are no numbers"}
    assert "without the task's private data it says 0" in checks["failures are no numbers"].said


def test_a_judge_that_obeys_the_answer_is_caught():
    checks = audited(OBEDIENT)
    assert "good before bad" in bad(checks)
    assert "injects" in checks["good before bad"].said


def test_a_judge_that_is_taken_away_leaves_no_number():
    reward = "{name: rubric, key: none, criteria: ['x'], judge: {name: scripted, answers: 'tests_judged:says_yes'}}"
    checks = audited(reward)
    assert "its judge" in checks["failures are no numbers"].said
    assert checks["failures are no numbers"].verdict is CheckStatus.PASS
    assert REWARD_VARIES in bad(checks)  # it says yes to everything


def test_what_compares_is_asked_in_a_group():
    assert bad(audited("{name: otc, outcome: exact_number}")) == set()
    assert bad(audited(Otc(outcome=swallowing))) == {"failures are no numbers"}


def test_what_is_another_each_time_and_components_that_come_and_go_are_noted():
    checks = audited(noisy)
    assert checks["the same again"].verdict is CheckStatus.WARN
    checks = audited(moody)
    assert (checks["components"].verdict, bad(checks)) == (CheckStatus.WARN, set())
    assert "long, short" in checks["components"].said


def test_an_order_that_hangs_by_a_thread_is_noted():
    close = (
        "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 1.0, max_calls: 8},"
        " ran: {name: executed_calls, weight: 0.125}}}"
    )
    assert "weights" in audited(close)


@pytest.mark.parametrize(
    "recipe",
    mark_isolation(mostly_slow(RECIPES, quick=["demo", "bargaining", "support"]), needing=["smollm2-python"]),
)
def test_every_built_in_recipe_passes(recipe):
    try:
        parts = judged_parts(load_recipe(recipe))
    except TaskError as missing:
        pytest.skip(f"{missing}: put GSM8K into data/gsm8k")
    except RecipeError as missing:
        if "pip install" not in str(missing):
            raise
        pytest.skip(str(missing))
    source, make, reward = parts
    turns = min(12, load_recipe(recipe).recipe.environment.max_turns)
    audit = Audit(make, source, reward, tasks=4, max_turns=turns)

    async def main():
        return {check.name: check async for check in audit.checks()}

    checks = asyncio.run(main())
    assert {name: check.said for name, check in checks.items() if check.verdict is CheckStatus.FAIL} == {}
    assert {row["player"] for row in audit.table()} == {*PLAYERS, "unfinished"}
    (expert,) = (row for row in audit.table() if row["player"] == "expert")
    assert expert["deserved"] == 1


def test_the_command_says_it_in_lines_and_in_json():
    shown = command("rewards", "audit", "demo", "--tasks", "2")
    assert shown.returncode == 0
    assert "the reward of demo was not fooled" in shown.stdout
    fooled = command("rewards", "audit", "demo", f"reward={ADDED}", "--json")
    assert fooled.returncode == 1
    said = json.loads(fooled.stdout)
    assert (said["sound"], len(said["players"])) == (False, len(PLAYERS) + 1)
    constant = command(
        "rewards", "audit", "demo", "--tasks", "2", "reward=test_audit:always_zero", cwd=Path(__file__).parent
    )
    assert (constant.returncode, constant.stderr) == (1, "")
    assert constant.stdout.endswith("the reward of demo is constant: 0 in all 32 episodes\n")
    wrong = command("rewards", "audit", "demo", "reward=exact_numbr")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert 'did you mean "exact_number"' in wrong.stderr
    listed = command("rewards", "list", "--json")
    assert "otc" in json.loads(listed.stdout)
