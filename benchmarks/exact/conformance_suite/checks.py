"""Checks of silent failures, each computed from the record of runs, whatever the trainer reports about itself.

Two tests carry most checks. *Who sampled these tokens?* The likelihood ratio of the sampled tokens under two versions
of the weights: if the other version had sampled them, a log ratio above c has a probability of at most e^-c. *Which
tokens were trained?* The first update of AdamW moves each weight by the sign of its gradient, so the signs of an
independent implementation of the loss must agree with the change of the weights.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance_suite.scenario import DOWN, Scenario, read_rows
from conformance_suite.world import logprobs

NATS = 7.0
"""Log-likelihood ratio that decides: a wrong decision has a probability of at most e^-7 = 0.1 %."""
AGREEMENT = 0.995
"""Fraction of weights whose first change has the sign of the gradient."""
HUNG_SECONDS = 15.0
"""Seconds after which an episode whose tool does not return has hung; the deadline of the tool is 2 seconds."""


class Broken(Exception):
    """The property does not hold; the message has the measurement."""


class Undecided(Exception):
    """The run has too few events for the check."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    finished: bool
    """Whether the process ended by itself with exit code 0."""
    error: str = ""
    """Last line of stderr if it failed."""


@dataclass(frozen=True)
class Record:
    """Record of a run."""

    scenario: Scenario
    outcome: Outcome
    resumed_at: float = 0.0
    """Time at which the run was resumed; 0 if it was not."""

    @property
    def folder(self) -> Path:
        """Return the folder of the run."""
        return Path(self.scenario.out)

    @cached_property
    def trained(self) -> list[dict[str, Any]]:
        """Sequences of the updates that led to the last weights: a repeated update counts once."""
        rows = read_rows(self.folder, "trained")
        repeated = {row["update"] for row in rows if row["time"] >= self.resumed_at}
        return [row for row in rows if row["time"] >= self.resumed_at or row["update"] not in repeated]

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of the model."""
        return AutoTokenizer.from_pretrained(self.scenario.model)

    def of_update(self, update: int) -> list[dict[str, Any]]:
        """Return the sequences of an update."""
        return [row for row in self.trained if row["update"] == update]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file."""
        return read_rows(self.folder, name)

    def state(self, updates: int) -> dict[str, torch.Tensor]:
        """Return the weights after a number of updates."""
        stored = load_file(self.folder / "record" / "weights" / f"{updates}.safetensors")
        return {name.removeprefix("module."): value for name, value in stored.items()}

    def model(self, updates: int) -> Any:
        """Return the model after a number of updates."""
        model = AutoModelForCausalLM.from_pretrained(self.scenario.model)
        names = dict(model.named_parameters())
        state = self.state(updates)
        if missing := names.keys() - state.keys():
            raise Undecided(f"the record has no weights {sorted(missing)[0]}")
        with torch.no_grad():
            for name, parameter in names.items():
                parameter.copy_(state[name])
        return model.eval()

    def require_end(self) -> None:
        """Raise an error if the run did not finish."""
        if not self.outcome.finished:
            raise Broken(f"the run stopped: {self.outcome.error}")

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the text of a sequence."""
        return str(self.tokenizer.decode(row["ids"]))


Play = Callable[..., Record]
"""Plays a scenario by name and fields, once; it is killed after `kill_after` updates and resumed."""


@dataclass(frozen=True, slots=True)
class Check:
    """A silent failure, and the function that detects it."""

    name: str
    symptom: str
    """The failure in words of users."""
    threads: tuple[str, ...]
    """Public threads with reports."""
    property: str
    """What must hold."""
    run: Callable[[Play], str] = field(compare=False)
    """Returns the measurement; raises `Broken` or `Undecided`."""


# ------------------------------------------------------------ measurements


def spans(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each contiguous trained span."""
    place = 0
    for value, group in groupby(mask):
        length = len(list(group))
        if value:
            yield place, place + length
        place += length


def log_ratio(rows: Sequence[Mapping[str, Any]], first: Any, second: Any) -> float:
    """Return the log-likelihood ratio of the trained tokens of `rows` under two models, in nats."""
    total = 0.0
    with torch.no_grad():
        for row in rows:
            mask = torch.tensor(row["mask"][1:], dtype=torch.bool)
            total += (logprobs(first, row["ids"]) - logprobs(second, row["ids"]))[mask].sum().item()
    return total


def sign_agreement(record: Record, weight: Callable[[Mapping[str, Any]], list[float]]) -> float:
    """Return the fraction of weights whose first change has the sign of the gradient of −Σ weight · log-prob."""
    model, before, after = record.model(0), record.state(0), record.state(1)
    for row in record.of_update(0):
        loss = -(torch.tensor(weight(row)[1:]) * logprobs(model, row["ids"])).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    agreeing = counted = 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        change = after[name] - before[name]
        if gradient is None:
            continue
        large = gradient.abs() > 1e-3 * gradient.abs().max()
        agreeing += int(((change.sign() == -gradient.sign()) & large).sum())
        counted += int(large.sum())
    if not counted:
        raise Undecided("the gradient of the first update is 0")
    return agreeing / counted


