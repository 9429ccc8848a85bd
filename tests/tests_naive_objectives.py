"""Second implementations of every objective: loops over Python floats, with what has no gradient as an argument.

Each takes the log-probs that vary, `now`, those that are held still, `still`, and the other columns, all lists; at
`now == still` it gives the losses, and its finite differences in `now` are the gradient.
"""

import math

BOUND = 20.0


def held(x):
    return min(max(x, -BOUND), BOUND)


def clip(x, low, high):
    return min(max(x, low), high)


def clipped(now, still, c, low=0.2, high=0.2, dual=None):
    found = []
    for x, old, a in zip(now, c["old_logprobs"], c["advantages"], strict=True):
        rho = math.exp(held(x - old))
        loss = max(-a * rho, -a * clip(rho, 1 - low, 1 + high))
        found.append(min(loss, -a * dual) if dual is not None and a < 0 else loss)
    return found


def mean_over(numbers, keys, key):
    mine = [x for x, k in zip(numbers, keys, strict=True) if k == key]
    return sum(mine) / len(mine)


def gspo(now, still, c, low=3e-4, high=4e-4):
    gaps = [held(x - old) for x, old in zip(still, c["old_logprobs"], strict=True)]
    found = []
    for x, x0, a, i in zip(now, still, c["advantages"], c["sequence"], strict=True):
        s = math.exp(min(mean_over(gaps, c["sequence"], i), 10.0) + (x - x0))
        found.append(max(-a * s, -a * clip(s, 1 - low, 1 + high)))
    return found


def gmpo(now, still, c, width=0.4):
    def bounded(x, old, credit):
        d = held(x - old)
        return min(d, width) if credit > 0 else max(d, -width)

    credit = [mean_over(c["advantages"], c["sequence"], i) for i in c["sequence"]]
    fixed = [bounded(x, old, a) for x, old, a in zip(still, c["old_logprobs"], credit, strict=True)]
    return [
        -a * math.exp(mean_over(fixed, c["sequence"], i) + bounded(x, old, a) - bounded(x0, old, a))
        for x, x0, old, a, i in zip(now, still, c["old_logprobs"], credit, c["sequence"], strict=True)
    ]


def cispo(now, still, c, low=0.0, high=5.0):
    return [
        -clip(math.exp(held(x0 - old)), low, high) * a * x
        for x, x0, old, a in zip(now, still, c["old_logprobs"], c["advantages"], strict=True)
    ]


def sapo(now, still, c):
    found = []
    for x, old, a in zip(now, c["old_logprobs"], c["advantages"], strict=True):
        tau = 1.0 if a > 0 else 1.05
        found.append(-a * (4 / tau) / (1 + math.exp(-tau * (math.exp(held(x - old)) - 1))))
    return found


def entropy_balanced(now, still, c, low=0.2, high=0.28, dual=3.0):
    found = []
    for x, x0, old, a in zip(now, still, c["old_logprobs"], c["advantages"], strict=True):
        rho, rho0 = math.exp(held(x - old)), math.exp(held(x0 - old))
        if a < 0 and rho0 > dual:
            found.append(-a * dual)
        elif rho0 > 1 + high:
            other = (1 + high) * rho / rho0
            found.append(-a * other if -a * (1 + high) > -a * rho0 else -a * rho)
        else:
            found.append(max(-a * rho, -a * max(rho, 1 - low)))
    return found


def policy_gradient(now, still, c):
    return [-a * x for x, a in zip(now, c["advantages"], strict=True)]


def kl_cov(now, still, c):
    found = []
    for x, old, a, rank in zip(now, c["old_logprobs"], c["advantages"], c["covariance_rank"], strict=True):
        d = held(x - old)
        found.append(-a * math.exp(d) + (abs(d) if rank == 0 or rank < 2e-4 else 0.0))
    return found


