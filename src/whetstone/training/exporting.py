"""Export of a run or model as a folder for other programs: weights, template, tool-call parser, model card.

The folder is tested before it gets its name: plain Transformers loads its tokenizer and renders stored episodes of the
run, whose tokens must be those of training.

Adapters are exported without their base only if the base is a model of the Hugging Face hub, which is decided by the
digests of the files. Otherwise merged weights are the default: another program would load other base
weights under the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import AutoTokenizer
from transformers.utils import logging

from whetstone.assembly.environment import build_environment, list_tools
from whetstone.atomic_write import new_folder
from whetstone.chat import FORMATS, Chat, ToolSpec, detect_tool_call_format
from whetstone.chat.detect_format import load_chat_settings, save_chat_settings
from whetstone.chat.export_template import (
    ExportedTemplate,
    Prompt,
    as_openai,
    export_template,
    find_difference,
    probe_prompts,
)
from whetstone.chat.ollama_template import write_modelfile
from whetstone.chat.served_parsers import PARSER_FILE, SGLANG_PARSERS, VLLM_PARSERS, write_parser_file
from whetstone.errors import PolicyError, WhetstoneError
from whetstone.plugins import find_part
from whetstone.policies import ExportPrecision, Policy, has_adapters, is_quantized, load_policy, merge_adapters
from whetstone.policies.export_model import base_folder, export_weights, gguf_plan, hub_identity, write_gguf
from whetstone.policies.local_models import read_origin, stored_models
from whetstone.policies.resolve_model import resolve_model_folder
from whetstone.recipe import Resolved
from whetstone.record import read_json, run_of_checkpoint, run_recipe, stored_lines
from whetstone.reporting.charts import plot_panels
from whetstone.reporting.metrics import Journal
from whetstone.reporting.model_card import CURVES, CardFacts, model_card
from whetstone.reporting.report import select_curves
from whetstone.training.final_checkpoint import final_policy, require_member
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import read_trajectory

TemplateChoice = Literal["training", "original"]
_SAMPLING = ("temperature", "top_p")
_MAX_CURVES = 3
_MAX_EPISODES = 16
"""Maximum number of stored episodes whose prompts are compared."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Folder and properties of an exported model, returned by `export_model`."""

    folder: Path
    """Folder that was written."""
    parameters: int
    """Number of parameters of the policy."""
    is_adapter: bool
    """Whether adapters were written without merging them."""
    lines: tuple[str, ...]
    """Lines for the terminal: kind of weights, base model, chat template, files."""


