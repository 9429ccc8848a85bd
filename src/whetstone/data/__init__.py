"""Data of one's own: conversations, pairs, texts and stored episodes, as what a stage learns from."""

from whetstone.data.choosing import Choice
from whetstone.data.conversations import Conversation, conversation_of
from whetstone.data.demonstrations import Demonstrations, Texts, written
from whetstone.data.logs import Logged, conversation_rows, logged
from whetstone.data.order import Shuffled
from whetstone.data.preferences import Preference, Preferences, preference_of
from whetstone.data.rows import Row, rows_of, text_of
from whetstone.data.stored_episodes import logged_groups, stored_groups
from whetstone.data.stored_mixture import StoredMixture

__all__ = [
    "Choice", "Conversation", "Demonstrations", "Logged", "Preference", "Preferences", "Row", "Shuffled",
    "StoredMixture", "Texts", "conversation_of", "conversation_rows", "logged", "logged_groups", "preference_of",
    "rows_of", "stored_groups", "text_of", "written",
]  # fmt: skip
