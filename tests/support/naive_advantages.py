"""Naive implementations of every estimator: loops over Python floats, written only from the formulas.

Each takes a nested batch (`support/batches.py`) and returns a flat list of the estimator's level.
"""

import math

from support.batches import earned, mean, token_rewards, turn_rewards


def std(numbers, ddof=1):
    if len(numbers) <= ddof or max(numbers) == min(numbers):
        return 0.0
    middle = mean(numbers)
    return math.sqrt(sum((x - middle) ** 2 for x in numbers) / (len(numbers) - ddof))


def against(x, others, *, scale=True, center="mean", ddof=1):
    """Normalize `x` in the list `others`, which contains it."""
    if max(others) == min(others):
        return 0.0
    centered = x - (sum(others) - x) / (len(others) - 1) if center == "leave_one_out" else x - mean(others)
    if not scale:
        return centered
    deviation = std(others, ddof)
    return 0.0 if deviation < 1e-8 else centered / (deviation + 1e-6)


def siblings(batch, trajectory):
    return [other for other in batch if other["group"] == trajectory["group"]]


def per_trajectory(batch, score, **how):
    return [against(score(tr), [score(other) for other in siblings(batch, tr)], **how) for tr in batch]


def outcome(trajectory):
    return trajectory["outcomes"]


def over_turns(batch, of_trajectory):
    return [of_trajectory[i] for i, tr in enumerate(batch) for _ in tr["turns"]]


def over_tokens(batch, of_trajectory):
    return [of_trajectory[i] for i, tr in enumerate(batch) for turn in tr["turns"] for _ in turn["tokens"]]


def whiten(numbers):
    if len(numbers) < 2 or max(numbers) == min(numbers):
        return [0.0] * len(numbers)
    middle, variance = mean(numbers), std(numbers) ** 2
    return [(x - middle) / math.sqrt(variance + 1e-8) for x in numbers]


def to_go(rewards, discount=1.0, stop=None):
    results, carried = [], 0.0
    for t in reversed(range(len(rewards))):
        carried = rewards[t] + (0.0 if stop is not None and stop[t] else discount * carried)
        results.append(carried)
    return results[::-1]


def recurrence(rewards, values, last, discount, trace):
    results, ahead, carried = [], last, 0.0
    for t in reversed(range(len(rewards))):
        carried = rewards[t] + discount * ahead - values[t] + discount * trace * carried
        ahead = values[t]
        results.append(carried)
    return results[::-1]


def group_relative(batch):
    return per_trajectory(batch, earned)


def batch_scaled(batch):
    scale = std([earned(tr) for tr in batch])
    scaled = per_trajectory(batch, earned, scale=False)
    return [0.0 if scale < 1e-8 else a / (scale + 1e-6) for a in scaled]


def leave_one_out(batch):
    return per_trajectory(batch, earned, scale=False, center="leave_one_out")


def reinforce_plus_plus(batch):
    return whiten([g for tr in batch for g in to_go(token_rewards(tr))])


def reinforce_plus_plus_baseline(batch):
    return whiten(over_tokens(batch, per_trajectory(batch, earned, scale=False)))


def opo(batch):
    results = []
    for tr in batch:
        others = siblings(batch, tr)
        lengths = [sum(len(turn["tokens"]) for turn in other["turns"]) for other in others]
        scores = [earned(other) for other in others]
        if max(scores) == min(scores):
            results.append(0.0)
        elif sum(lengths) == 0:
            results.append(earned(tr) - mean(scores))
        else:
            results.append(earned(tr) - sum(n * s for n, s in zip(lengths, scores, strict=True)) / sum(lengths))
    return results


def gpg(batch):
    alive = sum(earned(tr) != 0 for tr in batch)
    return [len(batch) / max(1, alive) * a for a in per_trajectory(batch, earned, scale=False)]


def pass_at_k(batch):
    results = [0.0] * len(batch)
    for group in {tr["group"] for tr in batch}:
        ranked = sorted((i for i, tr in enumerate(batch) if tr["group"] == group), key=lambda i: -earned(batch[i]))
        if len(ranked) > 1:
            results[ranked[0]] = earned(batch[ranked[0]]) - earned(batch[ranked[1]])
    return results


def remax(batch):
    return [earned(tr) - tr["greedy_rewards"] for tr in batch]


def turn_gae(batch):
    results = []
    for tr in batch:
        values = [turn["values"] for turn in tr["turns"]]
        results += recurrence(turn_rewards(tr), values, tr["last_values"], 0.99, 0.95)
    return whiten(results)


def token_gae(batch):
    results = []
    for tr in batch:
        values = [tok["token_values"] for turn in tr["turns"] for tok in turn["tokens"]]
        results += recurrence(token_rewards(tr), values, tr["last_token_values"], 1.0, 1.0)
    return whiten(results)


