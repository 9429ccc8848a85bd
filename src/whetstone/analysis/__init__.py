"""What can be asked of a finished run? Replays, explanations and comparisons."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.analysis.replay import Replay, Replayed
    from whetstone.analysis.why import Explained, Explainer

__getattr__, __dir__ = window(__name__)

__all__ = ["Explained", "Explainer", "Replay", "Replayed"]
