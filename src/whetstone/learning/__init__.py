"""Training of the policy: columns, advantages, losses, packing, optimizers, and the learner that combines them."""
