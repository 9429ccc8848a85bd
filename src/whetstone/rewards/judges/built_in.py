"""Which judges can a recipe name? Each by its name."""

from whetstone.rewards.judges.endpoint import EndpointJudge
from whetstone.rewards.judges.local import LocalJudge
from whetstone.rewards.judges.scripted import ScriptedJudge

JUDGES = {"endpoint": EndpointJudge, "local": LocalJudge, "scripted": ScriptedJudge}