def export_model(
    run_or_model: str,
    output_dir: Path,
    *,
    weights: Literal["auto", "merged", "adapter"] = "auto",
    dtype: ExportPrecision | Literal["trained"] | None = None,
    gguf: bool = False,
    template: TemplateChoice = "training",
    member: str | None = None,
    license_name: str = "",
    repository: str = "",
) -> ExportResult:
    """Export a run at its last checkpoint, a checkpoint, or a model folder for other programs.

    Args:
        run_or_model: Run directory, checkpoint, model folder or name of a model.
        output_dir: New folder to write.
        weights: `merged` merges adapters; `adapter` writes adapters without merging them, with their base next to them
            unless the hub has it; `auto` writes adapters only if the hub has the base.
        dtype: Precision of the whole model or of merged weights; `trained` keeps that of the policy, with which the run
            sampled; None: bfloat16.
        gguf: Whether to write a GGUF file and an Ollama Modelfile as well.
        template: `training` exports a template that renders the tokens of training; `original` keeps the model's own.
        member: Member of a run with several models (`policies`); required for such a run.
        license_name: License of the card; empty: that of the base model.
        repository: Repository on the hub that the card names; empty: the folder is only local.

    Raises:
        WhetstoneError: If the run or member does not exist, an option does not fit, or the chat template cannot be
            rendered.
        SaveError: If the folder exists, or cannot be written.
    """
    logging.set_verbosity_error()  # test prompts may be longer than the context of a small model
    path = Path(run_or_model)
    run = path if (path / "recipe.yaml").is_file() else run_of_checkpoint(path)
    resolved = run_recipe(run) if run is not None else None
    if resolved is not None:
        require_member(path, member)
        policy = final_policy(path, trust_remote_code=resolved.recipe.policy.trust_remote_code, member=member)
    else:
        if member is not None:
            raise PolicyError(f"{run_or_model}: is one model; leave --member {member} out")
        policy = load_policy(run_or_model, as_stored=True)
    base = base_folder(policy)
    hub = hub_identity(base) if base is not None else None
    is_adapter = has_adapters(policy.model) and (weights == "adapter" or (weights == "auto" and hub is not None))
    if is_adapter:
        for option, value in (("--dtype", dtype), ("--gguf", gguf)):
            if value and value != "trained":
                raise PolicyError(f"{option}: adapters are written as they were trained; add --merged")
    elif weights == "adapter":
        raise PolicyError(f"--adapter: {run_or_model} has no adapters (policy.lora); leave the option out")
    plan = gguf_plan(policy) if gguf else None
    lines = [_describe_weights(policy, weights, is_adapter, hub)]
    precision = _trained_precision(policy) if dtype == "trained" else dtype or "bfloat16"

    chat, format_name = _chat(run_or_model, resolved, policy)
    tools, note = _tools(resolved)
    stored = stored_prompts(run, chat, tools) if run is not None else ()
    exported = _template(run_or_model, chat, stored, tools, template)
    parameters = policy.parameters
    if not is_adapter:
        policy = merge_adapters(policy, precision)
    with new_folder(output_dir) as aside:
        _set_generation(policy, chat, resolved)
        policy.tokenizer.chat_template = exported.source
        export_weights(policy, aside, at=output_dir, hub=hub if is_adapter else None)
        save_chat_settings(aside, format_name, {})
        lines.append(_describe_template(exported, _test_folder(aside, stored), len(stored), format_name, note))
        if format_name not in VLLM_PARSERS:
            write_parser_file(aside, format_name, chat.format)
            lines.append(f"tool calls: {PARSER_FILE} is a parser for vLLM (format {format_name})")
        file = write_gguf(plan, policy, aside, precision) if plan is not None else ""
        if file:
            sampling = {} if resolved is None else {key: resolved.recipe.rollout.model_dump()[key] for key in _SAMPLING}
            modelfile = write_modelfile(
                file, chat, exported.source, tools, context_length=policy.context_length, sampling=sampling
            )
            (aside / "Modelfile").write_text(modelfile, encoding="utf-8")
            lines.append(f"GGUF: {file}, with a Modelfile for Ollama")
        facts = _facts(run_or_model, run, resolved, base, chat, format_name, exported, stored, tools)
        facts = replace(
            facts,
            is_adapter=is_adapter,
            base=hub[0] if hub is not None else facts.base,
            base_folder="base" if is_adapter and hub is None else "",
            template=lines[1],
            gguf=file,
            curves=_write_curves(run, aside) if run is not None else (),
            dtype="" if is_adapter else precision,
            repository=repository,
            license=license_name or facts.license,
        )
        (aside / "README.md").write_text(model_card(facts), encoding="utf-8")
        if base is not None and (base / "LICENSE").is_file():
            (aside / "LICENSE").write_bytes((base / "LICENSE").read_bytes())
        for each in aside.rglob("*"):
            each.chmod(0o755 if each.is_dir() else 0o644)
    return ExportResult(output_dir, parameters, is_adapter, tuple(lines))


def _trained_precision(policy: Policy) -> ExportPrecision:
    """Return the precision of most weights of a policy."""
    counts: Counter[str] = Counter()
    for parameter in policy.model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    dtype = counts.most_common(1)[0][0]
    return next((each for each in get_args(ExportPrecision) if each == dtype), "float32")


def _write_curves(run: Path, folder: Path) -> list[str]:
    """Write the curves of a run as an image, and return their captions; nothing is written without curves."""
    rows = [row for place in (run, *sorted((run / "stages").glob("*"))) for row in Journal(place).read()]
    panels = select_curves(rows)[:_MAX_CURVES]
    if panels:
        (folder / CURVES).write_bytes(plot_panels(panels))
    return [panel.caption for panel in panels]


