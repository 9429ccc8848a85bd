"""`whetstone export`: folders that Transformers loads and that give the same predictions as the policy."""

import hashlib
import json
import os
import shutil
from itertools import product

import pytest
import torch
from peft import PeftModel
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from support.chat_templates import CHATML
from support.cli import train_with_all_checkpoints, whetstone
from whetstone.assembly.environment import build_environment
from whetstone.cli.policy_argument import load_policy_argument
from whetstone.policies import Policy, add_adapters, build_tiny, load_policy, save_policy
from whetstone.record import run_recipe

IDS = torch.arange(12).unsqueeze(0)


@pytest.fixture
def tuned(tmp_path):
    """Adapters with nonzero weights, saved next to their base model."""
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)
    add_adapters(policy.model, rank=4, alpha=8, target_modules="all-linear", dora=False, seed=1)
    numbers = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
    (tmp_path / "tuned").mkdir()
    save_policy(policy, tmp_path / "tuned")
    return tmp_path / "tuned"


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2), ("float16", 1e-2)])
def test_merged_weights_loaded_by_transformers_predict_what_the_policy_predicts(tmp_path, tuned, dtype, tolerance):
    done = whetstone("export", tuned, "--merged", "--dtype", dtype, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert {p.dtype for p in opened.parameters()} == {getattr(torch, dtype)}
    assert torch.allclose(logits(opened).float(), logits(load_policy(tuned).model), atol=tolerance)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_adapters_are_merged_if_their_base_is_not_on_the_hub_and_not_written(tmp_path, tuned):
    merged = whetstone("export", tuned, "--output-dir", tmp_path / "merged")
    assert "the digests of the base are not those of a model on the Hugging Face hub" in merged.stdout
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert whetstone("export", tuned, "--adapter", "--output-dir", tmp_path / "out").returncode == 0
    assert torch.equal(logits(load_policy(tmp_path / "out").model), logits(load_policy(tuned).model))
    (tmp_path / "out").rename(tmp_path / "moved")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "moved" / "base", dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, tmp_path / "moved")
    assert torch.equal(logits(opened), logits(load_policy(tuned).model))


def cached_model(hub, *, digest):
    """Write a model as the cache of the hub stores it, its weights under this digest (None: the true one)."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = hub / "models--someone--small" / "snapshots" / commit
    (hub / "models--someone--small" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_policy(build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16), snapshot)
    weights = snapshot / "model.safetensors"
    name = digest or hashlib.sha256(weights.read_bytes()).hexdigest()
    blob = hub / "models--someone--small" / "blobs" / name
    weights.rename(blob)
    weights.symlink_to(blob)
    return snapshot, commit


@pytest.mark.parametrize("digest", [None, "0" * 64])
def test_an_adapter_names_the_hub_only_if_the_hub_has_these_weights(tmp_path, digest):
    snapshot, commit = cached_model(tmp_path / "hub", digest=digest)
    policy = load_policy(snapshot, as_stored=True)
    add_adapters(policy.model, rank=4, alpha=8, target_modules="all-linear", dora=False, seed=1)
    (tmp_path / "tuned").mkdir()
    save_policy(policy, tmp_path / "tuned")
    done = whetstone("export", tmp_path / "tuned", "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = tmp_path / "out" / "adapter_config.json"
    assert written.exists() == (digest is None)
    if digest is None:
        config = json.loads(written.read_text())
        assert (config["base_model_name_or_path"], config["revision"]) == ("someone/small", commit)
        assert "base_model: someone/small" in (tmp_path / "out" / "README.md").read_text()
        refused = whetstone("export", tmp_path / "tuned", "--dtype", "bfloat16", "--output-dir", tmp_path / "no")
        assert "--dtype: adapters are written as they were trained" in refused.stderr
    else:
        assert "adapters merged into the base" in done.stdout


def test_weights_and_other_files_can_be_read_by_everyone(tmp_path, tuned):
    before = os.umask(0o077)
    try:
        whetstone("export", tuned, "--adapter", "--output-dir", tmp_path / "out")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert {*modes.values()} == {0o644}, modes
    assert "adapter_model.safetensors" in modes
    assert (tuned / "base" / "model.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.fixture
def gpt2_words(tmp_path):
    """Build a Llama with grouped queries, an untied head, and a tokenizer that splits text as GPT-2 does."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokens.train_from_iterator(["the user asked the assistant for the answer", "tool result: 42"] * 4, trainer)
    tokens.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<|im_end|>", chat_template=CHATML)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(1)
    (tmp_path / "llama").mkdir()
    save_policy(Policy(LlamaForCausalLM(config).eval(), tokenizer), tmp_path / "llama")
    return tmp_path / "llama"