def b_coder(batch):
    results = []
    for tr in batch:
        tokens = [tok for turn in tr["turns"] for tok in turn["tokens"]]
        values = [tok["token_values"] + 0.05 * tok["old_logprobs"] for tok in tokens]
        for k, reward in enumerate(token_rewards(tr)):
            ahead = values[k + 1] if k + 1 < len(values) else tr["last_token_values"]
            results.append(reward + ahead - values[k])
    return results


def critics_minimum(tr):
    now = [min(turn["values"], turn["twin_values"]) for turn in tr["turns"]]
    return now, [*now[1:], min(tr["last_values"], tr["last_twin_values"])] if now else []


def one_step_td(batch):
    results = []
    for tr in batch:
        now, ahead = critics_minimum(tr)
        returns = to_go(turn_rewards(tr), 0.9)
        results += [
            0.5 * (r + v2 - v) + 0.5 * (mc - v)
            for r, v, v2, mc in zip(turn_rewards(tr), now, ahead, returns, strict=True)
        ]
    return results


def released(tr, discount):
    now, ahead = critics_minimum(tr)
    returns = to_go(turn_rewards(tr), discount)
    return [v2 - v - 0.05 + r + mc for r, v, v2, mc in zip(turn_rewards(tr), now, ahead, returns, strict=True)]


def digirl(batch):
    return [float(min(max(a, 0), 1) > 0) for tr in batch for a in released(tr, 0.5)]


def webrl(batch):
    return [1.0 if a >= 0 else -0.6 for tr in batch for a in released(tr, 0.9)]


def archer(batch):
    return [
        min(turn["action_values"], turn["twin_action_values"]) - min(turn["values"], turn["twin_values"])
        for tr in batch
        for turn in tr["turns"]
    ]


def steps(batch, discount, reward=turn_rewards):
    """Return (trajectory, turn number, turn, return) of every turn."""
    for tr in batch:
        returns = to_go(reward(tr), discount)
        for t, (turn, g) in enumerate(zip(tr["turns"], returns, strict=True)):
            yield tr, t, turn, g


def among(rows, key, **how):
    """Compare the number of each row with those of the rows with the same key."""
    return [against(x, [y for other, y in rows if key(other) == key(row)], **how) for row, x in rows]


def added(*parts):
    return [sum(numbers) for numbers in zip(*parts, strict=True)]


def scaled(weight, numbers):
    return [weight * x for x in numbers]


def gigpo(batch):
    rows = [((tr["group"], turn["state_keys"]), g) for tr, _, turn, g in steps(batch, 0.95)]
    episode = over_turns(batch, per_trajectory(batch, earned, scale=False))
    return added(episode, among(rows, lambda row: row, scale=False))


def ui_s1(batch):
    rows = []
    for tr in batch:
        carried, own = 0.0, []
        for t, (turn, r) in reversed(list(enumerate(zip(tr["turns"], turn_rewards(tr), strict=True)))):
            own.append(((tr["group"], t), r + 0.5 * carried if turn["matched"] else r))
            carried = own[-1][1] if turn["matched"] else 0.0
        rows += own[::-1]
    return added(over_turns(batch, per_trajectory(batch, earned)), among(rows, lambda row: row))


def processes(tr):
    return [turn["process_rewards"] for turn in tr["turns"]]


def matchtir(batch):
    rows = [((tr["group"], t), g) for tr, t, _, g in steps(batch, 0.9, reward=processes)]
    outcome = over_turns(batch, per_trajectory(batch, lambda tr: sum(processes(tr))))
    return added(scaled(0.5, outcome), scaled(0.5, among(rows, lambda row: row)))


def igpo(batch):
    rows = []
    for i, tr in enumerate(batch):
        p = [turn["answer_beliefs"] for turn in tr["turns"]]
        for t in range(len(p)):
            last = t == len(p) - 1
            rows.append(((tr["group"], last, i), tr["outcomes"] if last else p[t + 1] - p[t]))
    z = among(rows, lambda row: row[:2])
    results = []
    for i in range(len(batch)):
        results += to_go([x for (row, _), x in zip(rows, z, strict=True) if row[2] == i])
    return results


def rlvmr(batch):
    rows = [((tr["group"], turn["tags"]), turn["process_rewards"]) for tr in batch for turn in tr["turns"]]
    of_tag = [0.0 if row[1] < 0 else x for (row, _), x in zip(rows, among(rows, lambda row: row), strict=True)]
    return added(scaled(0.5, over_turns(batch, per_trajectory(batch, outcome))), scaled(0.5, of_tag))


def spa(batch):
    results = []
    for tr in batch:
        rewards = [turn["contributions"] + 0.5 * turn["grounded"] for turn in tr["turns"]]
        if rewards:
            rewards[-1] += tr["outcomes"] - sum(turn["contributions"] for turn in tr["turns"])
        results += recurrence(rewards, [turn["values"] for turn in tr["turns"]], tr["last_values"], 0.99, 0.95)
    return whiten(results)


