"""What is not learned from, and where its removal bites: before the baseline, only in the loss, or as a weight."""

from whetstone.algorithms.filters.ended import invalid_endings, overlong_filter
from whetstone.algorithms.filters.rejection import rejection
from whetstone.algorithms.filters.void_turns import void_turns
from whetstone.algorithms.filters.zero_variance import zero_variance

FILTERS = {
    "invalid_endings": invalid_endings,
    "overlong_filter": overlong_filter,
    "rejection": rejection,
    "void_turns": void_turns,
    "zero_variance": zero_variance,
}

__all__ = ["FILTERS", "invalid_endings", "overlong_filter", "rejection", "void_turns", "zero_variance"]
