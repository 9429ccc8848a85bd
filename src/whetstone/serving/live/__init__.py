"""How does a policy learn from whoever uses it? What follows an answer says how good it was, and what helps.

answer → what follows → scorer → judged turn, on disk → update, in the journal → weights swap in
"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.serving.live.learning import Live
    from whetstone.serving.live.scorers import SCORERS, Followed, Judgement, by_rules
    from whetstone.serving.live.service import LiveService

__getattr__, __dir__ = window(__name__)

__all__ = ["SCORERS", "Followed", "Judgement", "Live", "LiveService", "by_rules"]
