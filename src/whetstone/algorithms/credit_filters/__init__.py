"""What is not learned from, and where its removal bites: before the baseline, only in the loss, or as a weight."""

from whetstone.algorithms.credit_filters.ended import invalid_endings, overlong_filter
from whetstone.algorithms.credit_filters.rejection import rejection
from whetstone.algorithms.credit_filters.void_turns import void_turns
from whetstone.algorithms.credit_filters.zero_variance import zero_variance

CREDIT_FILTERS = {
    "invalid_endings": invalid_endings,
    "overlong_filter": overlong_filter,
    "rejection": rejection,
    "void_turns": void_turns,
    "zero_variance": zero_variance,
}

__all__ = ["CREDIT_FILTERS", "invalid_endings", "overlong_filter", "rejection", "void_turns", "zero_variance"]