def probability_difference(now, still, c):
    found = []
    for x, x0, drawn, a in zip(now, still, c["sampler_logprobs"], c["advantages"], strict=True):
        mu = x0 if math.isnan(drawn) else drawn
        moved = math.exp(x0) - math.exp(mu)
        dropped = (moved > 0.2 and a > 0) or (moved < -0.2 and a < 0)
        d = held(x - mu)
        found.append((0.0 if dropped else -a * math.exp(d)) + 1e-3 * d * d)
    return found


def supervised(now, still, c):
    return [-x for x in now]


def advantage_weighted(now, still, c):
    return [-min(math.exp(a), 20.0) * x for x, a in zip(now, c["advantages"], strict=True)]


def advantage_regression(now, still, c):
    keys = list(zip(c["sequence"], c["turn"], strict=True))
    gaps = [held(x - ref) for x, ref in zip(still, c["reference_logprobs"], strict=True)]
    found = []
    for k, (x, x0) in enumerate(zip(now, still, strict=True)):
        a = c["advantages"][k]
        miss = mean_over(gaps, keys, keys[k]) + (x - x0) - a
        smooth = 0.5 * miss * miss if abs(miss) < 1 else abs(miss) - 0.5
        found.append(smooth if a >= 0 else 0.0)
    return found


def distilled(now, still, c):
    advantages = [clip(t - old, -10, 10) for t, old in zip(c["teacher_logprobs"], c["old_logprobs"], strict=True)]
    return clipped(now, still, {**c, "advantages": advantages})


def distilled_now(now, still, c):
    found = []
    for x, x0, drawn, t in zip(now, still, c["sampler_logprobs"], c["teacher_logprobs"], strict=True):
        mu = x0 if math.isnan(drawn) else drawn
        a, d = clip(t - x0, -10, 10), held(x - mu)
        fallen = math.exp(x0) - math.exp(mu) < -0.2
        found.append((0.0 if fallen else -a * math.exp(d)) + 1e-3 * d * d)
    return found


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def dpo(sums, still, c, beta=0.1):
    losses = []
    for i in range(len(sums)):
        for j in range(len(sums)):
            same = c["group"][i] == c["group"][j] and c["action_keys"][i] != c["action_keys"][j]
            if same and c["rewards"][i] > c["rewards"][j]:
                gap = (sums[i] - c["reference_sums"][i]) - (sums[j] - c["reference_sums"][j])
                losses.append(-math.log(sigmoid(beta * gap)))
    return sum(losses) / len(losses) if losses else 0.0


step_dpo = dpo


def kto(sums, still, c, beta=0.1):
    if not sums:
        return 0.0
    z = max(0.0, sum(s - r for s, r in zip(still, c["reference_sums"], strict=True)) / len(sums))
    losses = []
    for s, ref, reward in zip(sums, c["reference_sums"], c["rewards"], strict=True):
        x = s - ref
        losses.append(1 - sigmoid(beta * (x - z)) if reward >= 0.5 else 1 - sigmoid(beta * (z - x)))
    return sum(losses) / len(losses)


def refuel(sums, still, c):
    losses = []
    for i in range(len(sums)):
        for j in range(i + 1, len(sums)):
            if c["group"][i] == c["group"][j]:
                moved = (sums[i] - c["old_sums"][i]) - (sums[j] - c["old_sums"][j])
                losses.append((moved - (c["rewards"][i] - c["rewards"][j])) ** 2)
    return sum(losses) / len(losses) if losses else 0.0


def process_preference(sums, still, c, beta=0.05):
    losses = []
    for i in range(len(sums)):
        for j in range(len(sums)):
            if c["group"][i] == c["group"][j] and c["rewards"][i] > 0 >= c["rewards"][j]:
                q = [beta * (sums[k] - c["old_sums"][k]) / max(1, c["turn_counts"][k]) for k in (i, j)]
                losses.append(-math.log(sigmoid(q[0] - q[1])))
    return sum(losses) / len(losses) if losses else 0.0
