"""State machine test: every token has the log-prob of a plain forward pass under the weights that sampled it.

Random arrivals, turns, forks, scorings, aborts, cancellations, evictions and weight updates in any order;
a naive second implementation (one full forward pass) checks every answer.
"""

import asyncio
import copy

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from support.models import CONFIGS, random_model
from support.slow import examples, mostly_slow
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.trajectory import TokenSequence

CONTEXT = 64
small = st.integers(0, 7)


class EngineMachine(RuleBasedStateMachine):
    weights: tuple[torch.nn.Module, ...]

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.engine = LocalEngine(copy.deepcopy(self.weights[0]), context_length=CONTEXT, rows=3, prefill_tokens=6)
        self.model_of = {0: self.weights[0]}  # by version
        self.episodes, self.mixed, self.asked, self.opened = {}, set(), [], 0
        for shared in (0, 20, 20, 33):
            self.open(shared, [shared + 1, 2, 3])

    # events

    @rule(shared=st.integers(0, 40), own=st.lists(st.integers(0, 96), min_size=1, max_size=6))
    def open(self, shared, own):
        self.opened += 1
        self.episodes[f"episode {self.opened}"] = [(3 * i) % 97 for i in range(shared)] + own

    @rule(which=small, length=st.integers(1, 9), temperature=st.sampled_from([0.7, 1, 0]), seed=small)
    def speak(self, which, length, temperature, seed):
        self.speaks(self.chosen(which), length, temperature, seed)

    @rule(length=st.integers(1, 9), temperature=st.sampled_from([0.7, 1]), seed=small)
    def everyone_speaks(self, length, temperature, seed):
        for i, name in enumerate(list(self.episodes)):
            self.speaks(name, 1 + (length + i) % 9, temperature, seed + i)

    def speaks(self, name, length, temperature, seed):
        if name is None or any(name == request[0] for request in self.asked) or len(self.episodes[name]) >= CONTEXT:
            return
        prompt, sampling = list(self.episodes[name]), Sampling(length, temperature=temperature, seed=seed)
        task = self.loop.create_task(self.engine.generate(GenerateRequest(TokenSequence(prompt), sampling, name)))
        self.asked.append((name, "speak", prompt, sampling, task, self.engine.version))

    @rule(which=small, start=st.integers(1, 30))
    def score(self, which, start):
        name = self.chosen(which)
        if name is not None and start < len(self.episodes[name]) <= CONTEXT:
            ids = list(self.episodes[name])
            task = self.loop.create_task(self.engine.score(TokenSequence(ids), start=start))
            self.asked.append((None, "score", ids, start, task, self.engine.version))

    @rule(which=small, cut=st.integers(1, 50))
    def fork(self, which, cut):
        name = self.chosen(which)
        if name is not None:
            self.opened += 1
            self.episodes[f"episode {self.opened}"] = self.episodes[name][:cut]

    @rule(which=small)
    def abort(self, which):
        if self.chosen(which) is not None:
            self.engine.abort(self.chosen(which))

    @rule(which=small)
    def cancel(self, which):
        if self.asked:
            self.asked[which % len(self.asked)][4].cancel()

    @rule(which=small)
    def forget(self, which):
        name = self.chosen(which)
        if name is not None and not any(name == request[0] for request in self.asked):
            self.engine.forget(name)
            del self.episodes[name]
            self.mixed.discard(name)

    @rule(in_flight=st.sampled_from(["drain", "continue", "recompute"]), delay=st.integers(0, 12), wait=st.booleans())
    def load_weights(self, in_flight, delay, wait):
        self.everyone_speaks(9, 1, delay)
        self.loop.run_until_complete(asyncio.sleep(delay / 1000))  # so that it comes in the middle
        version = max(self.model_of) + 1
        model = self.weights[version % 2]
        self.model_of[version] = model
        loading = self.loop.create_task(
            self.engine.load_weights(dict(model.named_parameters()), version, in_flight=in_flight)
        )
        if in_flight == "continue":
            self.mixed |= set(self.episodes)
            self.asked = [(*request[:5], None) for request in self.asked]
        self.asked.append((None, "load", None, None, loading, version))
        if wait:
            self.loop.run_until_complete(loading)

    @rule(milliseconds=st.integers(0, 5))
    def pass_time(self, milliseconds):
        self.loop.run_until_complete(asyncio.sleep(milliseconds / 1000))

    @rule()
    def settle(self):
        """Wait for all requests and check every answer."""
        tasks = [request[4] for request in self.asked]
        if tasks:
            self.loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60))
        for name, kind, arguments, how, task, since in self.asked:
            if task.cancelled() or kind == "load":
                continue
            if kind == "speak":
                self.check_generation(name, arguments, how, task.result(), since)
                self.episodes[name] = [*arguments, *task.result().tokens]
            elif since is not None:
                self.check_scores(arguments, how, task.result(), since)
        self.asked = []

    def teardown(self):
        self.settle()
        statistics = self.engine.statistics
        assert statistics.failed == 0
        self.loop.run_until_complete(self.engine.close())
        self.loop.close()

    # invariants

    def check_generation(self, name, prompt, sampling, generation, since):
        n = len(generation.tokens)
        assert (
            len(generation.logprobs)
            == len(generation.model_logprobs)
            == len(generation.entropies)
            == len(generation.versions)
            == n
        )
        assert list(generation.versions) == sorted(generation.versions)
        if generation.finish == "length":
            assert n == min(sampling.max_new_tokens, CONTEXT - len(prompt))
        if name in self.mixed or since is None:
            return
        temperature = sampling.temperature or 1.0
        for version in set(generation.versions):
            with torch.no_grad():
                logits = self.model_of[version](torch.tensor([[*prompt, *generation.tokens]])).logits[0]
            model, sampler = torch.log_softmax(logits, -1), torch.log_softmax(logits / temperature, -1)
            for i, token in enumerate(generation.tokens):
                if generation.versions[i] == version:
                    at = len(prompt) + i - 1
                    assert abs(generation.model_logprobs[i] - model[at, token].item()) <= 1e-4
                    if sampling.temperature:
                        assert abs(generation.logprobs[i] - sampler[at, token].item()) <= 1e-4
                    else:
                        assert model[at].max() - model[at, token] <= 1e-4

    def check_scores(self, ids, start, scores, since):
        def distance(version):
            with torch.no_grad():
                model = torch.log_softmax(self.model_of[version](torch.tensor([ids])).logits[0], -1)
            right = [model[i - 1, ids[i]].item() for i in range(start, len(ids))]
            return max(abs(a - b) for a, b in zip(scores.logprobs, right, strict=True))

        assert min(distance(version) for version in self.model_of if version >= since) <= 1e-4

    def chosen(self, which):
        names = list(self.episodes)
        return names[which % len(names)] if names else None


@pytest.mark.hypothesis  # with all its examples in `make test-slow`
@pytest.mark.parametrize("family", mostly_slow(CONFIGS, quick=["gemma2"]))
def test_answers_equal_a_plain_forward_pass_under_random_events(family):
    machine = type("Machine", (EngineMachine,), {"weights": (random_model(family), random_model(family, seed=1))})
    run_state_machine_as_test(
        machine,
        settings=examples(25, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )
