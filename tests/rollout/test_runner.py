"""One episode: whatever happens inside, a trajectory comes back that says how it ended."""

import asyncio

import pytest

from whetstone.chat import Chat, ToolCall, assistant, user
from whetstone.chat.formats import Compact
from whetstone.environments import Observation, StepResult, ToolEnvironment
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.policies import build_tiny
from whetstone.rollout import Action, Limits, run_episode
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Author, EndReason, Task, Tokens
from whetstone.user_code import remove_place

TASK = Task("t", "Compute 12*34")
CHAT = Chat(
    build_tiny(["Compute 12*34"] * 9, markers=Compact.markers, hidden=8, heads=1, layers=1).tokenizer, Compact()
)
LIMITS = Limits(max_turns=4, context_length=200, timeout_seconds=5)


class Script:
    """An actor that says what it is told to say."""

    def __init__(self, *said, complete=True):
        self.said, self.complete, self.left, self.seen = list(said), complete, [], []

    async def act(self, moment):
        self.seen.append(moment)
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        ids = CHAT.write(said, moment.tools)
        return Action(Tokens.written(ids if self.complete else ids[:-1], Author.EXPERT), self.complete)

    def leave(self, episode):
        self.left.append(episode)


class Foreign:
    """An environment that does one thing at each step, and remembers whether it was closed."""

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


def test_a_tool_call_is_answered_and_the_answer_read():
    script = Script(call("12*34"), assistant("408"))
    trajectory = play(script)
    assert (trajectory.ended, trajectory.final_text) == (EndReason.TERMINATED, "408")
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.turns[0].observation[0].text == "408"
    assert [c.outcome for c in trajectory.calls] == ["ok"]
    assert script.left == ["e"]


def test_the_tokens_are_context_action_context_action_and_each_turn_has_a_seed_of_its_own():
    script = Script(call("12*34"), assistant("408"))
    (segment,) = play(script).segments()
    turns = play(Script(call("12*34"), assistant("408"))).turns
    pieces = [ids for turn in turns for ids in (turn.context.ids, turn.action.ids)]
    assert segment.tokens.ids == tuple(i for piece in pieces for i in piece)
    assert script.seen[1].context.ids == tuple(i for piece in pieces[:3] for i in piece)
    assert script.seen[0].seed != script.seen[1].seed


def test_golden_episode_token_by_token():
    trajectory = play(Script(call("12*34"), assistant("408")))
    text = CHAT.tokenizer.decode(trajectory.segments()[0].tokens.ids)
    assert text == (
        "<|system|><call>pocket_calculator(expression: str)</call> One operation on two numbers.<|end|>"
        "<|user|>Compute 12*34<|end|><|assistant|><call>pocket_calculator(12*34)</call><|end|>"
        "<|user|><result>408</result><|end|><|assistant|>408<|end|>"
    )


def test_a_wrong_call_is_told_to_the_model_and_the_episode_goes_on():
    trajectory = play(Script(call("1+2+3"), assistant("6")))
    assert trajectory.turns[0].observation[0].text == "error: one operation on two numbers at a time"
    assert trajectory.ended is EndReason.TERMINATED


@pytest.mark.parametrize(
    ("script", "limits", "ended", "turns"),
    [
        (Script(*[call("1+1")] * 4), LIMITS, EndReason.MAX_TURNS, 4),
        (Script(assistant("4"), complete=False), LIMITS, EndReason.MAX_TOKENS, 1),
        (Script(*[call("1+1")] * 9), Limits(9, 180, 5), EndReason.CONTEXT_FULL, None),
    ],
)
def test_limits_end_an_episode_under_their_own_name(script, limits, ended, turns):
    trajectory = play(script, limits=limits)
    assert trajectory.ended is ended
    assert turns is None or len(trajectory.turns) == turns
    assert trajectory.ended.cut_short
    assert sum(map(len, (t.action for t in trajectory.turns))) == trajectory.action_tokens > 0


def test_the_environment_says_how_it_ends():
    nothing = Observation(())
    won = play(Script(assistant("x")), Foreign(StepResult(nothing, reward=0.5, terminated=True)))
    assert (won.ended, won.turns[0].reward) == (EndReason.TERMINATED, 0.5)
    cut = play(Script(assistant("x")), Foreign(StepResult(nothing, truncated=True)))
    assert cut.ended is EndReason.TRUNCATED


@pytest.mark.parametrize(
    ("failure", "ended", "said"),
    [
        (KeyError("gone"), EndReason.ERROR, "KeyError: 'gone'"),
        (TimeoutError("its own"), EndReason.ERROR, "TimeoutError: its own"),
        (InfrastructureError("no server"), EndReason.INFRASTRUCTURE, "no server"),
    ],
)
def test_an_environment_that_raises_ends_its_episode_with_the_cause_and_keeps_the_turn(failure, ended, said):
    environment = Foreign(failure)
    trajectory = play(Script(assistant("x")), environment)
    assert (trajectory.ended, remove_place(trajectory.error)) == (ended, said)
    assert not trajectory.ended.valid
    assert trajectory.action_tokens > 0
    assert environment.closed == 1


