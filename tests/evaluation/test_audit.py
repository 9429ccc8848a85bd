"""`whetstone rewards audit` finds the faults of a reward, and no others."""

import asyncio
import json
from pathlib import Path

import pytest

from support.cli import whetstone as command
from support.sandbox import mark_isolation
from support.slow import mostly_slow
from whetstone.assembly import build_scoring_components
from whetstone.chat import assistant, user
from whetstone.environments import Observation, StepResult
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.audit import PLAYERS, REWARD_VARIES, Audit
from whetstone.evaluation.check_result import CheckStatus
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.rewards import exact_number, final_answer, last_number, verdict
from whetstone.rewards.efficiency.otc import Otc
from whetstone.tasks import Generated
from whetstone.trajectory import Score, Task

RECIPES = [*built_in_recipes(), *built_in_methods()]


def run_audit(reward, recipe="demo", tasks=3, **more):
    """Return the results of the checks by name."""
    source, make, own = build_scoring_components(
        load_recipe(recipe, [f"reward={reward}"] if isinstance(reward, str) else [])
    )
    audit = Audit(make, source, own if isinstance(reward, str) else reward, tasks=tasks, max_turns=6, **more)

    async def main():
        return {check.name: check async for check in audit.run_checks()}

    return asyncio.run(main())


def failed_checks(checks):
    return {name for name, check in checks.items() if check.verdict is CheckStatus.FAIL}


async def substring(trajectory, task):
    """Check whether the text contains the answer."""
    right = str(task.private["answer"]) in (final_answer(trajectory) or "")
    return Score(float(right), {"correct": float(right)}, success=right)


async def swallowing(trajectory, task):
    """Return 0 for exceptions."""
    try:
        return await exact_number(trajectory, task)
    except Exception:
        return Score(0.0, {"correct": 0.0}, success=False)


async def noisy(trajectory, task):
    """Return another number at each call."""
    noisy.count = getattr(noisy, "count", 0) + 1
    score = await exact_number(trajectory, task)
    return Score(score.value + 1e-3 * noisy.count, score.parts, success=score.success)


async def moody(trajectory, task):
    """Return components that vary between calls."""
    score = await exact_number(trajectory, task)
    return Score(score.value, {"short": 1.0} if len(trajectory.turns) == 1 else {"long": 1.0}, success=score.success)


OBEDIENT = (
    "{name: rubric, key: none, criteria: ['the answer is right'],"
    " judge: {name: scripted, answers: 'support.judges:obeys'}}"
)
ADDED = "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 0.3}}}"
GATED = "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 0.3, times: correct}}}"


def test_substring_grader_fails():
    checks = run_audit(substring)
    assert failed_checks(checks) == {"good before bad"}
    assert "answers everything has 1, expert has 1" in checks["good before bad"].said


def test_additive_efficiency_bonus_fails_and_a_factor_passes():
    checks = run_audit(ADDED)
    assert failed_checks(checks) == {"no pay for giving up"}
    assert "`gate` or `times`" in checks["no pay for giving up"].mend
    assert failed_checks(run_audit(GATED)) == set()


def test_efficiency_bonus_larger_than_the_answer_fails_two_checks():
    assert failed_checks(run_audit(ADDED.replace("0.3", "3.0"))) == {
        "no pay for giving up",
        "good before bad",
        "nothing for nothing",
    }


async def last_words(trajectory, task):
    """Check whether the last text is correct, also for unfinished episodes."""
    right = last_number(trajectory.final_text) == last_number(str(task.private["answer"]))
    return Score(float(right), {"correct": float(right)}, success=right)


class Rounds:
    """A world that ends after three `on` or a word that ends it; `wins` decides the outcome."""

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


class OnTasks(Generated):
    name = "on"

    def make(self, draw, level):
        return Task("", f"on {draw.randrange(1000)}", {})

    def demonstrate(self, task, conversation, tools):
        return assistant("on")


async def ignore_environment(trajectory, task):
    """Ignore the environment, and reward every last text except wrong moves."""
    right = not trajectory.final_text.startswith("m")
    return Score(float(right), {"right": float(right)}, success=right)


def audit_rounds(wins, reward=verdict, tasks=6, source=None):
    audit = Audit(lambda: Rounds(wins), source or OnTasks(), reward, tasks=tasks, max_turns=6)

    async def main():
        return {check.name: check async for check in audit.run_checks()}

    return asyncio.run(main())


def honest(words):
    return words == ["on"] * 3


def raising(words):
    if isinstance(words, str):
        raise ValueError("too long")
    return honest(words)


def test_valid_world_passes_with_every_impostor():
    assert audit_rounds(honest)["nothing for nothing"].verdict is CheckStatus.PASS


@pytest.mark.parametrize(
    ("wins", "reward", "message"),
    [
        (lambda words: True, verdict, "nothing wins 6 of 6"),  # the verdict of the world is the same
        (lambda words: "zzqx" in words or honest(words), verdict, "garbage wins 6 of 6"),
        (lambda words: "nan" in words or honest(words), verdict, "nonsense wins"),
        (lambda words: words[0] in ("on", *(f"m{k}" for k in range(7))), verdict, "one move wins 6 of 6"),
        (lambda words: bool({"done", "accept", "quit"} & set(words)) or honest(words), verdict, "stops wins"),
        (honest, ignore_environment, "nothing wins 6 of 6"),
        (raising, verdict, "nonsense has no score in 1 of 6: test_audit.py:"),
    ],
)
def test_rewarded_nonsense_and_immediate_stops_fail(wins, reward, message):
    result = audit_rounds(wins, reward)["nothing for nothing"]
    assert result.verdict is CheckStatus.FAIL, result.said
    assert message in result.said