def stored_prompts(run: Path, chat: Chat, tools: Sequence[ToolSpec]) -> tuple[Prompt, ...]:
    """Return the prompts of stored episodes of a run, with which the exported template is tested.

    Turns after an unreadable call, an inserted turn or a rewritten context are left out: no message list has their
    tokens.

    Args:
        run: Run directory.
        chat: Chat of the policy.
        tools: Tools offered in training.
    """
    folders = [run, *sorted((run / "stages").glob("*"))]
    rows = next((rows for folder in reversed(folders) if (rows := stored_lines(folder, most=_MAX_EPISODES))), [])
    prompts: list[Prompt] = []
    for row in rows:
        if row.get("parent") is None:
            prompts += _prompts_of(read_trajectory(row, {}), tuple(tools))
    return tuple(prompts)


def _prompts_of(episode: Trajectory, tools: tuple[ToolSpec, ...]) -> list[Prompt]:
    prompts: list[Prompt] = []
    messages = list(episode.opening)
    ids: tuple[int, ...] = ()
    sampled: list[tuple[int, int]] = []
    for turn in episode.turns:
        if turn.aside or turn.training_context is not None:
            break
        if turn.opens_segment and prompts:
            break
        ids = (*ids, *turn.context.ids)
        prompts.append(Prompt(as_openai(messages), tools, ids, tuple(sampled)))
        if turn.message.malformed:
            break
        sampled.append((len(ids), len(ids) + len(turn.action)))
        ids = (*ids, *turn.action.ids)
        messages += [turn.message, *turn.observation]
    return prompts


def _chat(named: str, resolved: Resolved | None, policy: Policy) -> tuple[Chat, str]:
    """Return the chat of a policy, and the name of its tool-call format.

    Raises:
        PolicyError: If the chat template cannot be rendered.
    """
    if resolved is not None:
        name, variables = resolved.recipe.chat.format, resolved.recipe.chat.variables
    else:
        name, variables = load_chat_settings(resolve_model_folder(named))
    try:
        if name == "auto":
            name = detect_tool_call_format(policy.tokenizer, variables)
        return Chat(policy.tokenizer, find_part("tool-call format", name, FORMATS)(), variables), name
    except PolicyError as error:
        raise PolicyError(
            f"{named}: the chat template cannot be rendered, so no program could prompt the exported model ({error}); "
            "correct chat_template.jinja in the model folder"
        ) from None


def _tools(resolved: Resolved | None) -> tuple[tuple[ToolSpec, ...], str]:
    """Return the tools offered in training, and the reason if they are not known."""
    if resolved is None:
        return (), ""
    try:
        return list_tools(build_environment(resolved)), ""
    except WhetstoneError as error:
        return (), f"the tools of the run are not known here ({error})"


def _template(
    named: str, chat: Chat, stored: Sequence[Prompt], tools: Sequence[ToolSpec], choice: TemplateChoice
) -> ExportedTemplate:
    original = str(chat.tokenizer.get_chat_template(tools=[{}]))
    if choice == "original":
        return ExportedTemplate(original, True, 0, 0, 0, "it is kept as it is (--chat-template original)")
    return export_template(chat, [*stored, *probe_prompts(chat, tools)])


