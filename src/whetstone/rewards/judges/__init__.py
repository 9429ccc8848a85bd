"""Judges: models that assess an agent's work if a program cannot."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.rewards.judges.judge_client import read_answer as read_answer
    from whetstone.rewards.judges.built_in import JUDGES as JUDGES
    from whetstone.rewards.judges.endpoint import EndpointJudge as EndpointJudge
    from whetstone.rewards.judges.local_judge import LocalJudge as LocalJudge
    from whetstone.rewards.judges.protocol import (
        YES_OR_NO as YES_OR_NO,
        Judge as Judge,
        Meter as Meter,
        Question as Question,
    )
    from whetstone.rewards.judges.scripted_judge import ScriptedJudge as ScriptedJudge

__getattr__, __dir__ = export_lazily(__name__)