async def always_zero(trajectory, task):
    """Return 0 for everything."""
    return 0.0


async def number_equals_text(trajectory, task):
    """Compare a text with a number, so that the result is always 0."""
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
def test_constant_reward_is_reported_only_as_constant(reward, cause):
    checks = run_audit(reward)
    assert failed_checks(checks) == {REWARD_VARIES}
    assert cause in checks[REWARD_VARIES].said
    assert checks[REWARD_VARIES].mend


class WithoutExpert(Generated):
    name = "without_expert"

    def make(self, draw, level):
        return Task("", f"on {draw.randrange(1000)}", {})


def test_constant_reward_is_undecided_without_a_correct_episode():
    checks = audit_rounds(honest, always_zero, source=WithoutExpert())
    assert checks[REWARD_VARIES].verdict is CheckStatus.WARN
    assert failed_checks(checks) == set()


def test_lucky_move_is_not_a_fault():
    lucky = audit_rounds(lambda words: words[0] == "on" and "zzqx" not in words)
    assert lucky["nothing for nothing"].verdict is CheckStatus.PASS
    assert lucky["good before bad"].verdict is CheckStatus.PASS


def test_reward_for_unfinished_episodes_fails():
    checks = run_audit(last_words)
    assert failed_checks(checks) == {"good before bad"}
    assert "unfinished has 1, expert has 1" in checks["good before bad"].said


def test_tasks_without_an_expert_are_tested_with_honest_failures(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"prompt": "What is {k}+1?", "answer": {k + 1}}}\n' for k in range(9))
    )
    keys = [f"tasks={{source: jsonl, path: {tmp_path / 'tasks.jsonl'}}}", "supervised=null", f"reward={ADDED}"]
    source, make, reward = build_scoring_components(load_recipe("demo", [*keys, "ablations=null"]))

    async def main():
        return {check.name: check async for check in Audit(make, source, reward, tasks=4, max_turns=4).run_checks()}

    assert failed_checks(asyncio.run(main())) == {"no pay for giving up"}


def test_zero_for_exceptions_fails():
    checks = run_audit(swallowing)
    assert failed_checks(checks) == {"failures are no numbers"}
    assert "without the task's private data it returns 0" in checks["failures are no numbers"].said


def test_judge_that_follows_instructions_of_the_answer_fails():
    checks = run_audit(OBEDIENT)
    assert "good before bad" in failed_checks(checks)
    assert "injects" in checks["good before bad"].said


def test_unreachable_judge_gives_no_number():
    reward = "{name: rubric, key: none, criteria: ['x'], judge: {name: scripted, answers: 'support.judges:says_yes'}}"
    checks = run_audit(reward)
    assert "its judge" in checks["failures are no numbers"].said
    assert checks["failures are no numbers"].verdict is CheckStatus.PASS
    assert REWARD_VARIES in failed_checks(checks)  # it accepts everything


def test_comparative_rewards_are_called_with_a_group():
    assert failed_checks(run_audit("{name: otc, outcome: exact_number}")) == set()
    assert failed_checks(run_audit(Otc(outcome=swallowing))) == {"failures are no numbers"}


def test_random_rewards_and_varying_components_are_noted():
    checks = run_audit(noisy)
    assert checks["the same again"].verdict is CheckStatus.WARN
    checks = run_audit(moody)
    assert (checks["components"].verdict, failed_checks(checks)) == (CheckStatus.WARN, set())
    assert "long, short" in checks["components"].said


def test_narrow_margin_between_good_and_bad_is_noted():
    close = (
        "{name: composed, terms: {correct: exact_number, few: {name: few_calls, weight: 1.0, max_calls: 8},"
        " ran: {name: executed_calls, weight: 0.125}}}"
    )
    assert "weights" in run_audit(close)


@pytest.mark.parametrize(
    "recipe",
    mark_isolation(mostly_slow(RECIPES, quick=["demo", "bargaining", "support"]), needing=["smollm2-python"]),
)
def test_every_built_in_recipe_passes(recipe):
    try:
        parts = build_scoring_components(load_recipe(recipe))
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
        return {check.name: check async for check in audit.run_checks()}

    checks = asyncio.run(main())
    assert {name: check.said for name, check in checks.items() if check.verdict is CheckStatus.FAIL} == {}
    assert {row["player"] for row in audit.summarize_players()} == {*PLAYERS, "unfinished"}
    (expert,) = (row for row in audit.summarize_players() if row["player"] == "expert")
    assert expert["deserved"] == 1


def test_command_prints_lines_and_json():
    output = command("rewards", "audit", "demo", "--tasks", "2")
    assert output.returncode == 0
    assert "the reward of demo was not fooled" in output.stdout
    fooled = command("rewards", "audit", "demo", f"reward={ADDED}", "--json")
    assert fooled.returncode == 1
    report = json.loads(fooled.stdout)
    assert (report["sound"], len(report["players"])) == (False, len(PLAYERS) + 1)
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
