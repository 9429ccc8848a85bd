"""Episodes a limit cut short."""

from tests_batches import of
from whetstone.algorithms import Bite, bite_of
from whetstone.algorithms.filters import invalid_endings, overlong_filter


def test_out_of_the_loss_or_out_of_everything():
    assert overlong_filter(of(0, 1)).tolist() == invalid_endings(of(0, 1)).tolist() == [1, 0]
    assert bite_of(overlong_filter) is Bite.LOSS_ONLY
    assert bite_of(invalid_endings) is Bite.BEFORE_BASELINE
    assert overlong_filter(of()).tolist() == []
