"""Naive implementations of every objective: loops over Python floats, with stopped gradients as an argument.

Each takes the log-probs that vary, `now`, those that are constant, `still`, the other columns, all lists, and the
options of the objective; at `now == still` it returns the losses, and its finite differences in `now` are the gradient.
Metrics of an objective are computed by `said_by_` and its name, from the columns and the options.
"""

import math

BOUND = 20.0


def as_constant(x):
    return min(max(x, -BOUND), BOUND)


def clip(x, low, high):
    return min(max(x, low), high)


def clipped(now, still, c, clip_low=0.2, clip_high=0.2, dual_clip=None):
    results = []
    for x, old, a in zip(now, c["old_logprobs"], c["advantages"], strict=True):
        rho = math.exp(as_constant(x - old))
        loss = max(-a * rho, -a * clip(rho, 1 - clip_low, 1 + clip_high))
        results.append(min(loss, -a * dual_clip) if dual_clip is not None and a < 0 else loss)
    return results


def mean_over(numbers, keys, key):
    members = [x for x, k in zip(numbers, keys, strict=True) if k == key]
    return sum(members) / len(members)


def gspo(now, still, c, clip_low=3e-4, clip_high=4e-4, level="trajectory", pool="token"):
    keys = c["sequence"] if level == "trajectory" else list(zip(c["sequence"], c["turn"], strict=True))
    gaps = [as_constant(x - old) for x, old in zip(still, c["old_logprobs"], strict=True)]
    results = []
    for x, x0, a, i in zip(now, still, c["advantages"], keys, strict=True):
        s = math.exp(min(mean_over(gaps, keys, i), 10.0) + (x - x0))
        credit = mean_over(c["advantages"], keys, i) if pool == "mean" else a
        results.append(max(-credit * s, -credit * clip(s, 1 - clip_low, 1 + clip_high)))
    return results


def gmpo(now, still, c, **options):
    width = options.get("clip", 0.4)

    def bounded(x, old, credit):
        d = as_constant(x - old)
        return min(d, width) if credit > 0 else max(d, -width)

    credit = [mean_over(c["advantages"], c["sequence"], i) for i in c["sequence"]]
    fixed = [bounded(x, old, a) for x, old, a in zip(still, c["old_logprobs"], credit, strict=True)]
    return [
        -a * math.exp(mean_over(fixed, c["sequence"], i) + bounded(x, old, a) - bounded(x0, old, a))
        for x, x0, old, a, i in zip(now, still, c["old_logprobs"], credit, c["sequence"], strict=True)
    ]


def cispo(now, still, c, min_ratio=0.0, max_ratio=5.0):
    return [
        -clip(math.exp(as_constant(x0 - old)), min_ratio, max_ratio) * a * x
        for x, x0, old, a in zip(now, still, c["old_logprobs"], c["advantages"], strict=True)
    ]


def sapo(now, still, c, temperature=1.0, negative_temperature=1.05):
    results = []
    for x, old, a in zip(now, c["old_logprobs"], c["advantages"], strict=True):
        tau = temperature if a > 0 else negative_temperature
        results.append(-a * (4 / tau) / (1 + math.exp(-tau * (math.exp(as_constant(x - old)) - 1))))
    return results


def entropy_balanced(now, still, c, clip_low=0.2, clip_high=0.28, dual_clip=3.0):
    results = []
    for x, x0, old, a in zip(now, still, c["old_logprobs"], c["advantages"], strict=True):
        rho, rho0 = math.exp(as_constant(x - old)), math.exp(as_constant(x0 - old))
        top = 1 + clip_high
        if dual_clip is not None and a < 0 and rho0 > dual_clip:
            results.append(-a * dual_clip)
        elif rho0 > top:
            results.append(-a * top * rho / rho0 if -a * top > -a * rho0 else -a * rho)
        else:
            results.append(max(-a * rho, -a * max(rho, 1 - clip_low)))
    return results


def policy_gradient(now, still, c):
    return [-a * x for x, a in zip(now, c["advantages"], strict=True)]


def kl_cov(now, still, c, fraction=2e-4, weight=1.0):
    results = []
    for x, old, a, rank in zip(now, c["old_logprobs"], c["advantages"], c["covariance_rank"], strict=True):
        d = as_constant(x - old)
        results.append(-a * math.exp(d) + (weight * abs(d) if rank == 0 or rank <= fraction else 0.0))
    return results


