"""Judges: models that say of an agent's work what a program cannot."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.rewards.judges.asking import read_answer
    from whetstone.rewards.judges.built_in import JUDGES
    from whetstone.rewards.judges.endpoint import EndpointJudge
    from whetstone.rewards.judges.local import LocalJudge
    from whetstone.rewards.judges.protocol import YES_OR_NO, Judge, Meter, Question
    from whetstone.rewards.judges.scripted import ScriptedJudge

__getattr__, __dir__ = window(__name__)

__all__ = [
    "JUDGES",
    "YES_OR_NO",
    "EndpointJudge",
    "Judge",
    "LocalJudge",
    "Meter",
    "Question",
    "ScriptedJudge",
    "read_answer",
]