def policy_weights(row: Mapping[str, Any]) -> list[float]:
    """Return the weight of each token in the policy gradient: its advantage inside the mask."""
    return [row["advantage"] * trained for trained in row["mask"]]


def require_agreement(agreement: float) -> str:
    """Return the measurement in words, or raise an error if the signs disagree."""
    words = f"{agreement:.2%} of the weights moved by the sign of an independent gradient"
    if agreement < AGREEMENT:
        raise Broken(words)
    return words


def samples_by_task(record: Record) -> dict[str, Counter[tuple[int, ...]]]:
    """Return how often each sequence of a task was trained."""
    samples: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row in record.trained:
        samples[row["task"]][tuple(row["ids"])] += 1
    return samples


# ------------------------------------------------------------ checks


def adapter_is_sampled(play: Play) -> str:
    """Check that the sampler uses the adapter in training."""
    record = play("adapter", lora_rank=8, learning_rate=2e-2, updates=4)
    record.require_end()
    base, total = record.model(0), 0.0
    for update in range(1, record.scenario.updates):
        total += log_ratio(record.of_update(update), record.model(update), base)
    words = f"log-likelihood ratio of the adapter against the base model: {total:+.1f} nats"
    if abs(total) < NATS:
        raise Undecided(words)
    if total < 0:
        raise Broken(words)
    return words


def weights_are_fresh(play: Play) -> str:
    """Check that each update trains on samples of the weights before it."""
    record = play("tools", tool=True, updates=4, learning_rate=2.5e-3)
    record.require_end()
    models = [record.model(update) for update in range(record.scenario.updates)]
    ratios = [
        log_ratio(record.of_update(update), models[update], models[update - 1]) for update in range(1, len(models))
    ]
    words = "log-likelihood ratio of the current weights against those before the last update: "
    words += ", ".join(f"{ratio:+.1f}" for ratio in ratios) + " nats"
    if abs(sum(ratios)) < NATS:
        raise Undecided(words)
    if sum(ratios) < 0:
        raise Broken(words)
    return words


def tokens_are_kept(play: Play) -> str:
    """Check that trained spans and their contexts are the ids of the sampler."""
    record = play("tools", tool=True, updates=4, learning_rate=2.5e-3)
    record.require_end()
    calls = {(tuple(row["prompt"]), tuple(row["tokens"])) for row in record.rows("sampled")}
    count = changed = 0
    for row in record.trained:
        for start, end in spans(row["mask"]):
            ids = tuple(row["ids"])
            if (ids[:start], ids[start:end]) not in calls:
                raise Broken(f"a trained turn was not sampled: {record.tokenizer.decode(ids[start:end])!r}")
            text = record.tokenizer.decode(ids[start:end])
            changed += tuple(record.tokenizer(text, add_special_tokens=False)["input_ids"]) != ids[start:end]
            count += 1
    if not changed:
        raise Undecided("no sampled text has another tokenization")
    return f"{count} trained turns are the sampled ids; {changed} of them would change if they were tokenized again"


def results_are_excluded(play: Play) -> str:
    """Check that results of tools are context, and that nothing else is excluded."""
    record = play("tools", tool=True, updates=4, learning_rate=2.5e-3)
    record.require_end()
    called = [row for row in record.trained if "value: 7" in record.text(row)]
    if not called:
        raise Undecided("no episode has a tool result")
    for row in called:
        trained = record.tokenizer.decode(list(compress(row["ids"], row["mask"])))
        if "value" in trained:
            raise Broken(f"the result of a tool is in the loss: {trained!r}")
    return f"{len(called)} episodes with a tool result; " + require_agreement(sign_agreement(record, policy_weights))


def messages_are_excluded(play: Play) -> str:
    """Check that supervised training reads the assistant's messages only."""
    record = play("supervised", stage="supervised", updates=2)
    record.require_end()
    for row in record.trained:
        trained = record.tokenizer.decode(list(compress(row["ids"], row["mask"])))
        ids = record.tokenizer.decode(row["ids"])
        answers = [part.split("<|im_end|>")[0] for part in ids.split("<|im_start|>assistant\n")[1:]]
        wanted = "".join(f"{answer}<|im_end|>" for answer in answers)
        if trained != wanted:
            raise Broken(f"trained text is {trained!r}, that of the assistant {wanted!r}")
    agreement = sign_agreement(record, lambda row: list(map(float, row["mask"])))
    return f"{len(record.trained)} conversations; " + require_agreement(agreement)