def probability_difference(now, still, c, low=0.2, high=0.2, pull=1e-3):
    results = []
    for x, x0, drawn, a in zip(now, still, c["sampler_logprobs"], c["advantages"], strict=True):
        mu = x0 if math.isnan(drawn) else drawn
        moved = math.exp(x0) - math.exp(mu)
        dropped = (moved > high and a > 0) or (moved < -low and a < 0)
        d = as_constant(x - mu)
        results.append((0.0 if dropped else -a * math.exp(d)) + pull * d * d)
    return results


def supervised(now, still, c, weigh="none"):
    p = [math.exp(x) for x in still]
    weight = {"none": [1.0] * len(p), "probability": p, "both_ways": [x * (1 - x) for x in p]}[weigh]
    return [-w * x for w, x in zip(weight, now, strict=True)]


def advantage_weighted(now, still, c, temperature=1.0, max_weight=20.0):
    return [-min(math.exp(a / temperature), max_weight) * x for x, a in zip(now, c["advantages"], strict=True)]


def advantage_regression(now, still, c, temperature=1.0, form="smooth", negatives="drop"):
    keys = list(zip(c["sequence"], c["turn"], strict=True))
    gaps = [as_constant(x - ref) for x, ref in zip(still, c["reference_logprobs"], strict=True)]
    results = []
    for k, (x, x0) in enumerate(zip(now, still, strict=True)):
        a = c["advantages"][k]
        miss = temperature * (mean_over(gaps, keys, keys[k]) + (x - x0)) - a
        smooth = (0.5 * miss * miss if abs(miss) < 1 else abs(miss) - 0.5) / temperature
        loss = smooth if form == "smooth" else miss * miss
        results.append(loss if a >= 0 or negatives == "keep" else 0.0)
    return results


def on_policy_distillation(now, still, c, teacher_weight=1.0, reward_weight=0.0, bound=10.0, **clips):
    credit = [
        teacher_weight * clip(t - old, -bound, bound) + reward_weight * a
        for t, old, a in zip(c["teacher_logprobs"], c["old_logprobs"], c["advantages"], strict=True)
    ]
    return clipped(now, still, {**c, "advantages": credit}, **clips)


def importance_weighted_distillation(now, still, c, low=0.2, pull=1e-3, bound=10.0):
    results = []
    for x, x0, drawn, t in zip(now, still, c["sampler_logprobs"], c["teacher_logprobs"], strict=True):
        mu = x0 if math.isnan(drawn) else drawn
        a, d = clip(t - x0, -bound, bound), as_constant(x - mu)
        fallen = math.exp(x0) - math.exp(mu) < -low
        results.append((0.0 if fallen else -a * math.exp(d)) + pull * d * d)
    return results


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def dpo(sums, still, c, beta=0.1, smoothing=0.0, normalize_length=False, imitate=0.0):
    size = [max(1, n) if normalize_length else 1 for n in c["lengths"]]
    ratio = [(x - ref) / n for x, ref, n in zip(sums, c["reference_sums"], size, strict=True)]
    losses = []
    for i in range(len(sums)):
        for j in range(len(sums)):
            same = c["group"][i] == c["group"][j] and c["action_keys"][i] != c["action_keys"][j]
            if same and c["rewards"][i] > c["rewards"][j]:
                right = sigmoid(beta * (ratio[i] - ratio[j]))
                loss = -(1 - smoothing) * math.log(right) - smoothing * math.log(1 - right)
                losses.append(loss - imitate * sums[i] / max(1, c["lengths"][i]))
    return sum(losses) / len(losses) if losses else 0.0


step_dpo = dpo


def over_pairs(c, loss_of):
    losses = [loss_of(i, j) for i, j in pairs_of(c)]
    return sum(losses) / len(losses) if losses else 0.0


def ipo(sums, still, c, beta=0.1, normalize_length=True):
    q = ratios_of({**c, "learner_sums": sums}, normalize_length)
    return over_pairs(c, lambda i, j: (q[i] - q[j] - 1 / (2 * beta)) ** 2)


