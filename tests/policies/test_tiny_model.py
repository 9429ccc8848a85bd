import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from whetstone.assembly import assemble
from whetstone.chat import Chat, user
from whetstone.chat.formats import Compact
from whetstone.errors import PolicyError
from whetstone.policies import Policy, build_tiny, load_policy, save_policy
from whetstone.policies.check_tokenizer import check_ids, tokenizer_mismatch
from whetstone.recipe import TinySettings, load_recipe
from whetstone.tools import pocket_calculator, tool_from_function


def small(**options):
    return build_tiny(["Compute 12*34"] * 9, hidden=16, heads=2, layers=1, intermediate=16, **options)


def test_default_size_is_about_a_million_parameters():
    tiny = TinySettings()
    policy = build_tiny(
        ["Compute 12"],
        vocabulary=tiny.vocab_size,
        hidden=tiny.hidden_size,
        layers=tiny.num_layers,
        heads=tiny.num_heads,
        intermediate=tiny.intermediate_size,
    )
    assert 0.7e6 < policy.parameters < 1.3e6


def test_digits_and_signs_are_single_tokens_and_any_text_round_trips():
    tokenizer = small().tokenizer
    assert tokenizer.tokenize("12*(345") == ["1", "2", "*", "(", "3", "4", "5"]
    for text in ("Ünïcödé 🪨", " two  spaces\n", "12.5 <|nonsense|>"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_same_seed_builds_the_same_model_and_keeps_the_global_generator():
    state = torch.random.get_rng_state()
    one, same, other = (small(seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_saved_policy_is_loaded_exactly(tmp_path):
    policy = small(markers=["<call>"])
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path)
    state = policy.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in loaded.model.state_dict().items())
    text = "<|user|>Compute 12<call>"
    assert loaded.tokenizer.encode(text) == policy.tokenizer.encode(text)
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template


def test_demo_tool_has_fewer_than_forty_tokens():
    policy = assemble(load_recipe("demo")).policy
    chat = Chat(policy.tokenizer, Compact())
    spec = tool_from_function(pocket_calculator).spec
    with_tool, without = (len(chat.open([user("Compute 1*2")], tools).ids) for tools in ([spec], []))
    assert 0 < with_tool - without < 40


def test_folder_without_a_model_is_one_line(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(PolicyError, match='no such model folder; did you mean "model"'):
        load_policy(tmp_path / "modle")
    with pytest.raises(PolicyError, match=r"config\.json is missing"):
        load_policy(tmp_path / "model")


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path):
    small_model, big_tokenizer = small(), small(markers=[f"<{i}>" for i in range(50)])
    save_policy(Policy(small_model.model, big_tokenizer.tokenizer), tmp_path)
    with pytest.raises(PolicyError, match="they do not match"):
        load_policy(tmp_path)


def test_token_ids_without_an_embedding_are_refused(tmp_path):
    policy = small()
    vocabulary = {"a": 0, "b": policy.model.config.vocab_size + 7}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="a")))
    with pytest.raises(PolicyError, match="maps 'b' to id"):
        check_ids("it", policy.model, tokenizer)


def test_tokenizer_of_another_model_is_detected_by_shared_tokens():
    policy, other = small(), small(markers=["<x>", "<y>"])
    assert tokenizer_mismatch(policy.model, policy.tokenizer) == ""
    policy.model.config.eos_token_id = policy.model.generation_config.eos_token_id = 40  # an ordinary token there
    assert "eos_token_id of the model's configuration is 40, which is" in tokenizer_mismatch(
        policy.model, policy.tokenizer
    )
    policy.model.generation_config.eos_token_id = [40, other.tokenizer.eos_token_id]  # one of several is enough
    assert tokenizer_mismatch(policy.model, policy.tokenizer) == ""
    policy.model.resize_token_embeddings(4 * len(policy.tokenizer))
    assert "the model has embeddings for" in tokenizer_mismatch(policy.model, policy.tokenizer)