def outage_is_no_failure(play: Play) -> str:
    """Check that no episode is trained whose tool lost its backend."""
    record = play("outage", tool=True, fault="tool")
    record.require_end()
    outages = len([row for row in record.rows("faults") if row["kind"] == "tool"])
    if not outages:
        raise Undecided("no call failed")
    hit = [row for row in record.trained if DOWN in record.text(row)]
    moved = [row for row in hit if row["advantage"]]
    words = f"{outages} calls found the backend down; {len(moved)} such episodes were trained"
    if moved:
        mean = sum(row["advantage"] for row in moved) / len(moved)
        raise Broken(f"{words}, with a mean advantage of {mean:+.2f}")
    if hit:
        return f"{words}; {len(hit)} had the advantage 0"
    return words


def missing_verdict_is_no_zero(play: Play) -> str:
    """Check that an episode without a verdict leaves the baseline of its group."""
    record = play("verdict", fault="verdict")
    record.require_end()
    if not record.rows("faults"):
        raise Undecided("the judge answered always")
    unjudged, groups = 0, defaultdict(list)
    for row in record.trained:
        if record.text(row).removesuffix("<|im_end|>").endswith("b"):
            unjudged += 1
            if row["advantage"]:
                raise Broken(f"an episode without a verdict has the advantage {row['advantage']:+.2f}")
        else:
            groups[row["update"], row["task"]].append(row["advantage"])
    off = max((abs(sum(advantages)) for advantages in groups.values()), default=0.0)
    if off > 1e-3:
        raise Broken(f"the advantages of judged episodes of a group sum to {off:.2f}, not to 0")
    faults = len(record.rows("faults"))
    return f"{faults} episodes without a verdict, none trained; the advantages of the others sum to 0 in each group"


def hung_tool_ends(play: Play) -> str:
    """Check that a tool that does not return delays only its episode."""
    record = play("hang", tool=True, fault="hang", updates=1)
    if not any(row["kind"] == "hang" for row in record.rows("faults")):
        raise Undecided(f"no call hung: {record.outcome.error}")
    if not any(row["done"] == 1 for row in record.rows("updates")):
        raise Broken(f"the first update was not made {HUNG_SECONDS:.0f} s after one call of a tool hung")
    return "the update was made; the call ended at its deadline of 2 s"


def prompts_survive_a_kill(play: Play) -> str:
    """Check that a killed and resumed run trains on each prompt once."""
    undisturbed = play("tools", tool=True, updates=4, learning_rate=2.5e-3)
    undisturbed.require_end()
    record = play("killed", tool=True, updates=4, learning_rate=2.5e-3, kill_after=2)
    record.require_end()
    wanted = Counter(task for task, rows in samples_by_task(undisturbed).items())
    trained = Counter(task for task, rows in samples_by_task(record).items())
    lost, other = wanted - trained, trained - wanted
    if lost or other:
        raise Broken(f"{len(lost)} prompts of the undisturbed run were not trained, {len(other)} others were")
    if uneven := [
        task for task, rows in samples_by_task(record).items() if rows.total() != undisturbed.scenario.group_size
    ]:
        raise Broken(f"{len(uneven)} prompts have more or fewer samples than a group")
    return f"{len(trained)} prompts, each with one group, are those of the undisturbed run"


def resumed_weights_are_equal(play: Play) -> str:
    """Check that a killed and resumed run ends with the weights of an undisturbed one."""
    undisturbed, record = (
        play("tools", tool=True, updates=4, learning_rate=2.5e-3),
        play("killed", tool=True, updates=4, learning_rate=2.5e-3, kill_after=2),
    )
    undisturbed.require_end()
    record.require_end()
    first, second = undisturbed.state(4), record.state(4)
    difference = max((first[name] - second[name]).abs().max().item() for name in first)
    words = f"largest difference of a weight: {difference:.2g}"
    if difference:
        raise Broken(words)
    return words


def half_a_batch_survives(play: Play) -> str:
    """Check a kill between two updates on the same samples."""
    record = play("halves", updates=6, updates_per_batch=2, tasks_per_update=2, kill_after=3)
    record.require_end()
    counts = {task: rows.total() for task, rows in samples_by_task(record).items()}
    size = record.scenario.group_size
    short = sum(count < size for count in counts.values())
    more = sum(count > size for count in counts.values())
    total, wanted = sum(counts.values()), record.scenario.updates * record.scenario.tasks_per_update * size
    words = f"{len(counts)} prompts in {record.scenario.updates} updates: {short} with fewer samples than a group"
    words += f", {more} with more"
    if short or more or total != wanted:
        raise Broken(words)
    return words


