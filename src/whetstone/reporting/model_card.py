"""Model card (`README.md`) of an exported model: prompt, sampling, serving, results, license."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CURVES = "curves.png"
"""File with the curves of the training."""
HUB_LICENSES = frozenset({
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "unlicense", "openrail", "bigscience-bloom-rail-1.0", "llama2",
    "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "gemma", "other", "unknown",
})  # fmt: skip
"""Identifiers of licenses that the hub knows; a selection."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Input of `model_card`: the facts about an exported model that the card states."""

    name: str
    """Title: name of the run or model."""
    base: str = ""
    """Name or source of the base model; empty for a model from scratch."""
    license: str = ""
    """Short name of the base model's license; empty if unknown."""
    is_adapter: bool = False
    """Whether the folder holds adapters without their base."""
    base_folder: str = ""
    """Folder of the base next to adapters; empty if the base is on the hub."""
    format: str = ""
    """Name of the tool-call format."""
    vllm_parser: str = ""
    """`--tool-call-parser` of vLLM; empty if it has none."""
    sglang_parser: str = ""
    """`--tool-call-parser` of SGLang; empty if it has none."""
    parser_file: str = ""
    """Parser file for vLLM in the folder; empty if there is none."""
    template: str = ""
    """Kind of chat template, and number of prompts it reproduces."""
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI declarations of the tools in training."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Example conversation in the OpenAI format."""
    prompt: str = ""
    """The example as the model reads it."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings of training: `temperature`, `top_p`, `max_tokens`, `stop`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Content of `summary.json`; empty if there is none."""
    recipe: str = ""
    """The recipe as YAML."""
    gguf: str = ""
    """GGUF file in the folder; empty if there is none."""
    curves: Sequence[str] = ()
    """Captions of the curves in `curves.png`; empty if there is no such file."""
    dtype: str = ""
    """Precision of the weights, such as `bfloat16`; empty: not stated."""
    repository: str = ""
    """Repository on the Hugging Face hub, `owner/name`; empty if the folder is only local."""


def model_card(facts: CardFacts) -> str:
    """Write the card as Markdown with the YAML header that the Hugging Face hub reads."""
    sections = (
        _header(facts),
        f"# {facts.name}\n",
        _origin(facts),
        _download(facts.repository),
        results_section(facts.summary),
        _curves(facts.curves),
        _prompting(facts),
        _serving(facts),
        _sampling(facts.sampling),
        f"## Recipe\n\n```yaml\n{facts.recipe.strip()}\n```\n" if facts.recipe else "",
    )
    return "\n".join(section for section in sections if section)


def license_lines(name: str) -> list[str]:
    """Return the lines of the YAML header for a license; empty if there is none.

    The hub accepts its own list of identifiers, and refuses the upload of a card with another one. A license that is
    not in `HUB_LICENSES` is therefore `other` with its name.

    Args:
        name: Name of the license.
    """
    if not name:
        return []
    identifier = name.strip().lower().replace(" ", "-")
    if identifier in HUB_LICENSES:
        return [f"license: {identifier}"]
    return ["license: other", f"license_name: {json.dumps(identifier)}"]