def simpo(sums, still, c, beta=2.0, margin=1.0):
    mean = [x / max(1, n) for x, n in zip(sums, c["lengths"], strict=True)]
    return over_pairs(c, lambda i, j: -math.log(sigmoid(beta * (mean[i] - mean[j]) - margin)))


def orpo(sums, still, c, weight=0.1):
    mean = [x / max(1, n) for x, n in zip(sums, c["lengths"], strict=True)]
    odds = [log_odds(x) for x in mean]
    return over_pairs(c, lambda i, j: -mean[i] - weight * math.log(sigmoid(odds[i] - odds[j])))


def log_odds(mean):
    return mean - math.log(1 - math.exp(min(mean, -1e-6)))


def ratios_of(c, normalize_length):
    size = [max(1, n) if normalize_length else 1 for n in c["lengths"]]
    return [(x - ref) / n for x, ref, n in zip(c["learner_sums"], c["reference_sums"], size, strict=True)]


def kto(sums, still, c, beta=0.1, desirable=1.0, undesirable=1.0, threshold=0.5, reference_point=None):
    if not sums:
        return 0.0
    z = max(0.0, sum(s - r for s, r in zip(still, c["reference_sums"], strict=True)) / len(sums))
    z = z if reference_point is None else reference_point
    losses = []
    for s, ref, reward in zip(sums, c["reference_sums"], c["rewards"], strict=True):
        x = s - ref
        good, bad = desirable * (1 - sigmoid(beta * (x - z))), undesirable * (1 - sigmoid(beta * (z - x)))
        losses.append(good if reward >= threshold else bad)
    return sum(losses) / len(losses)


def refuel(sums, still, c, reward_scale=1.0):
    losses = []
    for i in range(len(sums)):
        for j in range(i + 1, len(sums)):
            if c["group"][i] == c["group"][j]:
                moved = (sums[i] - c["old_sums"][i]) - (sums[j] - c["old_sums"][j])
                losses.append((moved - reward_scale * (c["rewards"][i] - c["rewards"][j])) ** 2)
    return sum(losses) / len(losses) if losses else 0.0


def process_preference(sums, still, c, beta=0.05, pool="mean", threshold=0.0):
    losses = []
    for i in range(len(sums)):
        for j in range(len(sums)):
            if c["group"][i] == c["group"][j] and c["rewards"][i] > threshold >= c["rewards"][j]:
                turns = [max(1, c["turn_counts"][k]) if pool == "mean" else 1 for k in (i, j)]
                q = [beta * (sums[k] - c["old_sums"][k]) / n for k, n in zip((i, j), turns, strict=True)]
                losses.append(-math.log(sigmoid(q[0] - q[1])))
    return sum(losses) / len(losses) if losses else 0.0


def of_ratios(gaps, **fractions):
    """Return the metrics of every objective with a ratio for these log-ratios, and further fractions."""
    results = {
        "ratio": [math.exp(d) for d in gaps],
        "update_kl": [min(math.exp(d) - 1 - d, 10.0) for d in gaps],
        "log_ratio_clamped_fraction": [float(abs(d) >= BOUND) for d in gaps],
    }
    results |= {name: [float(each) for each in values] for name, values in fractions.items()}
    return {f"policy/{name}": values for name, values in results.items()}


def gaps_to(c, other):
    pairs = zip(c["learner_logprobs"], c[other], strict=True)
    return [0.0 if math.isnan(y) else as_constant(x - y) for x, y in pairs]


def said_by_clipped(c, clip_low=0.2, clip_high=0.2, dual_clip=None):
    gaps, credit = gaps_to(c, "old_logprobs"), c["advantages"]
    stopped = [
        (math.exp(d) > 1 + clip_high and a > 0) or (math.exp(d) < 1 - clip_low and a < 0)
        for d, a in zip(gaps, credit, strict=True)
    ]
    fractions = {
        "clip_fraction": stopped,
        "clip_high_fraction": [s and a > 0 for s, a in zip(stopped, credit, strict=True)],
        "clip_low_fraction": [s and a < 0 for s, a in zip(stopped, credit, strict=True)],
    }
    if dual_clip is not None:
        fractions["dual_clip_fraction"] = [a < 0 and math.exp(d) > dual_clip for d, a in zip(gaps, credit, strict=True)]
    return of_ratios(gaps, **fractions)


