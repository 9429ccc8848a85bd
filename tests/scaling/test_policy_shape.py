"""A worker has the policy's shape and tokenizer, and assembles the recipe with them."""

import pickle

from whetstone.assembly.assembly import assemble
from whetstone.scaling.policy_shape import shape_of, with_room


def test_the_shape_of_a_policy_is_sent_without_its_numbers_and_suffices_to_assemble_the_recipe(assembly):
    sent = pickle.dumps(shape_of(assembly.policy).model)
    assert len(sent) < len(pickle.dumps(assembly.policy.model)) - 4 * assembly.policy.parameters // 2
    arrived = with_room(pickle.loads(pickle.dumps(shape_of(assembly.policy))))
    names = {name: (p.shape, p.requires_grad) for name, p in assembly.policy.model.named_parameters()}
    assert {name: (p.shape, p.requires_grad) for name, p in arrived.model.named_parameters()} == names
    again = assemble(assembly.resolved, arrived)
    assert again.chat.encode("Compute 12*34") == assembly.chat.encode("Compute 12*34")
