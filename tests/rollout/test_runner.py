"""One episode: whatever fails, the trajectory is returned with its end reason."""

import asyncio

import pytest

from whetstone import waiting
from whetstone.chat import Chat, ToolCall, assistant, user
from whetstone.chat.formats import Compact
from whetstone.environments import Observation, StepResult, ToolEnvironment
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.policies import build_tiny
from whetstone.rollout import Action, EpisodeLimits, run_episode
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Author, EndReason, Task, Tokens
from whetstone.user_code import remove_place

TASK = Task("t", "Compute 12*34")
CHAT = Chat(
    build_tiny(["Compute 12*34"] * 9, markers=Compact.markers, hidden=8, heads=1, layers=1).tokenizer, Compact()
)
LIMITS = EpisodeLimits(max_turns=4, context_length=200, timeout_seconds=5)


class ScriptedActor:
    """An actor that returns scripted messages."""

    def __init__(self, *messages, complete=True):
        self.said, self.complete, self.left, self.seen = list(messages), complete, [], []

    async def act(self, moment):
        self.seen.append(moment)
        message = self.said.pop(0)
        if isinstance(message, Exception):
            raise message
        ids = CHAT.write(message, moment.tools)
        return Action(Tokens.from_ids(ids if self.complete else ids[:-1], Author.EXPERT), self.complete)

    def leave(self, episode):
        self.left.append(episode)


class ScriptedEnvironment:
    """An environment with one scripted result per step, which counts its `close` calls."""

    def __init__(self, *results, prompt="go"):
        self.results, self.prompt, self.closed, self.hangs = list(results), prompt, 0, asyncio.Event()

    async def reset(self, task, *, seed):
        return Observation((user(self.prompt),))

    async def step(self, action):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        if result == "hang":
            self.hangs.set()
            await asyncio.sleep(60)
        return result

    async def close(self):
        self.closed += 1


def call(expression):
    return assistant("", ToolCall("pocket_calculator", f'{{"expression": "{expression}"}}'))


def play(script, environment=None, limits=LIMITS, record=None):
    environment = environment or ToolEnvironment(tools=[pocket_calculator])
    return asyncio.run(
        run_episode(
            TASK, environment=environment, actor=script, chat=CHAT, limits=limits, id="e", seed=1, record=record
        )
    )


def test_tool_result_is_in_the_next_context():
    script = ScriptedActor(call("12*34"), assistant("408"))
    trajectory = play(script)
    assert (trajectory.ended, trajectory.final_text) == (EndReason.TERMINATED, "408")
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.turns[0].observation[0].text == "408"
    assert [c.outcome for c in trajectory.calls] == ["ok"]
    assert script.left == ["e"]


def test_tokens_alternate_between_context_and_action_and_turns_have_distinct_seeds():
    script = ScriptedActor(call("12*34"), assistant("408"))
    (segment,) = play(script).segments()
    turns = play(ScriptedActor(call("12*34"), assistant("408"))).turns
    pieces = [ids for turn in turns for ids in (turn.context.ids, turn.action.ids)]
    assert segment.tokens.ids == tuple(i for piece in pieces for i in piece)
    assert script.seen[1].context.ids == tuple(i for piece in pieces[:3] for i in piece)
    assert script.seen[0].seed != script.seen[1].seed


def test_golden_episode_token_by_token():
    trajectory = play(ScriptedActor(call("12*34"), assistant("408")))
    text = CHAT.tokenizer.decode(trajectory.segments()[0].tokens.ids)
    assert text == (
        "<|system|><call>pocket_calculator(expression: str)</call> One operation on two numbers.<|end|>"
        "<|user|>Compute 12*34<|end|><|assistant|><call>pocket_calculator(12*34)</call><|end|>"
        "<|user|><result>408</result><|end|><|assistant|>408<|end|>"
    )


def test_malformed_call_is_reported_to_the_model_and_the_episode_continues():
    trajectory = play(ScriptedActor(call("1+2+3"), assistant("6")))
    assert trajectory.turns[0].observation[0].text == "error: one operation on two numbers at a time"
    assert trajectory.ended is EndReason.TERMINATED