def said_by_gspo(c, clip_low=3e-4, clip_high=4e-4, level="trajectory", pool="token"):
    keys = c["sequence"] if level == "trajectory" else list(zip(c["sequence"], c["turn"], strict=True))
    gaps = [mean_over(gaps_to(c, "old_logprobs"), keys, key) for key in keys]
    stopped = []
    for d, a, key in zip(gaps, c["advantages"], keys, strict=True):
        credit = mean_over(c["advantages"], keys, key) if pool == "mean" else a
        s = math.exp(d)
        stopped.append(-credit * clip(s, 1 - clip_low, 1 + clip_high) > -credit * s)
    return of_ratios(gaps, clip_fraction=stopped)


def said_by_gmpo(c, **options):
    width, gaps = options.get("clip", 0.4), gaps_to(c, "old_logprobs")
    credit = [mean_over(c["advantages"], c["sequence"], i) for i in c["sequence"]]
    stopped = [d > width if a > 0 else d < -width for d, a in zip(gaps, credit, strict=True)]
    return of_ratios(gaps, clip_fraction=stopped)


def said_by_cispo(c, min_ratio=0.0, max_ratio=5.0):
    gaps = gaps_to(c, "old_logprobs")
    return of_ratios(gaps, clip_fraction=[not min_ratio <= math.exp(d) <= max_ratio for d in gaps])


def said_by_sapo(c, **options):
    return of_ratios(gaps_to(c, "old_logprobs"))


def said_by_entropy_balanced(c, clip_low=0.2, clip_high=0.28, dual_clip=3.0):
    gaps = gaps_to(c, "old_logprobs")
    pairs = [(math.exp(d), a) for d, a in zip(gaps, c["advantages"], strict=True)]
    fractions = {
        "clip_fraction": [rho < 1 - clip_low and a < 0 for rho, a in pairs],
        "balanced_fraction": [rho > 1 + clip_high and a > 0 for rho, a in pairs],
    }
    if dual_clip is not None:
        fractions["dual_clip_fraction"] = [rho > dual_clip and a < 0 for rho, a in pairs]
    return of_ratios(gaps, **fractions)


def said_by_kl_cov(c, fraction=2e-4, weight=1.0):
    held_back = [rank == 0 or rank <= fraction for rank in c["covariance_rank"]]
    return of_ratios(gaps_to(c, "old_logprobs"), covariance_fraction=held_back)


def moves_from_the_sampler(c):
    pairs = zip(c["learner_logprobs"], c["sampler_logprobs"], strict=True)
    return [0.0 if math.isnan(y) else math.exp(x) - math.exp(y) for x, y in pairs]


def said_by_probability_difference(c, low=0.2, high=0.2, pull=1e-3):
    pairs = zip(moves_from_the_sampler(c), c["advantages"], strict=True)
    dropped = [(u > high and a > 0) or (u < -low and a < 0) for u, a in pairs]
    return of_ratios(gaps_to(c, "sampler_logprobs"), clip_fraction=dropped)


def beside_the_teacher(c, other, bound):
    pairs = zip(c["teacher_logprobs"], c[other], strict=True)
    return {"distillation/advantage": [clip(t - x, -bound, bound) for t, x in pairs]}


def said_by_on_policy_distillation(c, teacher_weight=1.0, reward_weight=0.0, bound=10.0, **clips):
    of_teacher = beside_the_teacher(c, "old_logprobs", bound)
    pairs = zip(of_teacher["distillation/advantage"], c["advantages"], strict=True)
    credit = [teacher_weight * t + reward_weight * a for t, a in pairs]
    return said_by_clipped({**c, "advantages": credit}, **clips) | of_teacher


def said_by_importance_weighted_distillation(c, low=0.2, pull=1e-3, bound=10.0):
    fallen = [u < -low for u in moves_from_the_sampler(c)]
    results = of_ratios(gaps_to(c, "sampler_logprobs"), clip_fraction=fallen)
    return results | beside_the_teacher(c, "learner_logprobs", bound)


def said_by_policy_gradient(c):
    return {"policy/token_probability": [math.exp(x) for x in c["learner_logprobs"]]}