def stage_results(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    """Return the evaluations around each stage of a run: (stage, evaluation before, evaluation after).

    Summaries with `stages: [{name, before, after}]` and `untrained`, and older ones with `evaluations` by stage or
    `before` and `after`, are read.
    """
    stages = [each for each in summary.get("stages") or () if isinstance(each, Mapping) and "after" in each]
    if stages:
        return [(str(each["name"]), each.get("before") or summary.get("untrained"), each["after"]) for each in stages]
    evaluations = list((summary.get("evaluations") or {}).items())
    if len(evaluations) > 1:
        return [(name, evaluations[at][1], after) for at, (name, after) in enumerate(evaluations[1:])]
    if "before" in summary or "after" in summary:
        return [("training", summary.get("before"), summary.get("after"))]
    return []


def _header(facts: CardFacts) -> str:
    lines = ["---", f"library_name: {'peft' if facts.is_adapter else 'transformers'}", "pipeline_tag: text-generation"]
    lines += license_lines(facts.license)
    lines += [f"base_model: {facts.base}"] if facts.is_adapter and facts.base and not facts.base_folder else []
    lines += ["tags: [reinforcement-learning, tool-use, agent, whetstone]", "---", ""]
    return "\n".join(lines)


def _origin(facts: CardFacts) -> str:
    lines = [f"Base model: {facts.base or 'none, randomly initialized'}."]
    whose = "License of the base model" if facts.base else "License"
    lines.append(f"{whose}: {facts.license or 'unknown'}.")
    if facts.dtype:
        lines.append(f"Precision of the weights: {facts.dtype}.")
    if facts.is_adapter:
        where = facts.base_folder or facts.base
        lines.append(f"This folder holds a LoRA adapter of `{where}`.")
    return "\n".join(lines) + "\n"


def _download(repository: str) -> str:
    if not repository:
        return ""
    return (
        f"`FOLDER` below is the folder of this command; Transformers and vLLM also load `{repository}`.\n\n"
        f"```console\n$ hf download {repository} --local-dir FOLDER\n```\n"
    )


def _curves(captions: Sequence[str]) -> str:
    if not captions:
        return ""
    listed = "\n".join(f"{number}. {caption}" for number, caption in enumerate(captions, 1))
    return f"## Training\n\n![Curves of the training]({CURVES})\n\n{listed}\n"


def results_section(summary: Mapping[str, Any]) -> str:
    """Write the section with the success before and after each stage; empty without evaluations.

    Args:
        summary: Content of `summary.json`.
    """
    rows = [f"| {stage} | {_rate(before)} | {_rate(after)} |" for stage, before, after in stage_results(summary)]
    if not rows:
        return ""
    head = "## Results\n\nSuccess on held-out tasks, with 95 % intervals.\n\n"
    return f"{head}| stage | before | after |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _rate(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation or not isinstance(evaluation.get("success"), int | float):
        return "not evaluated"
    low, high = evaluation.get("interval") or (None, None)
    interval = f" ({low:.1%} to {high:.1%})" if isinstance(low, float | int) and isinstance(high, float | int) else ""
    return f"{evaluation['success']:.1%}{interval}"


def _prompting(facts: CardFacts) -> str:
    load = 'AutoModelForCausalLM.from_pretrained("FOLDER")'
    imports = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    if facts.is_adapter:
        base = f"FOLDER/{facts.base_folder}" if facts.base_folder else facts.base
        load = f'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "FOLDER")'
        imports = f"from peft import PeftModel\n{imports}"
    tools = json.dumps(list(facts.tools), indent=2, ensure_ascii=False)
    messages = json.dumps(list(facts.messages), indent=2, ensure_ascii=False)
    passed = ", tools=tools" if facts.tools else ""
    declared = f"tools = json.loads('''{tools}''')\n" if facts.tools else ""
    longest = facts.sampling.get("max_tokens", 256)
    return (
        "## Prompt\n\n"
        f"{facts.template}\n\n"
        f"```python\nimport json\n\n{imports}\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\nmodel = {load}\n{declared}'
        f"messages = json.loads('''{messages}''')\n"
        f"inputs = tokenizer.apply_chat_template(\n    messages{passed}, add_generation_prompt=True, return_dict=True, "
        'return_tensors="pt"\n)\n'
        f"output = model.generate(**inputs, max_new_tokens={longest})\n"
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))\n```\n\n'
        + (f"The model reads:\n\n````text\n{facts.prompt}\n````\n" if facts.prompt else "")
    )


def _serving(facts: CardFacts) -> str:
    lines = [f"## Serving\n\nTool-call format: `{facts.format}`.\n"] if facts.format else ["## Serving\n"]
    base = f"FOLDER/{facts.base_folder}" if facts.base_folder else facts.base
    model = f"{base} --enable-lora --lora-modules agent=FOLDER"
    model = f"{model} --tokenizer FOLDER --chat-template FOLDER/chat_template.jinja" if facts.is_adapter else "FOLDER"
    parser = ""
    if facts.vllm_parser:
        parser = f" --enable-auto-tool-choice --tool-call-parser {facts.vllm_parser}"
    elif facts.parser_file:
        parser = (
            f" --enable-auto-tool-choice --tool-parser-plugin FOLDER/{facts.parser_file} --tool-call-parser whetstone"
        )
    lines.append(f"vLLM:\n\n```console\n$ vllm serve {model}{parser}\n```\n")
    if not facts.is_adapter:
        flag = f" --tool-call-parser {facts.sglang_parser}" if facts.sglang_parser else ""
        lines.append(f"SGLang:\n\n```console\n$ python -m sglang.launch_server --model-path FOLDER{flag}\n```\n")
        if facts.format and not facts.sglang_parser:
            lines.append("SGLang has no parser for this format: calls are in the text of the answer.\n")
    if facts.gguf:
        lines.append(f"llama.cpp:\n\n```console\n$ llama-server -m FOLDER/{facts.gguf} --jinja\n```\n")
        lines.append("Ollama:\n\n```console\n$ ollama create agent -f FOLDER/Modelfile\n```\n")
    return "\n".join(lines)


def _sampling(sampling: Mapping[str, Any]) -> str:
    if not sampling:
        return ""
    rows = "\n".join(f"| `{name}` | {json.dumps(value, ensure_ascii=False)} |" for name, value in sampling.items())
    return f"## Sampling\n\nSettings of training:\n\n| setting | value |\n| --- | --- |\n{rows}\n"
