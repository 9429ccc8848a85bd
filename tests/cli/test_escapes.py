"""What models, tools and tasks wrote is shown on a terminal as text, and does nothing there."""

import pytest

from whetstone.analysis.why import Explanation, ExplanationStep, TokenExplanation
from whetstone.chat import ToolCall, assistant, user
from whetstone.cli import rollout, why
from whetstone.trajectory import EndReason, Trajectory

ODD = ["\x1b]0;owned\x07x", "\x1b[2Jx", "[/b]", "[bold", "[link=file:///x]y[/link]", "\x9b31m", "a\rb", "\u202ex"]


@pytest.mark.parametrize("odd", ODD)
def test_an_episode_and_what_became_of_it_are_shown_as_text(capsys, odd):
    played = Trajectory(
        id=odd,
        task_id=odd,
        opening=(user(odd), assistant(odd, ToolCall(odd, odd))),
        turns=(),
        ended=EndReason.TERMINATED,
    )
    rollout._show(played)
    told = ExplanationStep("ended", 1.0, odd)
    token = TokenExplanation((0, 0), 1, odd, -1.0, 0, 0.5)
    why._show(Explanation(odd, odd, 1, (told,), (token,), "update 1"), (token,))
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x07\x9b\r\u202e")
    assert repr(odd)[1:5] in said
