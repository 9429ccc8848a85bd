"""The model card of an exported model, from summaries of this release and of earlier ones."""

import pytest

from whetstone.reporting.model_card import CardFacts, model_card, stage_results

LOW, MIDDLE, HIGH = (
    {"success": success, "interval": [success - 0.1, success + 0.1]} for success in (0.1, 0.77, 0.6)
)  # fmt: skip


@pytest.mark.parametrize(
    "summary",
    [
        {
            "untrained": LOW,
            "stages": [
                {"name": "supervised", "before": None, "after": MIDDLE},
                {"name": "reinforcement", "before": MIDDLE, "after": HIGH},
            ],
        },
        {"before": LOW, "after": HIGH, "evaluations": {"untrained": LOW, "supervised": MIDDLE, "reinforcement": HIGH}},
    ],
)
def test_each_stage_is_compared_with_its_start(summary):
    assert stage_results(summary) == [("supervised", LOW, MIDDLE), ("reinforcement", MIDDLE, HIGH)]
    card = model_card(CardFacts("agent", summary=summary))
    assert "| supervised | 10.0% (0.0% to 20.0%) | 77.0% (67.0% to 87.0%) |" in card
    assert "| reinforcement | 77.0% (67.0% to 87.0%) | 60.0% (50.0% to 70.0%) |" in card


def test_a_summary_with_before_and_after_only_is_read_and_none_leaves_no_section():
    assert stage_results({"before": LOW, "after": HIGH}) == [("training", LOW, HIGH)]
    assert stage_results({}) == []
    assert "## Results" not in model_card(CardFacts("agent"))


def test_license_base_and_parsers_are_stated():
    facts = CardFacts("a", base="o/m", license="Apache-2.0", is_adapter=True, format="hermes", vllm_parser="hermes")
    card = model_card(facts)
    assert "license: apache-2.0\nbase_model: o/m\n" in card
    assert "vllm serve o/m --enable-lora --lora-modules agent=FOLDER" in card
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in card
    assert 'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("o/m"), "FOLDER")' in card
    served = model_card(CardFacts("a", format="compact", parser_file="vllm_tool_parser.py", gguf="m.gguf"))
    assert "--tool-parser-plugin FOLDER/vllm_tool_parser.py --tool-call-parser whetstone" in served
    assert "SGLang has no parser for this format" in served
    assert "ollama create agent -f FOLDER/Modelfile" in served
    assert "License: unknown." in served
