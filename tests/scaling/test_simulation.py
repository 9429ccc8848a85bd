"""The simulated loop: by hand where it is small, by what must be so where it is not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whetstone.errors import RecipeError
from whetstone.scaling.simulation import simulate
from whetstone.scaling.simulation_replica import Replica, Request
from whetstone.scaling.simulation_scenario import (
    EngineRates,
    EpisodeShape,
    Failures,
    LearnerRates,
    Scenario,
    Spread,
)

TWO_TURNS = EpisodeShape(
    turns=Spread(2),
    prompt_tokens=Spread(0),
    turn_tokens=Spread(3),
    observation_tokens=Spread(0),
    tool_seconds=Spread(5),
)
"""Three tokens, a call of 5 s, three tokens."""
ONE_A_SECOND = EngineRates(step_seconds=1, step_seconds_per_sequence=0)
SMALL = Scenario(
    engine=ONE_A_SECOND,
    episode=TWO_TURNS,
    learner=LearnerRates(seconds=7),
    groups_per_update=1,
    group_size=1,
    max_in_flight=1,
    updates=6,
    skip=2,
)
VARIED = Scenario(
    engine=EngineRates(replicas=2, step_seconds=0.02, step_seconds_per_sequence=0.001, max_sequences=8),
    episode=EpisodeShape(turns=Spread(3, 0.5), turn_tokens=Spread(20, 0.7), tool_seconds=Spread(1, 1)),
    learner=LearnerRates(seconds=1),
    groups_per_update=4,
    group_size=4,
    max_in_flight=48,
    admit_ahead=2,
    max_staleness=4,
    updates=12,
)


def test_one_episode_at_a_time_takes_the_sum_of_its_parts():
    # 3 tokens + 5 s + 3 tokens = 11 s, then 7 s of learning, one behind the other
    found = simulate(SMALL)
    assert found.seconds_per_update == pytest.approx(18)
    assert found.shares.learner == pytest.approx(7 / 18)
    assert found.shares.sampler == pytest.approx(6 / 18)
    assert found.shares.environment == pytest.approx(5 / 18)
    assert found.staleness == {0: 1.0}


def test_two_episodes_ahead_are_as_quick_as_what_takes_longest():
    # with a place more an episode begins while the last is learned from: 11 s of sampling beside 7 s of learning
    ahead = replace(SMALL, admit_ahead=1, max_staleness=1, updates=12)
    assert simulate(ahead).seconds_per_update == pytest.approx(11)
    # and with two places the learner is what it waits for
    assert simulate(replace(ahead, max_in_flight=2)).seconds_per_update == pytest.approx(9)  # (11 + 7) / 2
    unbound = simulate(replace(ahead, max_in_flight=4, admit_ahead=3, max_staleness=3))
    assert unbound.seconds_per_update == pytest.approx(7)
    assert unbound.bottleneck == "learner"
    assert unbound.shares.learner == pytest.approx(1)


def test_those_who_share_a_batch_slow_each_other_down():
    # two draw 3 tokens each at 1 + 2 · 0.5 s a step: 6 s; the call 5 s; again 6 s; then 7 s
    shared = replace(
        SMALL, engine=EngineRates(step_seconds=1, step_seconds_per_sequence=0.5), group_size=2, max_in_flight=2
    )
    assert simulate(shared).seconds_per_update == pytest.approx(6 + 5 + 6 + 7)
    # with room for one: its 3 · 1.5 s stand in front of the other's. 4.5 → tool until 9.5; the other 4.5 → 9 → 14;
    # the first draws again 9.5 → 14, the other 14 → 18.5
    alone = replace(shared, engine=replace(shared.engine, max_sequences=1))
    assert simulate(alone).seconds_per_update == pytest.approx(18.5 + 7)


def test_what_is_read_stops_the_clock_for_all():
    reading = replace(
        SMALL,
        engine=replace(ONE_A_SECOND, prefill_seconds=0.5, prefill_seconds_per_token=0.01),
        episode=replace(TWO_TURNS, prompt_tokens=Spread(100), observation_tokens=Spread(50)),
    )
    # the prompt 0.5 + 1 s, the answer 0.5 + 0.5 s, beside the 18 s
    assert simulate(reading).seconds_per_update == pytest.approx(18 + 1.5 + 1)


def test_new_weights_cost_what_is_computed_again():
    # ahead: a turn under way at the update reads its 100 tokens again; with `continue` it does not
    engine = replace(ONE_A_SECOND, prefill_seconds_per_token=0.01)
    shape = replace(TWO_TURNS, prompt_tokens=Spread(100), turns=Spread(1), turn_tokens=Spread(20))
    ahead = replace(SMALL, engine=engine, episode=shape, admit_ahead=1, max_staleness=1)
    assert simulate(replace(ahead, in_flight="continue")).seconds_per_update == pytest.approx(21)
    assert simulate(replace(ahead, in_flight="recompute")).seconds_per_update == pytest.approx(22)


def test_an_engine_that_drains_takes_nobody_in_before_it_has_new_weights():
    ahead = replace(
        SMALL,
        episode=replace(TWO_TURNS, turns=Spread(1)),
        learner=LearnerRates(seconds=1),
        admit_ahead=1,
        max_staleness=1,
        max_in_flight=2,
        in_flight="drain",
        updates=10,
    )
    # two of 3 s begin together; the second's end falls on the first's: 3 s + 1 s of learning each for one of them
    drained, others = simulate(ahead), simulate(replace(ahead, in_flight="continue"))
    assert drained.seconds_per_update >= others.seconds_per_update
    assert drained.staleness_max <= 1


def test_an_engine_and_a_learner_that_take_turns_add_up():
    one = replace(ONE_A_SECOND, max_sequences=1)  # who draws beside another costs nothing more
    ahead = replace(SMALL, engine=one, admit_ahead=1, max_staleness=1, max_in_flight=2, updates=30, skip=4)
    # beside each other 9 s; in turns no less than 6 s of drawing and 7 s of learning
    assert simulate(ahead).seconds_per_update < 12
    assert simulate(replace(ahead, take_turns=True)).seconds_per_update >= 13 - 1e-9


def test_calls_wait_for_workers_and_rewards_for_theirs():
    four = replace(SMALL, group_size=4, max_in_flight=4)
    assert simulate(four).seconds_per_update == pytest.approx(18)
    # one worker: four calls of 5 s one behind the other from 3 s on, the last draws 3 s more
    workers = simulate(replace(four, environment_workers=1))
    assert workers.seconds_per_update == pytest.approx(3 + 20 + 3 + 7)
    assert workers.shares.environment == pytest.approx(20 / 33)
    judged = replace(four, episode=replace(TWO_TURNS, reward_seconds=Spread(2)))
    assert simulate(judged).seconds_per_update == pytest.approx(20)
    assert simulate(replace(judged, reward_workers=1)).seconds_per_update == pytest.approx(11 + 8 + 7)


def test_weights_travel_beside_sampling_or_in_front_of_it():
    assert simulate(replace(SMALL, learner=LearnerRates(7, transfer_seconds=2))).seconds_per_update == pytest.approx(20)
    ahead = replace(SMALL, admit_ahead=1, max_staleness=1, updates=12)
    stopped = simulate(replace(ahead, learner=LearnerRates(1, transfer_seconds=2))).seconds_per_update
    beside = simulate(replace(ahead, learner=LearnerRates(1, prepare_seconds=2))).seconds_per_update
    assert beside == pytest.approx(11)
    assert beside < stopped <= 13 + 1e-9


def test_a_learner_that_dies_makes_its_update_again():
    dying = replace(SMALL, failures=Failures(learner_per_hour=60, restart_seconds=10), updates=40)
    found = simulate(dying)
    assert found.restarts > 0
    assert found.seconds_per_update > 18
    assert found.consumed == 40


@given(
    seed=st.integers(0, 10**6),
    ahead=st.integers(0, 3),
    more=st.integers(0, 3),
    deaths=st.sampled_from([0.0, 20.0]),
    in_flight=st.sampled_from(["drain", "continue", "recompute"]),
    in_turns=st.booleans(),
    workers=st.sampled_from([None, 3]),
)
@settings(max_examples=15, deadline=None)
def test_whatever_happens_groups_are_learned_from_once_and_none_too_late(
    seed, ahead, more, deaths, in_flight, in_turns, workers
):
    failures = Failures(deaths, deaths, deaths, nodes=2, restart_seconds=5)
    found = simulate(
        replace(
            VARIED,
            seed=seed,
            admit_ahead=ahead,
            max_staleness=ahead + more,
            failures=failures,
            in_flight=in_flight,
            take_turns=in_turns,
            environment_workers=workers,
        )
    )
    assert found.consumed == 12 * 4
    assert found.started == found.consumed + found.alive
    assert found.alive <= (ahead + 1) * 4
    assert found.staleness_max <= ahead + more
    assert sum(found.staleness.values()) == pytest.approx(1)
    shares = found.shares
    for share in (shares.learner, shares.sampler, shares.sampler_batch, shares.environment, shares.places):
        assert 0 <= share <= 1 + 1e-9
    assert shares.learner + shares.transfer + sum(found.waiting.values()) <= 1 + 1e-9
    assert found.seconds == pytest.approx(sum(found.steps))


def test_the_same_seed_is_the_same_run_and_another_is_another():
    assert simulate(VARIED) == simulate(VARIED)
    assert simulate(VARIED).seconds != simulate(replace(VARIED, seed=1)).seconds


def in_the_mean(scenario, seeds=4):
    """All of it: who is quick at the beginning has less left to be quick with."""
    return np.mean([simulate(replace(scenario, skip=0, seed=seed)).seconds for seed in range(seeds)])


def test_more_of_anything_is_no_slower_in_the_mean():
    base = in_the_mean(VARIED)
    engine = VARIED.engine
    for more in (
        replace(VARIED, engine=replace(engine, replicas=8)),
        replace(VARIED, max_in_flight=96),
        replace(VARIED, learner=LearnerRates(seconds=0.2)),
        replace(VARIED, max_staleness=8),
    ):
        assert in_the_mean(more) <= base * 1.01  # other orders, other stragglers
    assert in_the_mean(replace(VARIED, admit_ahead=0, max_staleness=0)) > base


def test_a_wider_spread_keeps_the_mean():
    numbers = np.random.default_rng(0)
    for sigma in (0.0, 0.5, 1.0):
        assert Spread(3.0, sigma).draw(numbers, 100_000).mean() == pytest.approx(3.0, rel=0.02)
    assert set(Spread(0, values=(1.0, 4.0)).draw(numbers, 100)) == {1.0, 4.0}
    assert Spread(0, values=(1.0, 4.0)).expected == 2.5
    assert Spread(3.0, 1.0, most=5.0).draw(numbers, 1000).max() == 5.0


def test_a_scenario_that_cannot_be_is_refused():
    with pytest.raises(RecipeError, match="max_staleness: at least admit_ahead"):
        Scenario(admit_ahead=2, max_staleness=1)
    with pytest.raises(RecipeError, match="group_size: 1 or more, got 0"):
        Scenario(group_size=0)
    with pytest.raises(RecipeError, match="skip: fewer than the 3 updates"):
        Scenario(updates=3, skip=3)


def test_who_would_enter_waits_for_company_as_long_as_a_pass_holds_up_those_who_draw():
    # two begin at once, with one pass of 1 s before their 3 tokens, and come back from their tools 2 s apart: the
    # first enters when nobody draws, at once; the second, who comes while it draws, holds it up for a pass
    reading = replace(SMALL, engine=replace(ONE_A_SECOND, pass_seconds=1), group_size=2, max_in_flight=2)
    # 1 + 3 | both call for 5 s | 1 + 3, and 7 s of learning
    assert simulate(reading).seconds_per_update == pytest.approx(1 + 3 + 5 + 1 + 3 + 7)
    # one at a time: each of the four turns waits for its own pass
    alone = replace(reading, max_in_flight=1)
    assert simulate(alone).seconds_per_update == pytest.approx(2 * (1 + 3 + 5 + 1 + 3) + 7)


def asked(replica, at, *episodes):
    replica.catch_up(at)
    for episode in episodes:
        replica.ask(Request(episode, 100, 0, 0))
    replica.let_in()


def test_company_is_waited_for_until_together_they_have_waited_as_long_as_a_pass_holds_up():
    replica = Replica(EngineRates(step_seconds=1, step_seconds_per_sequence=0, pass_seconds=1))
    asked(replica, 0, 0)
    assert replica.running == 1
    asked(replica, 2, 1)  # it would hold one up for a second
    assert (replica.running, replica.next_change()) == (1, 3)
    asked(replica, 2.5, 2)  # at 2.75 they have waited for 0.75 and 0.25 s
    assert (replica.running, replica.next_change()) == (1, 2.75)
    replica.catch_up(2.75)
    replica.finished()
    assert (replica.running, replica.waiting) == (3, 0)


def test_company_is_waited_for_eight_passes_at_most():
    replica = Replica(EngineRates(step_seconds=1, step_seconds_per_sequence=0, pass_seconds=1))
    asked(replica, 0, *range(20))
    asked(replica, 9, 20)
    assert replica.next_change() == 17


def test_what_is_read_again_is_read_by_those_too_who_wait_to_enter():
    replica = Replica(EngineRates(step_seconds=1, pass_seconds=1))
    asked(replica, 0, 0)
    replica.catch_up(1.5)
    replica.ask(Request(1, 100, 5, 50))
    assert [request.read for request in replica.read_again()] == [0, 50]


@pytest.mark.parametrize(("drawing", "among", "rows"), [(1, 1, 1), (1, 9, 1), (4, 4, 4), (2, 5, 3), (2, 1000, 6)])
def test_rows_between_those_who_draw_are_gone_through(drawing, among, rows):
    replica = Replica(EngineRates(step_seconds=0, step_seconds_per_sequence=0, step_seconds_per_row=1))
    replica.held = among
    asked(replica, 0, *range(drawing))
    assert replica.step == pytest.approx(rows)


def test_episodes_that_wait_for_tools_slow_down_those_who_draw():
    engine = EngineRates(step_seconds=0.01, step_seconds_per_sequence=0, step_seconds_per_row=0.01)
    few = replace(VARIED, engine=engine, admit_ahead=0, max_staleness=0, max_in_flight=16)
    free = replace(few, engine=replace(engine, step_seconds_per_row=0, step_seconds_per_sequence=0.01))
    assert simulate(few).seconds_per_update > 1.02 * simulate(free).seconds_per_update
