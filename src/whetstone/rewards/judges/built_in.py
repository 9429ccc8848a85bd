"""Built-in judges by the name in a reward's option `judge`."""

from whetstone.rewards.judges.endpoint import EndpointJudge
from whetstone.rewards.judges.local_judge import LocalJudge
from whetstone.rewards.judges.scripted_judge import ScriptedJudge

JUDGES = {"endpoint": EndpointJudge, "local": LocalJudge, "scripted": ScriptedJudge}
