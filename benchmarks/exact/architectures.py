"""Exactness of sampling and training for tiny instances of all causal language models in the installed Transformers.

    python -m benchmarks architectures                 # writes results/raw/architectures.json and .md
    python -m benchmarks architectures llama mamba     # prints some, writes nothing

Each model has a tiny configuration and random weights in float32. An episode of two turns is sampled, then a second
one that is forked from it; the learner trains on segments with a shared prefix. The log-probs of engine and learner,
and the gradient, are compared with the model's own forward pass over each full sequence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from whetstone.errors import InfrastructureError, PolicyError
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.inference.forward import SlotForward
from whetstone.learning.flops import Flops
from whetstone.learning.packing import pack_segments
from whetstone.learning.token_outputs import TokenForward
from whetstone.policies import forward_accepts
from whetstone.trajectory import Author, Segment, Tokens, TokenSequence

RESULTS = Path(__file__).parents[1] / "results"
VOCABULARY, CONTEXT = 97, 96
EXACT = 1e-4
"""Tolerance for log-probs in float32, and for gradients as a fraction of their norm."""
MOST_PARAMETERS, MOST_SECONDS = 8_000_000, 60
"""Limits of a model: a larger one is not tried, a slower one fails."""

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size", "decoder_vocab_size"), 97),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim_model_base", "lru_width"), 32),
    **dict.fromkeys(("attention_hidden_size",), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads", "n_mamba_heads"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "kv_channels", "swa_head_dim", "index_head_dim", "d_rel"), 8),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "ffn_hidden_size"), 48),
    **dict.fromkeys(("ffn_dim", "dff", "dim_ff", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "d_inner"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("expert_ffn_hidden_size", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "rel_extent"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), CONTEXT),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "o_lora_rank", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_chunk_size", "local_attention"), 12),
    **dict.fromkeys(("attention_window_size", "window_size"), 12),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_num_heads", "mamba_head_dim", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "ssm_state_size", "state_size", "block_size", "index_topk"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads", "index_block_size", "laurel_rank"), 4),
    **dict.fromkeys(("rotary_dim", "conv_kernel", "mamba_dt_rank", "time_step_rank", "prompt_length"), 4),
    **dict.fromkeys(("linear_num_key_heads", "index_topk_blocks", "o_groups", "num_codebooks", "zero_expert_num"), 2),
    **dict.fromkeys(("v_head_dim",), 6),
    **dict.fromkeys(("mamba_d_ssm", "position_bias_max_distance"), 64),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("pad_token_id", "forced_eos_token_id"), None),
    **dict.fromkeys(("is_decoder", "tie_word_embeddings"), True),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "resid_pdrop"), 0.0),
    **dict.fromkeys(("embd_pdrop", "attn_pdrop", "summary_first_dropout", "dropout"), 0.0),
    "eos_token_id": 2,
    "index_n_heads": 32,  # with few, all scores of an index are 0 for some tokens, and whichever of them is taken
    "mup_width_multiplier": 1.0,
}
"""Settings of a tiny configuration, with the names that different models use for them."""
PADDED = {"pad_token_id": 0}
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "bailing_hybrid": {"layer_group_size": 2},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    **{kind: {"layer_types": ["conv", "full_attention"] * 2} for kind in ("lfm2", "lfm2_moe", "lfm3")},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"layer_types": ["mamba", "hybrid"] * 2, "mamba_headdim": 8, "hybrid_layer_ids": [1, 3]},
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "xlstm": {"num_heads": 4, "hidden_size": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "dbrx": {"tie_word_embeddings": False},
    "reformer": {"axial_pos_embds": False},
    "roc_bert": {"pronunciation_vocab_size": 10, "shape_vocab_size": 10},
    "xmod": {**PADDED, "languages": ["en_XX"], "default_language": "en_XX"},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    **dict.fromkeys(("camembert", "data2vec-text", "emu3", "modernbert-decoder", "prophetnet", "roberta"), PADDED),
    **dict.fromkeys(("gemma4", "gemma4_unified", "gemma4_unified_text", "moss_transcribe_diarize"), PADDED),
    **dict.fromkeys(("roberta-prelayernorm", "xlm", "xlm-roberta", "xlm-roberta-xl"), PADDED),
}
"""Model type → additional settings."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Result of one model type."""

    kind: str
    outcome: str
    """exact, wrong, refused, traceback, or not tried."""
    engine: str = ""
    learner: str = ""
    engine_apart: float | None = None
    """Largest difference of a log-prob."""
    learner_apart: float | None = None
    gradient_apart: float | None = None
    """Difference of the gradient, as a fraction of its norm."""
    said: str = ""


def tiny_config(kind: str, *, layers: int = 4) -> Any:
    """Return a tiny configuration of a model type with at most four layers."""
    configuration_class: Any = CONFIG_MAPPING[kind]
    configuration = configuration_class()
    text = configuration.get_text_config(decoder=True)
    nested_names = [name for name in ("text_config", "decoder") if getattr(configuration, name, None) is text]
    if text is configuration or not nested_names:
        return configuration_class(**_small(configuration, kind, layers))
    return configuration_class(**{nested_names[0]: _small(text, kind, layers), **_small_eyes(configuration)})


