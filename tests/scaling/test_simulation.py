"""The simulated training loop: worked numbers of small cases, and invariants of others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whetstone.errors import RecipeError
from whetstone.scaling.simulation import simulate_run
from whetstone.scaling.simulation_replica import SimulatedReplica, SimulatedRequest
from whetstone.scaling.simulation_scenario import (
    EngineRates,
    EpisodeShape,
    Failures,
    LearnerRates,
    LognormalSpread,
    Scenario,
)

TWO_TURNS = EpisodeShape(
    turns=LognormalSpread(2),
    prompt_tokens=LognormalSpread(0),
    turn_tokens=LognormalSpread(3),
    observation_tokens=LognormalSpread(0),
    tool_seconds=LognormalSpread(5),
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
    episode=EpisodeShape(
        turns=LognormalSpread(3, 0.5), turn_tokens=LognormalSpread(20, 0.7), tool_seconds=LognormalSpread(1, 1)
    ),
    learner=LearnerRates(seconds=1),
    groups_per_update=4,
    group_size=4,
    max_in_flight=48,
    admit_ahead=2,
    max_staleness=4,
    updates=12,
)


def test_duration_of_one_episode_is_the_sum_of_its_parts():
    # 3 tokens + 5 s + 3 tokens = 11 s, then 7 s of learning, sequentially
    result = simulate_run(SMALL)
    assert result.seconds_per_update == pytest.approx(18)
    assert result.shares.learner == pytest.approx(7 / 18)
    assert result.shares.sampler == pytest.approx(6 / 18)
    assert result.shares.environment == pytest.approx(5 / 18)
    assert result.staleness == {0: 1.0}


def test_two_episodes_ahead_are_as_fast_as_the_slowest_part():
    # with one more slot an episode starts during the update of the previous: 11 s of sampling overlap 7 s of learning
    ahead = replace(SMALL, admit_ahead=1, max_staleness=1, updates=12)
    assert simulate_run(ahead).seconds_per_update == pytest.approx(11)
    # with two slots the learner is the bottleneck
    assert simulate_run(replace(ahead, max_in_flight=2)).seconds_per_update == pytest.approx(9)  # (11 + 7) / 2
    unbound = simulate_run(replace(ahead, max_in_flight=4, admit_ahead=3, max_staleness=3))
    assert unbound.seconds_per_update == pytest.approx(7)
    assert unbound.bottleneck == "learner"
    assert unbound.shares.learner == pytest.approx(1)


def test_sequences_of_a_batch_slow_each_other_down():
    # two sample 3 tokens each at 1 + 2 · 0.5 s per step: 6 s; the call 5 s; again 6 s; then 7 s
    shared = replace(
        SMALL, engine=EngineRates(step_seconds=1, step_seconds_per_sequence=0.5), group_size=2, max_in_flight=2
    )
    assert simulate_run(shared).seconds_per_update == pytest.approx(6 + 5 + 6 + 7)
    # with one KV slot: its 3 · 1.5 s precede the other's. 4.5 → tool until 9.5; the other 4.5 → 9 → 14;
    # the first samples again 9.5 → 14, the other 14 → 18.5
    alone = replace(shared, engine=replace(shared.engine, max_sequences=1))
    assert simulate_run(alone).seconds_per_update == pytest.approx(18.5 + 7)


def test_prefill_stops_decoding_for_all():
    reading = replace(
        SMALL,
        engine=replace(ONE_A_SECOND, prefill_seconds=0.5, prefill_seconds_per_token=0.01),
        episode=replace(TWO_TURNS, prompt_tokens=LognormalSpread(100), observation_tokens=LognormalSpread(50)),
    )
    # the prompt 0.5 + 1 s, the answer 0.5 + 0.5 s, in addition to the 18 s
    assert simulate_run(reading).seconds_per_update == pytest.approx(18 + 1.5 + 1)


def test_new_weights_cost_the_recomputed_prefill():
    # ahead: a turn in flight at the update repeats the prefill of its 100 tokens; with `continue` it does not
    engine = replace(ONE_A_SECOND, prefill_seconds_per_token=0.01)
    shape = replace(
        TWO_TURNS, prompt_tokens=LognormalSpread(100), turns=LognormalSpread(1), turn_tokens=LognormalSpread(20)
    )
    ahead = replace(SMALL, engine=engine, episode=shape, admit_ahead=1, max_staleness=1)
    assert simulate_run(replace(ahead, in_flight="continue")).seconds_per_update == pytest.approx(21)
    assert simulate_run(replace(ahead, in_flight="recompute")).seconds_per_update == pytest.approx(22)


def test_draining_engine_admits_no_request_before_it_has_new_weights():
    ahead = replace(
        SMALL,
        episode=replace(TWO_TURNS, turns=LognormalSpread(1)),
        learner=LearnerRates(seconds=1),
        admit_ahead=1,
        max_staleness=1,
        max_in_flight=2,
        in_flight="drain",
        updates=10,
    )
    # two of 3 s start together and end at the same time: 3 s + 1 s of learning for each
    drained, others = simulate_run(ahead), simulate_run(replace(ahead, in_flight="continue"))
    assert drained.seconds_per_update >= others.seconds_per_update
    assert drained.staleness_max <= 1


def test_alternating_engine_and_learner_add_up():
    one = replace(ONE_A_SECOND, max_sequences=1)  # concurrent sequences cost nothing more
    ahead = replace(SMALL, engine=one, admit_ahead=1, max_staleness=1, max_in_flight=2, updates=30, skip=4)
    # overlapped 9 s; alternating at least 6 s of sampling and 7 s of learning
    assert simulate_run(ahead).seconds_per_update < 12
    assert simulate_run(replace(ahead, take_turns=True)).seconds_per_update >= 13 - 1e-9


def test_calls_wait_for_workers_and_rewards_for_judges():
    four = replace(SMALL, group_size=4, max_in_flight=4)
    assert simulate_run(four).seconds_per_update == pytest.approx(18)
    # one worker: four sequential calls of 5 s from 3 s on, the last samples 3 s more
    workers = simulate_run(replace(four, environment_workers=1))
    assert workers.seconds_per_update == pytest.approx(3 + 20 + 3 + 7)
    assert workers.shares.environment == pytest.approx(20 / 33)
    judged = replace(four, episode=replace(TWO_TURNS, reward_seconds=LognormalSpread(2)))
    assert simulate_run(judged).seconds_per_update == pytest.approx(20)
    assert simulate_run(replace(judged, reward_workers=1)).seconds_per_update == pytest.approx(11 + 8 + 7)


def test_weights_are_transferred_during_or_before_sampling():
    assert simulate_run(
        replace(SMALL, learner=LearnerRates(7, transfer_seconds=2))
    ).seconds_per_update == pytest.approx(20)
    ahead = replace(SMALL, admit_ahead=1, max_staleness=1, updates=12)
    stopped = simulate_run(replace(ahead, learner=LearnerRates(1, transfer_seconds=2))).seconds_per_update
    overlapped = simulate_run(replace(ahead, learner=LearnerRates(1, prepare_seconds=2))).seconds_per_update
    assert overlapped == pytest.approx(11)
    assert overlapped < stopped <= 13 + 1e-9


def test_dead_learner_repeats_its_update():
    dying = replace(SMALL, failures=Failures(learner_per_hour=60, restart_seconds=10), updates=40)
    result = simulate_run(dying)
    assert result.restarts > 0
    assert result.seconds_per_update > 18
    assert result.consumed == 40


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
def test_every_group_is_trained_once_and_within_its_bound(seed, ahead, more, deaths, in_flight, in_turns, workers):
    failures = Failures(deaths, deaths, deaths, nodes=2, restart_seconds=5)
    result = simulate_run(
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
    assert result.consumed == 12 * 4
    assert result.started == result.consumed + result.alive
    assert result.alive <= (ahead + 1) * 4
    assert result.staleness_max <= ahead + more
    assert sum(result.staleness.values()) == pytest.approx(1)
    shares = result.shares
    for share in (shares.learner, shares.sampler, shares.sampler_batch, shares.environment, shares.places):
        assert 0 <= share <= 1 + 1e-9
    assert shares.learner + shares.transfer + sum(result.waiting.values()) <= 1 + 1e-9
    assert result.seconds == pytest.approx(sum(result.steps))


def test_run_is_a_function_of_the_seed():
    assert simulate_run(VARIED) == simulate_run(VARIED)
    assert simulate_run(VARIED).seconds != simulate_run(replace(VARIED, seed=1)).seconds


def mean_updates(scenario, seeds=4):
    """Average over the full run: a policy that learns fast at the start has less left to learn."""
    return np.mean([simulate_run(replace(scenario, skip=0, seed=seed)).seconds for seed in range(seeds)])


def test_more_resources_are_no_slower_on_average():
    base = mean_updates(VARIED)
    engine = VARIED.engine
    for more in (
        replace(VARIED, engine=replace(engine, replicas=8)),
        replace(VARIED, max_in_flight=96),
        replace(VARIED, learner=LearnerRates(seconds=0.2)),
        replace(VARIED, max_staleness=8),
    ):
        assert mean_updates(more) <= base * 1.01  # other orders and stragglers
    assert mean_updates(replace(VARIED, admit_ahead=0, max_staleness=0)) > base


def test_wider_distribution_keeps_the_mean():
    numbers = np.random.default_rng(0)
    for sigma in (0.0, 0.5, 1.0):
        assert LognormalSpread(3.0, sigma).draw(numbers, 100_000).mean() == pytest.approx(3.0, rel=0.02)
    assert set(LognormalSpread(0, values=(1.0, 4.0)).draw(numbers, 100)) == {1.0, 4.0}
    assert LognormalSpread(0, values=(1.0, 4.0)).expected == 2.5
    assert LognormalSpread(3.0, 1.0, maximum=5.0).draw(numbers, 1000).max() == 5.0


def test_invalid_scenario_is_refused():
    with pytest.raises(RecipeError, match="max_staleness: must be at least admit_ahead"):
        Scenario(admit_ahead=2, max_staleness=1)
    with pytest.raises(RecipeError, match="group_size: must be at least 1, got 0"):
        Scenario(group_size=0)
    with pytest.raises(RecipeError, match="fewer than the 3 updates"):
        Scenario(updates=3, skip=3)


def test_prefill_waits_for_others_as_long_as_it_would_delay_decoding():
    # two start together, with one pass of 1 s before their 3 tokens, and return from their tools 2 s apart: the
    # first enters immediately, since none is decoded; the second enters during its decoding and delays it for a pass
    reading = replace(SMALL, engine=replace(ONE_A_SECOND, pass_seconds=1), group_size=2, max_in_flight=2)
    # 1 + 3 | both call for 5 s | 1 + 3, and 7 s of learning
    assert simulate_run(reading).seconds_per_update == pytest.approx(1 + 3 + 5 + 1 + 3 + 7)
    # one at a time: each of the four turns waits for its pass
    alone = replace(reading, max_in_flight=1)
    assert simulate_run(alone).seconds_per_update == pytest.approx(2 * (1 + 3 + 5 + 1 + 3) + 7)


def arrivals(replica, at, *episodes):
    replica.catch_up(at)
    for episode in episodes:
        replica.ask(SimulatedRequest(episode, 100, 0, 0))
    replica.let_in()


def test_prefills_are_batched_until_their_waiting_time_is_that_of_a_pass():
    replica = SimulatedReplica(EngineRates(step_seconds=1, step_seconds_per_sequence=0, pass_seconds=1))
    arrivals(replica, 0, 0)
    assert replica.running == 1
    arrivals(replica, 2, 1)  # it would delay one sequence for a second
    assert (replica.running, replica.next_change()) == (1, 3)
    arrivals(replica, 2.5, 2)  # at 2.75 they have waited for 0.75 and 0.25 s
    assert (replica.running, replica.next_change()) == (1, 2.75)
    replica.catch_up(2.75)
    replica.finished()
    assert (replica.running, replica.waiting) == (3, 0)


def test_prefill_waits_for_eight_passes_at_most():
    replica = SimulatedReplica(EngineRates(step_seconds=1, step_seconds_per_sequence=0, pass_seconds=1))
    arrivals(replica, 0, *range(20))
    arrivals(replica, 9, 20)
    assert replica.next_change() == 17


def test_recomputed_prefill_includes_waiting_requests():
    replica = SimulatedReplica(EngineRates(step_seconds=1, pass_seconds=1))
    arrivals(replica, 0, 0)
    replica.catch_up(1.5)
    replica.ask(SimulatedRequest(1, 100, 5, 50))
    assert [request.read for request in replica.read_again()] == [0, 50]


@pytest.mark.parametrize(("drawing", "among", "rows"), [(1, 1, 1), (1, 9, 1), (4, 4, 4), (2, 5, 3), (2, 1000, 6)])
def test_inactive_slots_between_active_ones_cost_time(drawing, among, rows):
    replica = SimulatedReplica(EngineRates(step_seconds=0, step_seconds_per_sequence=0, step_seconds_per_row=1))
    replica.num_assigned = among
    arrivals(replica, 0, *range(drawing))
    assert replica.step == pytest.approx(rows)


def test_episodes_in_tools_slow_down_decoding():
    engine = EngineRates(step_seconds=0.01, step_seconds_per_sequence=0, step_seconds_per_row=0.01)
    few = replace(VARIED, engine=engine, admit_ahead=0, max_staleness=0, max_in_flight=16)
    free = replace(few, engine=replace(engine, step_seconds_per_row=0, step_seconds_per_sequence=0.01))
    assert simulate_run(few).seconds_per_update > 1.02 * simulate_run(free).seconds_per_update
