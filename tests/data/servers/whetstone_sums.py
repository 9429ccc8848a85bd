"""A taskset of the package `verifiers` for tests: sums, with a tool that remembers, two rewards and a metric."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumState(vf.State):
    calls: int = 0


class Adder(vf.Toolset[vf.ToolsetConfig, SumState]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.state.calls += 1
        return a + b

    @vf.tool
    def calls(self) -> int:
        """How many sums were added so far."""
        return self.state.calls


class SumTask(vf.Task[SumData, SumState]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.0)
    async def brief(self, trace) -> float:
        return 1.0 / trace.num_turns

    @vf.metric
    async def added(self, trace) -> float:
        return float(trace.state.calls)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for a in range(20):
            yield SumTask(SumData(prompt=f"{a}+{a + 1}?", system_prompt="Add.", answer=2 * a + 1), self.config.task)


__all__ = ["Sums"]