def said_by_supervised(c, weigh="none"):
    return said_by_policy_gradient(c)


def said_by_advantage_weighted(c, temperature=1.0, max_weight=20.0):
    weight = [min(math.exp(a / temperature), max_weight) for a in c["advantages"]]
    return {"policy/sample_weight": weight, "policy/capped_fraction": [float(w == max_weight) for w in weight]}


def said_by_advantage_regression(c, temperature=1.0, form="smooth", negatives="drop"):
    gaps = [-d for d in gaps_to(c, "reference_logprobs")]
    return {"policy/reference_kl": of_ratios(gaps)["policy/update_kl"]}


def said_by_dpo(c, beta=0.1, normalize_length=False, **options):
    pairs, margins = pairs_of(c), []
    for i, j in pairs:
        size = [max(1, c["lengths"][k]) if normalize_length else 1 for k in (i, j)]
        q = [(c["learner_sums"][k] - c["reference_sums"][k]) / n for k, n in zip((i, j), size, strict=True)]
        margins.append(beta * (q[0] - q[1]))
    results = {"preference/pairs": len(pairs)}
    if pairs:
        results["preference/margin"] = sum(margins) / len(pairs)
        results["preference/accuracy"] = sum(m > 0 for m in margins) / len(pairs)
    return results


said_by_step_dpo = said_by_dpo


def said_of(margins):
    results = {"preference/pairs": len(margins)}
    if margins:
        results["preference/margin"] = sum(margins) / len(margins)
        results["preference/accuracy"] = sum(m > 0 for m in margins) / len(margins)
    return results


def said_by_ipo(c, beta=0.1, normalize_length=True):
    q = ratios_of(c, normalize_length)
    return said_of([beta * (q[i] - q[j]) for i, j in pairs_of(c)])


def said_by_simpo(c, beta=2.0, margin=1.0):
    mean = [x / max(1, n) for x, n in zip(c["learner_sums"], c["lengths"], strict=True)]
    return said_of([beta * (mean[i] - mean[j]) for i, j in pairs_of(c)])


def said_by_orpo(c, weight=0.1):
    odds = [log_odds(x / max(1, n)) for x, n in zip(c["learner_sums"], c["lengths"], strict=True)]
    return said_of([odds[i] - odds[j] for i, j in pairs_of(c)])


def pairs_of(c):
    """Return pairs of one group in which the first is better than the second and differs from it."""
    places = range(len(c["rewards"]))
    return [
        (i, j)
        for i in places
        for j in places
        if c["group"][i] == c["group"][j]
        and c["action_keys"][i] != c["action_keys"][j]
        and c["rewards"][i] > c["rewards"][j]
    ]


def said_by_kto(c, reference_point=None, **options):
    moved = [x - ref for x, ref in zip(c["learner_sums"], c["reference_sums"], strict=True)]
    z = max(0.0, sum(moved) / len(moved)) if reference_point is None else reference_point
    return {"preference/reference_point": z}


def said_by_refuel(c, reward_scale=1.0):
    moved = [x - old for x, old in zip(c["learner_sums"], c["old_sums"], strict=True)]
    miss = [
        abs(moved[i] - moved[j] - reward_scale * (c["rewards"][i] - c["rewards"][j]))
        for i in range(len(moved))
        for j in range(i + 1, len(moved))
        if c["group"][i] == c["group"][j]
    ]
    results = {"preference/pairs": len(miss)}
    return results | ({"preference/regression_error": sum(miss) / len(miss)} if miss else {})


def said_by_process_preference(c, beta=0.05, pool="mean", threshold=0.0):
    success = [float(reward > threshold) for reward in c["rewards"]]
    pairs = pairs_of({**c, "rewards": success, "action_keys": range(len(success))})
    right = 0
    for i, j in pairs:
        turns = [max(1, c["turn_counts"][k]) if pool == "mean" else 1 for k in (i, j)]
        q = [(c["learner_sums"][k] - c["old_sums"][k]) / n for k, n in zip((i, j), turns, strict=True)]
        right += q[0] > q[1]
    metrics = {"implicit_prm/pairs": len(pairs)}
    return metrics | ({"implicit_prm/accuracy": right / len(pairs)} if pairs else {})