def tiny_model(kind: str, *, layers: int = 4, seed: int = 0) -> torch.nn.Module:
    """Return a randomly initialized model, with weights large enough that errors of computation are visible.

    Raises:
        NotImplementedError: The model type has no tiny configuration.
    """
    try:
        config = tiny_config(kind, layers=layers)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            raise NotImplementedError(f"{size:,} parameters")
        torch.manual_seed(seed)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    except Exception as error:
        raise NotImplementedError(" ".join(f"{type(error).__name__}: {error}".split())[:160]) from error
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                module.weight *= 4
    return model


def examine(kind: str, *, layers: int = 4, tokens: int = 9) -> ModelResult:
    """Sample from and train a tiny model with `tokens` tokens per turn, and compare with its forward pass."""
    try:
        model = tiny_model(kind, layers=layers)
    except NotImplementedError as error:
        return ModelResult(kind, "not tried", said=str(error))
    try:
        with torch.no_grad():
            plain_logprobs(model, list(range(3, 40)))
    except Exception as error:
        # the model's own forward pass fails, without Whetstone
        message = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        return _refusal(kind, model, message)
    result: dict[str, Any] = {}
    try:
        result["engine"], result["engine_apart"] = asyncio.run(check_engine(model, tokens))
        result["learner"], result["learner_apart"], result["gradient_apart"] = check_learner(model)
    except PolicyError as error:
        return ModelResult(kind, "refused", said=str(error), **result)
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return ModelResult(kind, "traceback", said=message, **result)
    difference = max(result["engine_apart"], result["learner_apart"], result["gradient_apart"])
    return ModelResult(kind, "exact" if difference <= EXACT else "wrong", **result)


async def check_engine(model: torch.nn.Module, tokens: int = 9) -> tuple[str, float]:
    """Return (cache layout, largest difference of log-probs) of two turns, a concurrent episode and a fork."""
    engine = LocalEngine(model, context_length=CONTEXT, rows=4)
    difference = 0.0

    async def turn(prompt: list[int], episode: str, sampled_spans: list[tuple[int, int]], seed: int) -> list[int]:
        nonlocal difference
        response = await engine.generate(
            GenerateRequest(TokenSequence(prompt), Sampling(tokens, seed=seed), episode, sampled_spans=sampled_spans)
        )
        ids = [*prompt, *response.tokens]
        plain = plain_logprobs(model, ids)[len(prompt) - 1 :]
        difference = max(difference, (plain - torch.tensor(response.logprobs)).abs().max().item())
        return ids

    async def episode(name: str, prompt: list[int], seed: int) -> list[int]:
        ids = await turn(prompt, name, [], seed)
        spans = [(len(prompt), len(ids))]
        return await turn([*ids, *_text(5, seed)], name, spans, seed + 1)

    try:
        first, _ = await asyncio.gather(episode("one", _text(17, 1), 3), episode("two", _text(2, 2), 5))
        await turn([*first[: 17 + tokens - 2], *_text(6, 9)], "fork", [(17, 17 + tokens - 2)], 7)
        scores = await engine.score(TokenSequence(first), start=4)
        difference = max(
            difference, (plain_logprobs(model, first)[3:] - torch.tensor(scores.logprobs)).abs().max().item()
        )
        forward = engine._chosen
        return (
            "rows" if isinstance(forward, SlotForward) else f"own cache ({forward.feeding.by})" if forward else ""
        ), difference
    except InfrastructureError as error:
        raise RuntimeError(str(error)) from error
    finally:
        await engine.close()


def check_learner(model: torch.nn.Module) -> tuple[str, float, float]:
    """Return (layout, largest difference of log-probs, difference of gradients) for segments with a shared prefix."""
    forward, flops = TokenForward(model), Flops(model, torch.float32)
    stem = _text(20, 4)
    segments = [_segment([*stem, *_text(15, k)], 18) for k in (5, 6)] + [_segment(_text(9, 7), 1)]
    weights, difference, gradients = [0.3, -0.7, 1.1], 0.0, []
    total = torch.zeros(())
    for micro in pack_segments(segments, token_budget=1000, device=torch.device("cpu"), share=forward.shares):
        outputs = forward(micro, 1.0)
        flops.of(micro)
        for i, logprobs in micro.by_segment(outputs.logprobs):
            ids = list(segments[i].tokens.ids)
            plain = plain_logprobs(model, ids)[-len(logprobs) :]
            difference = max(difference, (plain - logprobs.detach()).abs().max().item())
            total = total + weights[i] * logprobs.sum()
    gradients.append(_gradient(model, total))
    total = torch.zeros(())
    for weight, segment in zip(weights, segments, strict=True):
        actions = sum(segment.action_mask)
        total = total + weight * plain_logprobs(model, list(segment.tokens.ids), learning=True)[-actions:].sum()
    gradients.append(_gradient(model, total))
    learner_gradient, model_gradient = gradients
    return (
        forward.way.layout,
        difference,
        float((learner_gradient - model_gradient).norm() / model_gradient.norm().clamp_min(1e-12)),
    )


