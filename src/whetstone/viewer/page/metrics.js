// Titles, descriptions and groups of metrics.

export const METRICS = {
  "episode/success": ["Success while sampling", "Fraction of training tasks solved by fresh episodes. Rises during learning."],
  "evaluation/success": ["Success on held-out tasks", "Fraction of tasks solved that are never trained on. The goal of training."],
  "reward/mean": ["Reward", "The optimized value. If it rises without success, check the reward function."],
  "policy/entropy": ["Entropy", "Entropy of the policy in nats per token. Near 0 with little success: no exploration."],
  "policy/update_kl": ["KL to the previous policy", "Change per update."],
  "policy/reference_kl": ["KL to the reference", "Distance from the initial policy."],
  "policy/clip_fraction": ["Clipped tokens", "Fraction of tokens at the clipping bound of an update."],
  "policy/staleness_mean": ["Staleness", "Mean number of updates since the tokens were sampled."],
  "episode/turns": ["Turns", "Per episode."],
  "episode/tool_calls": ["Tool calls", "Per episode."],
  "episode/action_tokens": ["Sampled tokens", "Per episode. Growth without more success is length drift."],
  "episode/invalid_fraction": ["Failed episodes", "Fraction without a score, because a tool, server or reward failed. Ideally 0."],
  "group/zero_variance_fraction": ["Groups with equal rewards", "Fraction of groups without a learning signal."],
  "sampler/mismatch_kl": ["Mismatch", "KL between sampler and learner on the same tokens. Ideally near 0."],
  "update/grad_norm": ["Gradient norm", "Before clipping. Spikes indicate an unstable update."],
  "update/learning_rate": ["Learning rate", "As scheduled."],
  "update/skipped_fraction": ["Skipped updates", "Fraction of updates that left the weights unchanged. Ideally 0."],
  "throughput/tokens_per_second": ["Tokens per second", "Of the whole step, including tools and update."],
  "throughput/episodes_per_second": ["Episodes per second", ""],
  "throughput/mfu": ["Utilization", "Fraction of the machine's arithmetic throughput that the update uses (MFU)."],
  "time/rollout": ["Sampling time", "Seconds of a step in which episodes are played."],
  "time/update": ["Update time", "Seconds of a step in which weights are updated."],
  "time/generation": ["Generation time", "Seconds during which the engine computes. Far below sampling time: the engine waits."],
  "tools/well_formed_fraction": ["Well-formed calls", "Fraction of calls with an existing tool and valid arguments."],
  "loss/supervised": ["Warm-up loss", "Negative log-likelihood of the expert's tokens. Ideally falls."],
  "loss/total": ["Loss", ""],
};

const FIRST = ["episode/success", "evaluation/success", "reward/mean", "loss/supervised", "loss/pretraining",
  "episode/action_tokens", "policy/entropy", "group/zero_variance_fraction", "throughput/tokens_per_second"];
const GROUPS = [
  ["At a glance", (key) => FIRST.includes(key)],
  ["Reward and its components", (key) => key.startsWith("reward/")],
  ["Success by kind of task", (key) => key.startsWith("success/")],
  ["Episodes, turns and calls", (key) => /^(episode|tools|group)\//.test(key) && !/invalid|retried|expired/.test(key)],
  ["The policy: entropy, KL, clipping", (key) => /^(policy|advantage)\//.test(key) && !/staleness/.test(key)],
  ["Sampler against learner: mismatch, staleness", (key) => /^(sampler|importance)\/|staleness/.test(key)],
  ["Updates", (key) => /^(update|loss|value)\b/.test(key)],
  ["Speed and utilization", (key) => /^(throughput|time|memory|cost_per_\w+)\//.test(key)],
  ["Endings and faults", (key) => /^(end_reason|flag)\/|invalid|retried|expired/.test(key)],
  ["All others", () => true],
];
const SHARE = /success|fraction|^end_reason|^flag|mfu|accuracy|share/;

export const title = (key) => METRICS[key]?.[0] ?? key.replace(/^\w+\//, "").replaceAll("_", " ");
export const meaning = (key) => METRICS[key]?.[1] ?? "";
export const isShare = (key) => SHARE.test(key);

export function grouped(keys) {
  const left = new Set(keys);
  return GROUPS.map(([name, belongs]) => {
    const mine = [...left].filter(belongs);
    for (const key of mine) left.delete(key);
    if (name === "At a glance") mine.sort((a, b) => FIRST.indexOf(a) - FIRST.indexOf(b));
    return [name, mine];
  }).filter(([, mine]) => mine.length);
}