@pytest.mark.parametrize(
    ("script", "limits", "ended", "turns"),
    [
        (ScriptedActor(*[call("1+1")] * 4), LIMITS, EndReason.MAX_TURNS, 4),
        (ScriptedActor(assistant("4"), complete=False), LIMITS, EndReason.MAX_TOKENS, 1),
        (ScriptedActor(*[call("1+1")] * 9), EpisodeLimits(9, 180, 5), EndReason.CONTEXT_FULL, None),
    ],
)
def test_each_limit_has_its_end_reason(script, limits, ended, turns):
    trajectory = play(script, limits=limits)
    assert trajectory.ended is ended
    assert turns is None or len(trajectory.turns) == turns
    assert trajectory.ended.cut_short
    assert sum(map(len, (t.action for t in trajectory.turns))) == trajectory.action_tokens > 0


def test_environment_decides_how_the_episode_ends():
    nothing = Observation(())
    won = play(ScriptedActor(assistant("x")), ScriptedEnvironment(StepResult(nothing, reward=0.5, terminated=True)))
    assert (won.ended, won.turns[0].reward) == (EndReason.TERMINATED, 0.5)
    cut = play(ScriptedActor(assistant("x")), ScriptedEnvironment(StepResult(nothing, truncated=True)))
    assert cut.ended is EndReason.TRUNCATED


@pytest.mark.parametrize(
    ("failure", "ended", "message"),
    [
        (KeyError("gone"), EndReason.ERROR, "KeyError: 'gone'"),
        (TimeoutError("its own"), EndReason.ERROR, "TimeoutError: its own"),
        (InfrastructureError("no server"), EndReason.INFRASTRUCTURE, "no server"),
    ],
)
def test_raising_environment_ends_its_episode_with_the_cause_and_keeps_the_turn(failure, ended, message):
    environment = ScriptedEnvironment(failure)
    trajectory = play(ScriptedActor(assistant("x")), environment)
    assert (trajectory.ended, remove_place(trajectory.error)) == (ended, message)
    assert not trajectory.ended.valid
    assert trajectory.action_tokens > 0
    assert environment.closed == 1


def test_hang_ends_at_the_deadline_and_keeps_the_turn():
    environment = ScriptedEnvironment("hang")
    trajectory = play(ScriptedActor(assistant("x")), environment, EpisodeLimits(4, 200, 0.2))
    assert (trajectory.ended, trajectory.error) == (EndReason.TIMEOUT, "not finished after 0.2 s")
    assert len(trajectory.turns) == 1
    assert environment.closed == 1


def test_failing_engine_is_an_infrastructure_failure():
    trajectory = play(ScriptedActor(InfrastructureError("engine down")))
    assert (trajectory.ended, trajectory.turns) == (EndReason.INFRASTRUCTURE, ())


def test_prompt_that_does_not_fit_is_named_with_task_and_sizes():
    with pytest.raises(PromptTooLong, match=r"task t: its prompt has \d+ tokens, and the model's context 200"):
        play(ScriptedActor(), ScriptedEnvironment(prompt="x" * 500))


def test_cancelling_closes_the_environment():
    environment = ScriptedEnvironment("hang")

    async def main():
        running = asyncio.ensure_future(
            run_episode(
                TASK,
                environment=environment,
                actor=ScriptedActor(assistant("x")),
                chat=CHAT,
                limits=LIMITS,
                id="e",
                seed=1,
            )
        )
        await environment.hangs.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert environment.closed == 1


class Record:
    """Recorded turns of an episode."""

    def __init__(self, turns=()):
        self.turns, self.dropped = list(turns), 0

    def played(self, episode):
        return tuple(self.turns)

    def add(self, episode, turn):
        self.turns.append(turn)

    def drop(self, episode):
        self.turns.clear()
        self.dropped += 1


class CountingEnvironment:
    """An environment with a state: it returns the number of steps."""

    def __init__(self, offset=0):
        self.steps, self.resets, self.offset = 0, 0, offset

    async def reset(self, task, *, seed):
        self.steps, self.resets = self.offset, self.resets + 1
        return Observation((user("go"),))

    async def step(self, action):
        self.steps += 1
        return StepResult(Observation((user(f"{self.steps}"),)), terminated=action.text == "stop")

    async def close(self):
        pass