def plain_logprobs(model: Any, ids: list[int], *, learning: bool = False) -> Tensor:
    """Return [len(ids) − 1] log-probs of all tokens but the first by the model's own forward pass."""
    with torch.set_grad_enabled(learning):
        options = {"use_cache": False} if forward_accepts(model, "use_cache") else {}
        logits = model(input_ids=torch.tensor([ids]), **options).logits[0, :-1]
        logprobs: Tensor = torch.log_softmax(logits.float(), -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return logprobs


def examine_all(kinds: list[str], show: Callable[[ModelResult], None]) -> list[ModelResult]:
    """Examine model types one after the other and pass each result to `show`."""
    results = []
    for kind in kinds:
        try:
            with _at_most(MOST_SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # slower ways are in the table
                results.append(examine(kind))
        except TimeoutError as error:
            results.append(ModelResult(kind, "traceback", said=str(error)))
        show(results[-1])
    return results


def count_outcomes(results: list[ModelResult]) -> dict[str, int]:
    """Return outcome → number of model types."""
    outcomes = ("exact", "wrong", "refused", "traceback", "not tried")
    return {outcome: sum(each.outcome == outcome for each in results) for outcome in outcomes}


def format_page(results: list[ModelResult], counts: Mapping[str, int]) -> str:
    """Return the page of all results."""
    lines = [
        "# Models with exact sampling and training",
        "",
        f"Made by `python -m benchmarks architectures` with Transformers {transformers.__version__}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        + ". Largest differences of log-probs from the model's own forward pass, and of the gradient, relative to its "
        "norm.",
        "",
        "| model type | outcome | engine | learner | engine apart | learner apart | gradient apart | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in results:
        numbers = [
            "" if n is None else f"{n:.0e}" for n in (each.engine_apart, each.learner_apart, each.gradient_apart)
        ]
        message = each.said.replace("|", "\\|")
        lines.append(f"| {' | '.join([each.kind, each.outcome, each.engine, each.learner, *numbers, message])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Examine, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="model types; defaults to all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    began = time.perf_counter()
    kinds = arguments.kinds or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

    def show(each: ModelResult) -> None:
        if not arguments.json:
            print(*(value for value in asdict(each).values() if value not in ("", None)), flush=True)

    results = examine_all(kinds, show)
    counts = count_outcomes(results)
    result = {
        "name": "architectures",
        "measured": counts,
        "goal": {"wrong": 0, "traceback": 0},
        "transformers": transformers.__version__,
        "models": [asdict(each) for each in results],
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(result) if arguments.json else counts)
    if not arguments.kinds:
        (RESULTS / "raw" / "architectures.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "architectures.md").write_text(format_page(results, counts), encoding="utf-8")
    sys.exit(1 if counts["wrong"] or counts["traceback"] else 0)


def _small(config: Any, kind: str, layers: int) -> dict[str, Any]:
    settings = config.to_dict()
    other_names = getattr(config, "attribute_map", {})
    names = {*settings, *other_names}
    small = {
        name: value
        for name, value in SMALL.items()
        if name in names and other_names.get(name) not in SMALL and not isinstance(settings.get(name), list | dict)
    }
    if "kv_lora_rank" in small:
        small["num_key_value_heads"] = 4
    special = {
        name: value[:layers] if isinstance(value, list) and len(value) == 4 else value
        for name, value in SPECIAL.get(kind, {}).items()
    }
    counts = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), layers)
    return small | {name: count for name, count in counts.items() if name in small} | special


def _small_eyes(config: Any) -> dict[str, Any]:
    """Return a small vision configuration, if a model has one; it is not used for tokens."""
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return {}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1}
    return {"vision_config": {name: size for name, size in sizes.items() if name in vision.to_dict()}}


def _refusal(kind: str, model: torch.nn.Module, message: str) -> ModelResult:
    """Return the result of a model whose own forward pass fails; Whetstone must refuse it with a one-line error."""
    try:
        asyncio.run(check_engine(model))
    except PolicyError as error:
        return ModelResult(kind, "refused", said=str(error))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    return ModelResult(kind, "traceback", said=message)


def _text(length: int, seed: int) -> list[int]:
    return [3 + (seed * seed + 5 * seed * k + k * k) % (VOCABULARY - 3) for k in range(length)]


def _segment(ids: list[int], start: int) -> Segment:
    mask = tuple(place >= start for place in range(len(ids)))
    unknown = (math.nan,) * len(ids)
    tokens = Tokens(tuple(ids), (Author.POLICY,) * len(ids), unknown, (0,) * len(ids), unknown)
    return Segment("tiny", 0, tokens, mask, (0,) * len(ids))


def _gradient(model: torch.nn.Module, total: Tensor) -> Tensor:
    model.zero_grad()
    total.backward()  # type: ignore[no-untyped-call]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main()
