"""Text of models, tools and tasks is printed without control characters."""

import pytest

from whetstone.analysis.explain import Explanation, ExplanationStep, TokenExplanation
from whetstone.chat import ToolCall, assistant, user
from whetstone.cli import rollout, why
from whetstone.trajectory import EndReason, Trajectory

ODD = ["\x1b]0;owned\x07x", "\x1b[2Jx", "[/b]", "[bold", "[link=file:///x]y[/link]", "\x9b31m", "a\rb", "\u202ex"]


@pytest.mark.parametrize("odd", ODD)
def test_control_characters_of_episodes_and_explanations_are_escaped(capsys, odd):
    played = Trajectory(
        id=odd,
        task_id=odd,
        opening=(user(odd), assistant(odd, ToolCall(odd, odd))),
        turns=(),
        ended=EndReason.TERMINATED,
    )
    rollout._show(played)
    step = ExplanationStep("ended", 1.0, odd)
    token = TokenExplanation((0, 0), 1, odd, -1.0, 0, 0.5)
    why._show(Explanation(odd, odd, 1, (step,), (token,), "update 1"), (token,))
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x07\x9b\r\u202e")
    assert repr(odd)[1:5] in printed
