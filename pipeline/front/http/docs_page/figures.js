// Figures of the last half minute: totals of the service, minus totals of an earlier answer.

const WINDOW_MS = 30000;
const MOST_SAMPLES = 40;

// totals: the latest answer of /overview.json. since: an earlier one, or null: all figures since the start.
function windowOf(samples) {
  const totals = samples[samples.length - 1];
  const since = samples.length > 1 ? samples[0] : null;
  return { totals, since, seconds: since === null ? 0 : Math.max(0.001, totals.at - since.at) };
}

// Appends an answer, and drops answers that are older than the window. A service that was restarted, or that
// loaded an Op again, has smaller totals: its window begins anew.
function addSample(samples, answer) {
  const last = samples[samples.length - 1];
  if (last && shrank(last, answer)) samples.length = 0;
  samples.push(answer);
  while (samples.length > 2 && (answer.at - samples[1].at) * 1000 >= WINDOW_MS) samples.shift();
  if (samples.length > MOST_SAMPLES) samples.shift();
}

function shrank(before, now) {
  const fewer = (name) => !now.ops[name] || sum(now.ops[name].queue[0]) < sum(before.ops[name].queue[0]);
  return now.at < before.at || sum(now.requests[0]) < sum(before.requests[0]) || Object.keys(before.ops).some(fewer);
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

function grown(now, before) {
  return now - (before || 0);
}

// The counts of a histogram's buckets, and the sum of its values, in the window.
function histogramIn(now, before) {
  const counts = now[0].map((count, at) => grown(count, before?.[0][at]));
  return { counts, count: sum(counts), total: grown(now[1], before?.[1]) };
}

// A quantile, interpolated in its bucket; null without values. Beyond the last bound it is the last bound.
function quantileOf(histogram, bounds, quantile) {
  if (!histogram.count) return null;
  let rank = quantile * histogram.count;
  for (const [at, count] of histogram.counts.entries()) {
    if (rank <= count && count) {
      const low = at ? bounds[at - 1] : 0;
      return at < bounds.length ? low + (bounds[at] - low) * (rank / count) : low;
    }
    rank -= count;
  }
  return bounds[bounds.length - 1];
}

// What one Op did in the window. stages: mean seconds of a request in the queue and in each hook.
function figuresOf(name, { totals, since, seconds }) {
  const now = totals.ops[name];
  if (!now) return null;
  const before = since?.ops[name];
  const queue = histogramIn(now.queue, before?.queue);
  const run = histogramIn(now.run, before?.run);
  const answered = grown(now.answered, before?.answered);
  const mean = (key) => (answered ? grown(now[key], before?.[key]) / answered : 0);
  const batches = grown(now.batches, before?.batches);
  const stages = {
    queue: queue.count ? queue.total / queue.count : 0,
    preprocess: mean("preprocess_s"), run: mean("run_s"), postprocess: mean("postprocess_s"),
  };
  return {
    ...now, name, stages, seconds: sum(Object.values(stages)), requests: queue.count,
    rate: seconds ? queue.count / seconds : null,
    queue: [0.5, 0.99].map((quantile) => quantileOf(queue, totals.bounds, quantile)),
    run: [0.5, 0.99].map((quantile) => quantileOf(run, totals.bounds, quantile)),
    batch: batches ? grown(now.rows, before?.rows) / batches : null,
    errors: grown(now.errors, before?.errors), errorsEver: now.errors,
  };
}

// The figures of the window; without requests in it, the times since the start.
function latestFigures(name, range) {
  const recent = figuresOf(name, range);
  if (recent.requests || range.since === null) return { ...recent, isOld: range.since === null };
  const all = figuresOf(name, { totals: range.totals, since: null, seconds: 0 });
  return { ...all, rate: recent.rate, errors: recent.errors, isOld: true };
}

// The Op with the longest mean time of a request, or null.
function slowestOf(figures) {
  const used = figures.filter((op) => op !== null && op.seconds > 0);
  return used.length ? used.reduce((one, other) => (other.seconds > one.seconds ? other : one)) : null;
}

function rateText(rate) {
  if (rate === null) return "–";
  return rate >= 100 ? rate.toFixed(0) : rate >= 10 ? rate.toFixed(1) : rate.toFixed(2);
}

function timeText(seconds) {
  if (seconds === null) return "–";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

function memoryText(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(0)} MB`;
}
