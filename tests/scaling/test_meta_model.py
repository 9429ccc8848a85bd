"""A worker assembles the recipe from the shape and tokenizer of the policy."""

import pickle

from whetstone.assembly.assembly import assemble
from whetstone.scaling.meta_model import allocate_parameters, to_meta_policy


def test_shape_of_a_policy_is_sent_without_weights_and_suffices_to_assemble_the_recipe(assembly):
    sent = pickle.dumps(to_meta_policy(assembly.policy).model)
    assert len(sent) < len(pickle.dumps(assembly.policy.model)) - 4 * assembly.policy.parameters // 2
    arrived = allocate_parameters(pickle.loads(pickle.dumps(to_meta_policy(assembly.policy))))
    names = {name: (p.shape, p.requires_grad) for name, p in assembly.policy.model.named_parameters()}
    assert {name: (p.shape, p.requires_grad) for name, p in arrived.model.named_parameters()} == names
    assembled = assemble(assembly.resolved, arrived)
    assert assembled.chat.encode("Compute 12*34") == assembly.chat.encode("Compute 12*34")