def test_gguf_of_a_tokenizer_that_llama_cpp_does_not_know_needs_its_converter(tmp_path, gpt2_words, monkeypatch):
    pytest.importorskip("gguf", reason="needs gguf: pip install 'whetstone-rl[gguf]'")
    written = json.loads((gpt2_words / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": r"\S+|\s+"}, "behavior": "Isolated", "invert": False}
    byte_level = {**written["pre_tokenizer"], "use_regex": False}
    written["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    (gpt2_words / "tokenizer.json").write_text(json.dumps(written))
    words = ["export", gpt2_words, "--gguf", "--output-dir", tmp_path / "out"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refused = whetstone(*words)
    assert refused.returncode == 2
    assert "llama.cpp has no rules that split text as its tokenizer does" in refused.stderr
    assert "it is in the repository of llama.cpp (github.com/ggml-org/llama.cpp" in refused.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "bin").mkdir()
    for script, code in (("echo no such architecture >&2; exit 1", 2), ('echo made > "$3"', 0)):
        (tmp_path / "bin" / "convert_hf_to_gguf.py").write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(tmp_path / "bin" / "convert_hf_to_gguf.py", 0o755)
        done = whetstone(*words)
        assert done.returncode == code
        if code:
            assert "convert_hf_to_gguf.py failed: no such architecture" in done.stderr
            assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "model-bf16.gguf").read_text() == "made\n"
    assert "FROM ./model-bf16.gguf" in (tmp_path / "out" / "Modelfile").read_text()


def test_gguf_of_a_model_from_scratch_is_refused_before_anything_is_written(tmp_path, tuned, monkeypatch):
    pytest.importorskip("gguf", reason="needs gguf: pip install 'whetstone-rl[gguf]'")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "convert_hf_to_gguf.py").write_text("#!/bin/sh\nexit 0\n")
    os.chmod(tmp_path / "bin" / "convert_hf_to_gguf.py", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refused = whetstone("export", tuned, "--merged", "--gguf", "--output-dir", tmp_path / "out")
    assert refused.returncode == 2
    assert "trained from scratch (policy.tiny) with its own tokenizer" in refused.stderr
    assert "serve the folder with vLLM, or use `whetstone serve`" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_gguf_file_holds_weights_tokenizer_and_template(tmp_path, gpt2_words):
    gguf = pytest.importorskip("gguf", reason="needs gguf: pip install 'whetstone-rl[gguf]'")
    words = ["export", gpt2_words, "--gguf", "--dtype", "float32", "--output-dir", tmp_path / "out"]
    assert whetstone(*words).returncode == 0
    reader = gguf.GGUFReader(tmp_path / "out" / "model-f32.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    state = load_policy(tmp_path / "out").model.state_dict()
    assert len(tensors) == len(state)
    value = torch.tensor(tensors["blk.1.attn_v.weight"].copy())
    assert torch.equal(value, state["model.layers.1.self_attn.v_proj.weight"])
    # row 2i of a head is row i of its first half, row 2i + 1 row i of its second half
    key, rows = state["model.layers.0.self_attn.k_proj.weight"], torch.tensor(tensors["blk.0.attn_k.weight"].copy())
    for head, index in product(range(2), range(8)):
        assert torch.equal(rows[16 * head + 2 * index], key[16 * head + index])
        assert torch.equal(rows[16 * head + 2 * index + 1], key[16 * head + 8 + index])
    template = (tmp_path / "out" / "chat_template.jinja").read_text()
    assert reader.fields["tokenizer.chat_template"].contents() == template
    assert reader.fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    assert 'PARAMETER stop "<|im_end|>"' in (tmp_path / "out" / "Modelfile").read_text()


@pytest.mark.slow
def test_llama_cpp_reads_the_gguf_file_and_predicts_what_the_model_predicts(tmp_path, gpt2_words):
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: pip install llama-cpp-python")
    words = ["export", gpt2_words, "--gguf", "--dtype", "float32", "--output-dir", tmp_path / "out"]
    assert whetstone(*words).returncode == 0
    model = llama_cpp.Llama(str(tmp_path / "out" / "model-f32.gguf"), n_ctx=128, logits_all=True, verbose=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What's  12345? naïve 東京\n\nok"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert model.tokenize(text.encode(), add_bos=False, special=True) == ids
    model.eval(ids)
    read = torch.tensor(model.scores[: len(ids)])
    with torch.no_grad():
        expected = load_policy(tmp_path / "out").model(torch.tensor([ids])).logits[0]
    assert torch.allclose(read, expected, atol=1e-3)
    model.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_with_all_checkpoints(tmp_path_factory.mktemp("export") / "run")


def test_stored_episodes_of_a_run_are_rendered_by_plain_transformers_to_their_tokens(tmp_path, trained):
    done = whetstone("export", trained, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "chat template: the model's own after a preamble of Whetstone; renders" in done.stdout
    assert "does not render" not in done.stdout
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = [json.loads(line) for file in trained.glob("trajectories/*") for line in file.read_text().splitlines()]
    tools = [tool.to_openai() for tool in build_environment(run_recipe(trained))().toolset.specs]
    assert tools
    for row in rows:
        read = tokenizer.apply_chat_template(
            row["messages"][: row["opening"]], tools=tools, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert read == row["turns"][0]["context"]["ids"]
    assert "pocket_calculator(expression: str)" in tokenizer.decode(read)


def test_the_model_card_states_results_prompt_sampling_recipe_and_parser(tmp_path, trained):
    whetstone("export", trained, "--output-dir", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| reinforcement | 0.0% (0.0% to " in card
    assert "--tool-parser-plugin FOLDER/vllm_tool_parser.py --tool-call-parser whetstone" in card
    assert "<call>pocket_calculator(expression: str)</call>" in card
    assert "| `temperature` | 1.0 |" in card
    assert "chat: {format: compact" in card
    code = card.partition("```python\n")[2].partition("```")[0].replace("FOLDER", str(tmp_path / "out"))
    exec(compile(code, "card", "exec"), {})
    sampling = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (sampling["temperature"], sampling["do_sample"]) == (1.0, True)


def test_a_checkpoint_is_exported_by_name_and_by_folder_with_the_format_of_its_run(tmp_path, trained):
    first = trained / "checkpoints" / "step-000001"
    assert whetstone("export", trained, "--checkpoint", "step-1", "--output-dir", tmp_path / "named").returncode == 0
    assert whetstone("export", first, "--output-dir", tmp_path / "inside").returncode == 0
    shutil.copytree(first, tmp_path / "alone")
    assert whetstone("export", tmp_path / "alone", "--output-dir", tmp_path / "outside").returncode == 0
    for name in ("named", "inside", "outside"):
        assert (tmp_path / name / "model.safetensors").read_bytes() == (
            tmp_path / "named" / "model.safetensors"
        ).read_bytes()
        assert json.loads((tmp_path / name / "chat.json").read_text())["format"] == "compact"
        assert "whetstone_calls" in (tmp_path / name / "chat_template.jinja").read_text()
    refused = whetstone("export", trained, "--checkpoint", "step-99", "--output-dir", tmp_path / "no")
    assert refused.returncode == 2
    assert "no checkpoint step-99; existing checkpoints: step-00000" in refused.stderr


@pytest.mark.parametrize("command", [["evaluate"], ["export", "--output-dir", "there"], ["serve", "--port", "0"]])
def test_a_checkpoint_folder_that_is_gone_is_answered_with_those_that_exist(trained, command):
    refused = whetstone(command[0], trained / "checkpoints" / "step-000099", *command[1:], cwd=trained)
    assert refused.returncode == 2
    assert "no checkpoint step-000099; existing checkpoints: step-00000" in refused.stderr


def test_a_checkpoint_folder_is_evaluated_by_the_recipe_of_its_run(trained):
    checkpoint = trained / "checkpoints" / "step-000001"
    result = json.loads(whetstone("evaluate", checkpoint, "--episodes", 3, "--json").stdout)
    last = json.loads(whetstone("evaluate", trained, "--episodes", 3, "--json").stdout)
    assert result["protocol"]["chat_format"] == "compact"
    assert result["protocol"]["tasks"] == last["protocol"]["tasks"]
    assert result["protocol"]["agent"] != last["protocol"]["agent"]


def test_a_policy_from_a_checkpoint_that_was_copied_keeps_its_format(tmp_path, trained):
    shutil.copytree(trained / "checkpoints" / "step-000001", tmp_path / "alone")
    assembly = load_policy_argument(str(tmp_path / "alone"), (), None)
    assert type(assembly.chat.format).__name__ == "Compact"


def test_a_template_that_cannot_be_rendered_is_one_line_with_cause_and_remedy(tmp_path, tuned):
    (tuned / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    refused = whetstone("export", tuned, "--output-dir", tmp_path / "out")
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if "chat template" in line]
    assert "the chat template cannot be rendered" in line
    assert "line 1: unexpected" in line
    assert line.endswith("correct chat_template.jinja in the model folder")
    assert not (tmp_path / "out").exists()


def test_tools_that_no_template_can_render_are_stated_in_terminal_and_card(tmp_path, tuned):
    (tuned / "chat.json").write_text('{"format": "qwen3_coder", "variables": {}}')
    done = whetstone("export", tuned, "--output-dir", tmp_path / "out")
    problem = "it does not render all tools and calls as in training: the tool-call format writes calls in a way"
    assert problem in done.stdout
    assert problem in (tmp_path / "out" / "README.md").read_text()
    original = whetstone("export", tuned, "--chat-template", "original", "--output-dir", tmp_path / "kept")
    assert "it is kept as it is (--chat-template original)" in original.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tuned", "--adapter", "--dtype", "bfloat16", "--output-dir", "out"],
            "--dtype: adapters are written as they were",
        ),
        (["tuned", "--adapter", "--merged", "--output-dir", "out"], "--adapter: cannot be combined with --merged"),
        (["tuned", "--checkpoint", "step-1", "--output-dir", "out"], "--checkpoint: tuned is not a run"),
        (["tuned", "--merged", "--output-dir", "tuned"], "tuned: exists already"),
        (["nowhere", "--output-dir", "out"], "nowhere: no such model folder"),
    ],
)
def test_invalid_exports_are_refused_in_one_line(tuned, words, message):
    refused = whetstone("export", *words, cwd=tuned.parent)
    assert refused.returncode == 2
    assert message in refused.stderr.strip().splitlines()[-1]
    assert not (tuned.parent / "out").exists()
