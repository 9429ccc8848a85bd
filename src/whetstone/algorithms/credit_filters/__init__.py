"""Credit filters: exclude trajectories before the baseline or only from the loss, or weight them."""

from whetstone.algorithms.credit_filters.overlong_filter import (
    invalid_endings as invalid_endings,
    overlong_filter as overlong_filter,
)
from whetstone.algorithms.credit_filters.rejection import rejection as rejection
from whetstone.algorithms.credit_filters.void_turns import void_turns as void_turns
from whetstone.algorithms.credit_filters.zero_variance import zero_variance as zero_variance

CREDIT_FILTERS = {
    "invalid_endings": invalid_endings,
    "overlong_filter": overlong_filter,
    "rejection": rejection,
    "void_turns": void_turns,
    "zero_variance": zero_variance,
}
