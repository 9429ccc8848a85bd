// What the numbers of a run are called, what they mean, and which stand together.

export const SAID = {
  "episode/success": ["Success while sampling", "Share of fresh training tasks solved. Rises where it learns."],
  "evaluation/success": ["Success on held-out tasks", "Tasks it never learns from. This is what is wanted."],
  "reward/mean": ["Reward", "What is optimised. Where it rises and success does not, look at what is paid."],
  "policy/entropy": ["Entropy", "How undecided it is, in nats a token. Near 0 with little success: it stopped exploring."],
  "policy/update_kl": ["KL to the policy before", "How far one update goes."],
  "policy/reference_kl": ["KL to the reference", "How far it went from where it began."],
  "policy/clip_fraction": ["Clipped tokens", "Share of tokens moved as far as one update may move them."],
  "policy/staleness_mean": ["Staleness", "Updates since the tokens were drawn, in the mean."],
  "episode/turns": ["Turns", "Of an episode."],
  "episode/tool_calls": ["Tool calls", "Of an episode."],
  "episode/action_tokens": ["Tokens it writes", "Of an episode. Growing without more success is drift."],
  "episode/invalid_fraction": ["Failed episodes", "Without a score: a tool, server or reward failed. 0 is right."],
  "group/zero_variance_fraction": ["Groups without a difference", "All earned the same: nothing to learn from."],
  "sampler/mismatch_kl": ["Mismatch", "How far sampler and learner disagree on the same tokens. Near 0 all along."],
  "update/grad_norm": ["Gradient norm", "Before clipping. Spikes indicate an unstable update."],
  "update/learning_rate": ["Learning rate", "As scheduled."],
  "update/skipped_fraction": ["Skipped updates", "Fraction of updates that left the weights unchanged. Ideally 0."],
  "throughput/tokens_per_second": ["Tokens a second", "Of the whole step, tools and update included."],
  "throughput/episodes_per_second": ["Episodes a second", ""],
  "throughput/mfu": ["Utilisation", "Share of the machine's arithmetic that the update uses."],
  "time/rollout": ["Sampling time", "Seconds of a step in which episodes are played."],
  "time/update": ["Update time", "Seconds of a step in which weights are updated."],
  "time/generation": ["Generation time", "Seconds during which the engine computes. Far below sampling time: it waits."],
  "tools/well_formed_fraction": ["Well-formed calls", "Share of calls that named a tool with arguments it takes."],
  "loss/supervised": ["Warm-up loss", "How surprised it is by the expert's tokens. Falls."],
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

export const title = (key) => SAID[key]?.[0] ?? key.replace(/^\w+\//, "").replaceAll("_", " ");
export const meaning = (key) => SAID[key]?.[1] ?? "";
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
