"""Groups of several sources: exact fractions, each group once, no wait beyond a limit, and the same after a resume."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.episodes import group
from whetstone.errors import DataError, RecipeError
from whetstone.recipe import load_recipe
from whetstone.rollout.group_sources import MixedSource
from whetstone.training.group_mixer import GroupMixer, total_groups
from whetstone.trajectory import Provenance


class Counting:
    """A source whose group at a position has the task id of this position; blocked while `is_blocked`."""

    def __init__(self):
        self.is_blocked = False
        self.released = asyncio.Event()

    async def groups(self, first, count):
        if self.is_blocked:
            await self.released.wait()
        return [group(1.0, number=number) for number in range(first, first + count)]


class Imagining(Counting):
    provenance = "imagined"


def mixer_of(fractions, *, sampled=4, kind=Counting):
    sources = {name: MixedSource(kind(), fraction, 0.001) for name, fraction in fractions.items()}
    return GroupMixer(sources, groups=total_groups(sources, sampled), waits=False)


def positions(mixed, name):
    """Return the positions of the groups of a source, which their trajectories are named by."""
    return [int(each.trajectories[0].id.split("/")[1]) for each in mixed.groups[name]]


class Playing(Counting):
    """A source whose groups are played by the policy."""

    environment = None

    def open(self, play):
        self.play = play


def test_groups_that_the_policy_plays_are_not_requested_ahead_and_have_no_limit():
    async def run():
        mixer = mixer_of({"a": 0.5}, kind=Playing)
        mixer.request(0, {}, is_ahead=True)
        assert not mixer._requests
        source = mixer.sources["a"].source
        source.is_blocked = True
        taking = asyncio.create_task(mixer.take(0, {}))
        await asyncio.sleep(0.02)  # its limit is a millisecond
        assert not taking.done()
        source.released.set()
        assert positions(await taking, "a") == [0, 1, 2, 3]
        await mixer.close()

    asyncio.run(run())


FRACTIONS = st.dictionaries(st.sampled_from("abc"), st.floats(0, 0.3), min_size=1)


@given(FRACTIONS, st.integers(1, 8), st.integers(1, 12))
def test_each_position_is_taken_once_and_fractions_are_exact(fractions, sampled, updates):
    async def run():
        mixer, record = mixer_of(fractions, sampled=sampled), {}
        taken = {name: [] for name in fractions}
        for update in range(updates):
            mixed = await mixer.take(update, record)
            record[update] = mixed.spans
            mixer.request(update + 1, record)
            for name in fractions:
                taken[name] += positions(mixed, name)
        await mixer.close()
        return taken

    total = updates * sampled / (1 - sum(fractions.values()))
    for name, numbers in asyncio.run(run()).items():
        assert numbers == list(range(len(numbers)))
        assert abs(len(numbers) - total * fractions[name]) < 1


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 8))
def test_late_groups_join_a_later_update_and_a_resume_takes_the_same(late, stop):
    """Let the first source respond after its limit in some updates; a second mixer continues after `stop` updates."""

    async def play(mixer, record, updates):
        source, taken = mixer.sources["a"].source, []
        for update in updates:
            is_recorded = update in record
            source.is_blocked = late[update] and not is_recorded
            mixed = await mixer.take(update, record)
            assert mixed.late in ((), ("a",))
            record[update] = mixed.spans
            source.is_blocked = False
            source.released.set()
            await asyncio.sleep(0)
            source.released.clear()
            taken.append([(name, t.id) for name, each in mixed.groups.items() for g in each for t in g.trajectories])
        await mixer.close()
        return taken

    async def run():
        record = {}
        first = await play(mixer_of({"a": 0.3, "b": 0.2}), record, range(min(stop, len(late))))
        resumed = await play(mixer_of({"a": 0.3, "b": 0.2}), record, range(len(late)))
        repeated = await play(mixer_of({"a": 0.3, "b": 0.2}), record, range(len(late)))
        return first, resumed, repeated

    first, resumed, repeated = asyncio.run(run())
    assert resumed[: len(first)] == first
    assert repeated == resumed
    for name in "ab":
        numbers = [int(id.split("/")[1]) for update in resumed for source, id in update if source == name]
        assert numbers == list(range(len(numbers)))


def test_an_update_does_not_wait_for_a_late_source_and_reports_it():
    async def run():
        mixer, lines = mixer_of({"slow": 0.2, "quick": 0.2}), []
        mixer.report = lines.append
        mixer.sources["slow"].source.is_blocked = True
        mixed = await mixer.take(0, {})
        await mixer.close()
        return mixed, lines

    mixed, lines = asyncio.run(run())
    assert (mixed.late, mixed.spans["slow"], len(mixed.groups["quick"])) == (("slow",), (0, 0), 1)
    assert lines == ["update 1: source slow has no groups within 0.001 s; they join a later update (sources/slow/late)"]


def test_a_deterministic_run_waits_for_a_late_source():
    async def run():
        mixer = mixer_of({"slow": 0.5})
        mixer.waits = True
        source = mixer.sources["slow"].source
        source.is_blocked = True
        taking = asyncio.create_task(mixer.take(0, {}))
        await asyncio.sleep(0)
        assert not taking.done()
        source.released.set()
        return await taking

    mixed = asyncio.run(run())
    assert (mixed.late, len(mixed.groups["slow"])) == ((), 4)


@pytest.mark.parametrize(("kind", "provenance"), [(Counting, Provenance.REPLAYED), (Imagining, Provenance.IMAGINED)])
def test_groups_of_other_sources_are_never_sampled(kind, provenance):
    mixed = asyncio.run(mixer_of({"a": 0.5}, kind=kind).take(3, {}))
    trajectories = [trajectory for each in mixed.groups["a"] for trajectory in each.trajectories]
    assert {trajectory.provenance for trajectory in trajectories} == {provenance}
    assert trajectories[0].id == "a-3-0/12/0"


def test_a_source_that_fails_or_returns_another_number_is_named():
    class Failing(Counting):
        async def groups(self, first, count):
            raise OSError("no disk")

    class Short(Counting):
        async def groups(self, first, count):
            return []

    with pytest.raises(DataError, match=r"source a failed: .*OSError: no disk"):
        asyncio.run(mixer_of({"a": 0.5}, kind=Failing).take(0, {}))
    with pytest.raises(DataError, match="source a returned 0 groups instead of 4"):
        asyncio.run(mixer_of({"a": 0.5}, kind=Short).take(0, {}))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("{a: {source: x:y, fraction: 0.6}, b: {source: x:y, fraction: 0.5}}", r"fractions .* sum to 1\.1"),
        ("{stored: {source: x:y}}", "`stored` is offline_mixture"),
        ("{a-b: {source: x:y}}", "letters, digits and underscores"),
        ("{a: {source: x:y, fraction: 1}}", "fraction"),
        ("{a: {fraction: 0.5}}", "source"),
    ],
)
def test_sources_that_cannot_be_mixed_are_refused(sources, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [f"reinforcement.sources={sources}"])
