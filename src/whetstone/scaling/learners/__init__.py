"""How does one policy learn in several processes? Each holds a share of its weights and computes a share of a batch.

    the run's process      credit, minibatches, losses; a whole copy of the weights, for whoever samples and saves
      ├─ rank 0 ─┐         a share of weights and optimiser (FSDP2), a share of every batch's passes
      ├─ rank 1 ─┤         gloo on CPUs, NCCL on GPUs
      └─ …      ─┘

The run asks, ranks answer: what to compute is sent to each, what came of it is added up. Nothing but the learner knows.
"""