def _test_folder(folder: Path, prompts: Sequence[Prompt]) -> tuple[int, int]:
    """Render prompts with the tokenizer of the exported folder.

    Returns:
        (number of prompts that are reproduced exactly, number that are reproduced up to the model's own turns).
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    differences = [find_difference(tokenizer, tokenizer.chat_template, prompt) for prompt in prompts]
    return differences.count(None), sum(each is not None and each.is_own_turn for each in differences)


def _describe_weights(policy: Policy, weights: str, is_adapter: bool, hub: tuple[str, str] | None) -> str:
    if not has_adapters(policy.model):
        return "weights: the whole model"
    if is_adapter:
        base = f"its base is {hub[0]} on the Hugging Face hub" if hub is not None else "its base is in `base`"
        if is_quantized(policy.model):
            base += "; it was trained on 4-bit weights (nf4): quantize the base, or use --merged"
        return f"weights: adapter; {base}"
    if weights == "merged":
        return "weights: adapters merged into the base"
    return (
        "weights: adapters merged into the base, because the digests of the base are not those of a model on the "
        "Hugging Face hub (--adapter writes the adapter and its base)"
    )


def _describe_template(
    exported: ExportedTemplate, tested: tuple[int, int], stored: int, format_name: str, note: str
) -> str:
    kind = "the model's own, unchanged" if exported.is_original else "the model's own after a preamble of Whetstone"
    reproduced, own_turns = tested
    named = "stored prompts" if stored else "test prompts"
    of = stored or exported.prompts
    reproduced = reproduced if stored else exported.reproduced
    line = f"chat template: {kind}; renders {reproduced} of {of} {named} to the tokens of training"
    if stored and own_turns:
        line += f", and {own_turns} up to sampled tokens of the model that its messages do not carry"
    if exported.problem or note:
        why = note or exported.problem
        line += f"; it does not render all tools and calls as in training: {why} (format {format_name})"
    return line


def _set_generation(policy: Policy, chat: Chat, resolved: Resolved | None) -> None:
    """Store stop tokens and sampling parameters of training as defaults of `generate` and of vLLM."""
    model: Any = policy.model
    settings = model.generation_config
    if settings is None:
        return
    settings.eos_token_id = sorted(chat.stop_ids)
    if resolved is not None:
        settings.do_sample = True
        settings.temperature = float(resolved.recipe.rollout.temperature)
        settings.top_p = float(resolved.recipe.rollout.top_p)


def _facts(
    named: str,
    run: Path | None,
    resolved: Resolved | None,
    base: Path | None,
    chat: Chat,
    format_name: str,
    exported: ExportedTemplate,
    stored: Sequence[Prompt],
    tools: Sequence[ToolSpec],
) -> CardFacts:
    settings = resolved.recipe.policy if resolved is not None else None
    source = base or (resolve_model_folder(named) if run is None else None)
    if source is None and settings is not None and settings.path is not None:
        stored_model = stored_models().get(
            settings.path
        )  # the base may be gone: a trained model is exported without it
        source = stored_model.folder if stored_model is not None else Path(settings.path)
    origin = read_origin(source) if source is not None else None
    messages: Sequence[Any] = stored[0].messages if stored else ({"role": "user", "content": "Hello"},)
    declared = [tool.to_openai() for tool in tools]
    try:
        prompt = str(
            chat.tokenizer.apply_chat_template(
                list(messages),
                tools=declared or None,
                add_generation_prompt=True,
                tokenize=False,
                chat_template=exported.source,
            )
        )
    except Exception as error:  # a template of others raises anything; the card states the error
        prompt = f"(cannot be rendered: {error})"
    named_base = str(settings.path) if settings is not None and settings.path is not None else ""
    known = origin is not None and origin.source != "unknown"
    sampling: dict[str, Any] = {}
    if resolved is not None:
        rollout = resolved.recipe.rollout
        sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "max_tokens": rollout.max_new_tokens}
    if chat.format.stops:
        sampling["stop"] = list(chat.format.stops)
    recipe = (run / "recipe.yaml").read_text(encoding="utf-8") if run is not None else ""
    return CardFacts(
        name=Path(named).resolve().name if run is None else run.resolve().name,
        base=f"{origin.source}" if origin is not None and known else named_base,
        license=origin.licence if origin is not None else "",
        format=format_name,
        vllm_parser=VLLM_PARSERS.get(format_name, ""),
        sglang_parser=SGLANG_PARSERS.get(format_name, ""),
        parser_file="" if format_name in VLLM_PARSERS else PARSER_FILE,
        tools=declared,
        messages=messages,
        prompt=prompt,
        sampling=sampling,
        summary=(read_json(run / "summary.json") or {}) if run is not None else {},
        recipe=recipe,
    )