def workers_do_not_repeat(play: Play) -> str:
    """Check that two processes neither repeat nor drop samples."""
    record = play("workers", tool=True, processes=2, updates=2)
    record.require_end()
    size = record.scenario.group_size
    if uneven := {task: rows.total() for task, rows in samples_by_task(record).items() if rows.total() != size}:
        task, count = next(iter(uneven.items()))
        raise Broken(f"{len(uneven)} prompts do not have {size} samples; {task} has {count}")
    of_process: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in record.trained:
        of_process[row["process"]].append(
            tuple(token for start, end in spans(row["mask"]) for token in row["ids"][start:end])
        )
    common = sum((Counter(of_process[0]) & Counter(of_process[1])).values())
    if common > 0.2 * len(record.trained):
        raise Broken(f"{common} of {len(record.trained)} samples are equal in both processes")
    agreement = require_agreement(sign_agreement(record, policy_weights))
    return f"{len(record.trained)} samples, {size} per prompt; {agreement}"


_GITHUB = "https://github.com/"
CHECKS = (
    Check(
        "adapter_is_sampled",
        "The rollouts keep coming from the base model: the LoRA adapter is sent, but no request uses it.",
        (_GITHUB + "verl-project/verl/pull/3821", _GITHUB + "modelscope/ms-swift/issues/9855"),
        "The sampled tokens are more likely under the adapter than under the base model.",
        adapter_is_sampled,
    ),
    Check(
        "weights_are_fresh",
        "The sampler has the weights of an earlier step.",
        (_GITHUB + "huggingface/trl/issues/5312", _GITHUB + "vllm-project/vllm/issues/32718"),
        "The samples of each update are more likely under the current weights than under those before.",
        weights_are_fresh,
    ),
    Check(
        "tokens_are_kept",
        "Text is decoded and tokenized again, so that the trained ids are not those that were sampled.",
        (_GITHUB + "huggingface/trl/issues/5224", _GITHUB + "rllm-org/rllm/pull/272"),
        "Each trained turn, with its context, is one call of the sampler, id by id.",
        tokens_are_kept,
    ),
    Check(
        "results_are_excluded",
        "The results of tools are in the loss.",
        (_GITHUB + "THUDM/slime/issues/1370", _GITHUB + "verl-project/verl/issues/7278"),
        "The first update follows the gradient of the sampled tokens only.",
        results_are_excluded,
    ),
    Check(
        "messages_are_excluded",
        "Only the assistant's messages should be trained, and users' messages are, too, or nothing is.",
        (_GITHUB + "huggingface/trl/issues/3927", _GITHUB + "Liquid4All/liquid-finetune/pull/37"),
        "Trained text is exactly that of the assistant, and the update follows its gradient.",
        messages_are_excluded,
    ),
    Check(
        "outage_is_no_failure",
        "The sandbox or the tool server is down, and the model is punished for it with reward 0.",
        (_GITHUB + "NVIDIA-NeMo/Gym/pull/2611", _GITHUB + "NVIDIA-NeMo/RL/pull/2207"),
        "An episode whose tool raised a connection error has no gradient.",
        outage_is_no_failure,
    ),
    Check(
        "missing_verdict_is_no_zero",
        "The judge does not answer, and the missing reward counts as 0.",
        (_GITHUB + "huggingface/trl/pull/6427", _GITHUB + "NVIDIA-NeMo/RL/pull/2207"),
        "An episode without a verdict has the advantage 0 and is not in the baseline.",
        missing_verdict_is_no_zero,
    ),
    Check(
        "hung_tool_ends",
        "One stuck tool call, and the undisturbed run waits for ever.",
        (_GITHUB + "NVIDIA-NeMo/RL/issues/3238",),
        "The update is made although one call does not return.",
        hung_tool_ends,
    ),
    Check(
        "prompts_survive_a_kill",
        "After a resume, prompts are skipped or trained twice.",
        (_GITHUB + "NVIDIA-NeMo/RL/pull/3599", _GITHUB + "verl-project/verl/issues/1875"),
        "A killed and resumed run trains on the prompts of an undisturbed run.",
        prompts_survive_a_kill,
    ),
    Check(
        "resumed_weights_are_equal",
        "A resumed run is another run.",
        (_GITHUB + "NVIDIA-NeMo/RL/pull/3599",),
        "The last weights are equal, bit by bit.",
        resumed_weights_are_equal,
    ),
    Check(
        "half_a_batch_survives",
        "The run is killed between two updates on the same samples.",
        (_GITHUB + "huggingface/trl/pull/3148",),
        "Each prompt has exactly one group of samples in the updates.",
        half_a_batch_survives,
    ),
    Check(
        "workers_do_not_repeat",
        "Every process samples or trains the same data.",
        (_GITHUB + "huggingface/trl/pull/2824", _GITHUB + "huggingface/datasets/issues/3423"),
        "With two processes, each sample is in the update once.",
        workers_do_not_repeat,
    ),
)