def oprl(batch):
    rows = [(tr["group"], turn["implicit"]) for tr in batch for turn in tr["turns"]]
    largest = max((abs(x) for _, x in rows), default=0.0) + 1e-6
    rows = [(row, x / largest) for row, x in rows]
    episode = over_turns(batch, per_trajectory(batch, outcome, scale=False, center="leave_one_out"))
    return added(episode, among(rows, lambda row: row, scale=False, center="leave_one_out"))


def mira(batch):
    results = []
    for tr in batch:
        phi = [turn["potentials"] for turn in tr["turns"]]
        ahead = [*phi[1:], tr["last_potentials"]] if phi else []
        rewards = [r + 0.3 * (0.95 * b - a) for r, a, b in zip(turn_rewards(tr), phi, ahead, strict=True)]
        results += recurrence(rewards, [turn["values"] for turn in tr["turns"]], tr["last_values"], 0.95, 0.95)
    return whiten(results)


def through(batch, turn):
    return [tr for tr in batch if any(other["node"] == turn["node"] for other in tr["turns"])]


def tree_ps(batch):
    results = []
    for tr in batch:
        root = parent = mean([earned(other) for other in siblings(batch, tr)])
        for turn in tr["turns"]:
            value = mean([earned(other) for other in through(batch, turn)])
            results.append((value - root) + (value - parent))
            parent = value
    return results


def portool(batch):
    z = per_trajectory(batch, outcome)
    place = {id(tr): i for i, tr in enumerate(batch)}
    reward, of_trajectory, children = {}, {}, {}
    for tr in batch:
        parent = ("root", tr["group"])
        for t, turn in enumerate(tr["turns"]):
            paths = through(batch, turn)
            reward[turn["node"]] = mean(
                [0.95 ** (len(p["turns"]) - 1 - t) * p["outcomes"] + turn["process_rewards"] for p in paths]
            )
            of_trajectory[turn["node"]] = mean([z[place[id(p)]] for p in paths])
            children.setdefault(parent, set()).add(turn["node"])
            parent = turn["node"]
    fork = {n: against(reward[n], [reward[m] for m in siblings]) for siblings in children.values() for n in siblings}
    return [of_trajectory[turn["node"]] + fork[turn["node"]] for tr in batch for turn in tr["turns"]]


def arpo(batch):
    z = per_trajectory(batch, earned)
    place = {id(tr): i for i, tr in enumerate(batch)}
    return [mean([z[place[id(p)]] for p in through(batch, turn)]) for tr in batch for turn in tr["turns"]]


def toolpo(batch):
    success = per_trajectory(batch, outcome, scale=False)
    actions = per_trajectory(batch, lambda tr: tr["action_rewards"], scale=False)
    return [
        success[i] + (actions[i] if turn["calls"] else 0.0)
        for i, tr in enumerate(batch)
        for turn in tr["turns"]
        for _ in turn["tokens"]
    ]


def flow_grpo(batch):
    rows = [(tr["group"], tr["outcomes"]) for tr in batch for _ in tr["turns"]]
    return among(rows, lambda row: row)


def mars(batch):
    rows = [(tr["roles"], g) for tr, _, _, g in steps(batch, 1.0)]
    alone = {role for role in (0, 1) if sum(tr["roles"] == role for tr in batch) == 1}
    return [0.0 if row in alone else x for (row, _), x in zip(rows, among(rows, lambda r: r, scale=False), strict=True)]


def dr_mas(batch):
    return among([((tr["group"], tr["roles"]), earned(tr)) for tr in batch], lambda row: row)


def role_normalized(batch):
    rows = [(tr["roles"], g) for tr in batch for g in to_go(token_rewards(tr))]
    results = []
    for role, g in rows:
        others = [x for other, x in rows if other == role]
        if max(others) == min(others):
            results.append(0.0)
        else:
            results.append((g - mean(others)) / math.sqrt(max(std(others, ddof=0) ** 2, 1e-8)))
    return results


def hrpo(batch):
    local = [0.5 * turn["process_rewards"] for tr in batch for turn in tr["turns"]]
    return added(over_turns(batch, per_trajectory(batch, outcome)), local)


def difficulty_weighted(batch):
    middle = mean([tr["hardness"] for tr in batch])
    weights = [min(max(tr["hardness"] / middle, 1 / 3), 3.0) for tr in batch]
    return [w * a for w, a in zip(weights, per_trajectory(batch, earned, scale=False), strict=True)]


def dgrpo(batch):
    weights = [max(1 - mean([earned(other) for other in siblings(batch, tr)]), 0.25) for tr in batch]
    return [a * w / mean(weights) for a, w in zip(per_trajectory(batch, earned), weights, strict=True)]
