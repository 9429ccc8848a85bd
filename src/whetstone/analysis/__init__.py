"""What can be asked of a finished run? Replays, explanations and comparisons."""

from whetstone.analysis.replay import Replay, Replayed
from whetstone.analysis.why import Explained, Explainer

__all__ = ["Explained", "Explainer", "Replay", "Replayed"]