def tokens_and_observations(trajectory):
    return [(t.context.ids, t.action.ids, t.observation) for t in trajectory.turns]


def test_turn_is_recorded_with_its_observation():
    record = Record()
    trajectory = play(ScriptedActor(call("1+1"), call("2+2"), assistant("4")), record=record)
    assert record.turns == list(
        trajectory.turns[:2]
    )  # the last turn ends the episode, which is recorded as a trajectory


def test_interrupted_episode_continues_after_its_turns_without_repeated_calls():
    calls = []

    def pocket_calculator(expression: str) -> str:
        """Compute.

        Args:
            expression: What.
        """
        calls.append(expression)
        return "8"

    messages = [call("1+1"), call("2+2"), call("3+3"), assistant("8")]
    undisturbed = play(ScriptedActor(*messages), ToolEnvironment(tools=[pocket_calculator]))
    calls.clear()
    record = Record(undisturbed.turns[:2])
    script = ScriptedActor(*messages[2:])
    resumed = play(script, ToolEnvironment(tools=[pocket_calculator]), record=record)
    assert tokens_and_observations(resumed) == tokens_and_observations(undisturbed)
    assert calls == ["3+3"]
    assert [moment.turn for moment in script.seen] == [2, 3]
    assert len({moment.seed for moment in script.seen}) == 2


def test_environment_with_state_is_restored_by_the_same_actions():
    undisturbed = play(ScriptedActor(assistant("a"), assistant("b"), assistant("stop")), CountingEnvironment())
    environment = CountingEnvironment()
    resumed = play(ScriptedActor(assistant("stop")), environment, record=Record(undisturbed.turns[:2]))
    assert tokens_and_observations(resumed) == tokens_and_observations(undisturbed)
    assert (environment.steps, environment.resets) == (3, 1)


def test_episode_restarts_if_the_environment_replays_differently():
    undisturbed = play(ScriptedActor(assistant("a"), assistant("b"), assistant("stop")), CountingEnvironment())
    record, environment = Record(undisturbed.turns[:2]), CountingEnvironment(offset=10)
    resumed = play(ScriptedActor(assistant("a"), assistant("stop")), environment, record=record)
    assert [turn.observation[0].text for turn in resumed.turns] == ["11", "12"]
    assert (record.dropped, environment.resets) == (1, 2)


def test_turn_has_its_own_deadline():
    limits = EpisodeLimits(max_turns=4, context_length=200, timeout_seconds=5, turn_timeout_seconds=0.05)
    environment = ScriptedEnvironment(StepResult(Observation((user("on"),))), "hang")
    trajectory = play(ScriptedActor(assistant("a"), assistant("b")), environment, limits)
    assert (trajectory.ended, trajectory.error) == (EndReason.TIMEOUT, "turn 2 not finished after 0.05 s")
    assert [len(turn.observation) for turn in trajectory.turns] == [1, 0]
    assert environment.closed == 1


class HangingVerdict(ScriptedEnvironment):
    async def verdict(self):
        await asyncio.sleep(60)


def test_verdict_has_its_own_deadline(monkeypatch):
    deadlines = []

    def limit_duration(seconds, *, owner):
        deadlines.append((owner, seconds))
        return waiting.limit_duration(0.05 if "verdict" in owner else seconds, owner=owner)

    monkeypatch.setattr("whetstone.rollout.runner.limit_duration", limit_duration)
    last = StepResult(Observation((user("on"),)), terminated=True)
    trajectory = play(ScriptedActor(assistant("a")), HangingVerdict(last))
    assert [each for each in deadlines if each[1] is not None] == [("the episode", 5), ("its environment (verdict)", 5)]
    assert trajectory.ended is EndReason.INFRASTRUCTURE  # the policy cannot be the cause, however long it played


def test_timeout_error_of_the_environment_is_an_error():
    limits = EpisodeLimits(max_turns=4, context_length=200, timeout_seconds=5, turn_timeout_seconds=1)
    trajectory = play(ScriptedActor(assistant("a")), ScriptedEnvironment(TimeoutError("the site")), limits)
    assert (trajectory.ended, remove_place(trajectory.error)) == (EndReason.ERROR, "TimeoutError: the site")
