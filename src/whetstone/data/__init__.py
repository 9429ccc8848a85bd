"""Datasets: conversations, preference pairs, texts and offline episodes as training data of a stage."""

from whetstone.data.select_episodes import Choice as Choice
from whetstone.data.conversations import Conversation as Conversation, read_conversation as read_conversation
from whetstone.data.demonstrations import (
    Demonstrations as Demonstrations,
    Texts as Texts,
    tokenize_conversation as tokenize_conversation,
)
from whetstone.data.logs import (
    LoggedEpisode as LoggedEpisode,
    conversation_rows as conversation_rows,
    parse_log_row as parse_log_row,
)
from whetstone.data.shuffle import ShuffledIndices as ShuffledIndices
from whetstone.data.preferences import (
    Preference as Preference,
    Preferences as Preferences,
    read_preference as read_preference,
)
from whetstone.data.row_readers import Row as Row, load_rows as load_rows, get_text as get_text
from whetstone.data.offline_episodes import logged_groups as logged_groups, stored_groups as stored_groups
from whetstone.data.offline_mixture import StoredMixture as StoredMixture
