"""Learning: credit assignment, losses, forward and backward passes, optimizers and critics of a policy in training."""
