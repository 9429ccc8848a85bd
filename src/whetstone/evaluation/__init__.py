"""How good is an agent, and how sure is that?"""

from whetstone.evaluation.success import Evaluation, Rate, evaluation_of, pass_at_k, rate

__all__ = ["Evaluation", "Rate", "evaluation_of", "pass_at_k", "rate"]