def test_a_hang_ends_at_the_deadline_with_the_turn_kept():
    environment = Foreign("hang")
    trajectory = play(Script(assistant("x")), environment, Limits(4, 200, 0.2))
    assert (trajectory.ended, trajectory.error) == (EndReason.TIMEOUT, "not over after 0.2 s")
    assert len(trajectory.turns) == 1
    assert environment.closed == 1


def test_an_engine_that_fails_is_infrastructure():
    trajectory = play(Script(InfrastructureError("engine down")))
    assert (trajectory.ended, trajectory.turns) == (EndReason.INFRASTRUCTURE, ())


def test_a_prompt_that_does_not_fit_names_task_and_sizes():
    with pytest.raises(PromptTooLong, match=r"task t: its prompt is \d+ tokens, the context 200"):
        play(Script(), Foreign(prompt="x" * 500))


def test_cancelling_closes_the_environment():
    environment = Foreign("hang")

    async def main():
        running = asyncio.ensure_future(
            run_episode(
                TASK, environment=environment, actor=Script(assistant("x")), chat=CHAT, limits=LIMITS, id="e", seed=1
            )
        )
        await environment.hangs.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert environment.closed == 1


class Record:
    """Turns by episode."""

    def __init__(self, turns=()):
        self.turns, self.dropped = list(turns), 0

    def played(self, episode):
        return tuple(self.turns)

    def add(self, episode, turn):
        self.turns.append(turn)

    def drop(self, episode):
        self.turns.clear()
        self.dropped += 1


class Counting:
    """An environment with a state: it answers with how many steps there were."""

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


def told(trajectory):
    return [(t.context.ids, t.action.ids, t.observation) for t in trajectory.turns]


def test_each_turn_is_on_record_when_its_answer_is_there():
    record = Record()
    trajectory = play(Script(call("1+1"), call("2+2"), assistant("4")), record=record)
    assert record.turns == list(trajectory.turns[:2])  # the last one ends the episode, which is kept whole


def test_a_cut_episode_goes_on_behind_its_turns_and_calls_no_tool_twice():
    calls = []

    def pocket_calculator(expression: str) -> str:
        """Compute.

        Args:
            expression: What.
        """
        calls.append(expression)
        return "8"

    said = [call("1+1"), call("2+2"), call("3+3"), assistant("8")]
    whole = play(Script(*said), ToolEnvironment(tools=[pocket_calculator]))
    calls.clear()
    record = Record(whole.turns[:2])
    script = Script(*said[2:])
    resumed = play(script, ToolEnvironment(tools=[pocket_calculator]), record=record)
    assert told(resumed) == told(whole)
    assert calls == ["3+3"]
    assert [moment.turn for moment in script.seen] == [2, 3]
    assert len({moment.seed for moment in script.seen}) == 2


def test_an_environment_with_a_state_is_led_through_the_same_actions():
    whole = play(Script(assistant("a"), assistant("b"), assistant("stop")), Counting())
    environment = Counting()
    resumed = play(Script(assistant("stop")), environment, record=Record(whole.turns[:2]))
    assert told(resumed) == told(whole)
    assert (environment.steps, environment.resets) == (3, 1)


def test_where_it_answers_otherwise_the_episode_is_played_from_its_start():
    whole = play(Script(assistant("a"), assistant("b"), assistant("stop")), Counting())
    record, environment = Record(whole.turns[:2]), Counting(offset=10)
    resumed = play(Script(assistant("a"), assistant("stop")), environment, record=record)
    assert [turn.observation[0].text for turn in resumed.turns] == ["11", "12"]
    assert (record.dropped, environment.resets) == (1, 2)


def test_a_turn_has_a_deadline_of_its_own():
    limits = Limits(max_turns=4, context_length=200, timeout_seconds=5, turn_timeout_seconds=0.05)
    environment = Foreign(StepResult(Observation((user("on"),))), "hang")
    trajectory = play(Script(assistant("a"), assistant("b")), environment, limits)
    assert (trajectory.ended, trajectory.error) == (EndReason.TIMEOUT, "turn 2 not over after 0.05 s")
    assert [len(turn.observation) for turn in trajectory.turns] == [1, 0]
    assert environment.closed == 1


def test_a_timeout_the_environment_raises_is_its_own():
    limits = Limits(max_turns=4, context_length=200, timeout_seconds=5, turn_timeout_seconds=1)
    trajectory = play(Script(assistant("a")), Foreign(TimeoutError("the site")), limits)
    assert (trajectory.ended, remove_place(trajectory.error)) == (EndReason.ERROR, "TimeoutError: the site")
