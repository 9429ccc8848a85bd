"""Settings of the cyclic garbage collector: excluded objects, collections and thresholds."""

import gc
import weakref

from whetstone.garbage import collect_seldom


class Cycle:
    def __init__(self):
        self.itself = self


def test_present_objects_are_excluded_while_the_block_runs():
    present = Cycle()
    seen = weakref.ref(present)
    with collect_seldom():
        del present
        gc.collect()
        assert seen() is not None
    gc.collect()
    assert seen() is None


def test_cycles_that_are_created_in_the_block_are_collected():
    with collect_seldom():
        seen = weakref.ref(Cycle())
        gc.collect()
        assert seen() is None


def test_thresholds_are_restored():
    before = gc.get_threshold()
    with collect_seldom():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[1:] == before[1:]
    assert gc.get_threshold() == before
