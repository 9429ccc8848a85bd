"""Forward passes that keep or change gradients, and trainers that use them."""

from whetstone.learning.forward_passes import LocalPasses
from whetstone.learning.model_trainer import ModelTrainer


class Recording(LocalPasses):
    """Store gradients as `kept` instead of applying them."""

    def apply(self):
        self.kept = [None if p.grad is None else p.grad.clone() for p in self.policy.model.parameters()]
        self.drop()
        return {}


def recorder(policy, settings, kind=Recording, **models):
    """Return a trainer with passes of another kind."""
    return ModelTrainer(policy, settings, passes=kind(policy, settings, **models), **models)
