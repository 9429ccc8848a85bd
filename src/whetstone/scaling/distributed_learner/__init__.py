"""Distributed learner: one policy trained by several processes, each with a shard of weights and passes.

    the run's process      credit, minibatches, losses; a full copy of the weights, for sampling and checkpoints
      ├─ rank 0 ─┐         a shard of weights and optimizer (FSDP2), a part of every batch's passes
      ├─ rank 1 ─┤         gloo on CPUs, NCCL on GPUs
      └─ …      ─┘

The run sends requests to the ranks and adds up their results. No other component knows about the ranks.
"""
