"""Online learning from users: a served policy trains on the feedback that follows its answers.

answer → following messages → scorer → judged turn, on disk → update, in the journal → weight sync
"""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.serving.online.online_learner import OnlineLearner as OnlineLearner
    from whetstone.serving.online.scorers import (
        SCORERS as SCORERS,
        Followed as Followed,
        Judgement as Judgement,
        FollowUp as FollowUp,
        Feedback as Feedback,
        by_rules as by_rules,
    )
    from whetstone.serving.online.service import LiveService as LiveService

__getattr__, __dir__ = export_lazily(__name__)
