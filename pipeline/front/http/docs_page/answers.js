// An answer as people read it: the labels of the first rows with bars, and all of it as JSON.

const MOST_BARS = 10;
const MOST_ROWS = 10;
const SHARES = ["score", "confidence", "probability", "prob"];

function pretty(text) {
  if (text.length > 200000) return text.slice(0, 200000) + " …";
  if (/(^|[^\d.])\d{16,}/.test(text)) return text; // JavaScript would round such a number
  try {
    return JSON.stringify(JSON.parse(text), null, 2).replace(/\[\s+([^\[\]{}]*?)\s+\]/g,
      (whole, inner) => inner.length < 2000 ? `[${inner.replace(/\s*\n\s*/g, " ")}]` : whole);
  } catch {
    return text;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// What a refusal says; empty where it says nothing.
function refusalOf(answer) {
  if (answer === null || typeof answer !== "object") return "";
  const text = answer.error || answer.err_msg || answer.message;
  return typeof text === "string" ? text : "";
}

function isList(value, type) {
  return Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === type);
}

function shares(scores) {
  const sum = scores.reduce((all, one) => all + one, 0);
  if (Math.abs(sum - 1) < 0.001 && scores.every((one) => one >= 0)) return scores;
  const most = Math.max(...scores);
  const powers = scores.map((one) => Math.exp(one - most));
  const all = powers.reduce((sum, one) => sum + one, 0);
  return powers.map((one) => one / all);
}

// The scores of `labels`; of all classes where the row has the model's own output, too, and any number may be meant.
function barsOf(labels, scores, row, prefix, model) {
  const [alias, output] = Object.entries(model.outputs || {})
    .find(([name, one]) => one.kind === "multilabel" && ["", `${name}_`].includes(prefix)) || [];
  const named = output ? output.labels || model.labels || [] : [];
  if (!named.length || !isList(row[alias], "number") || row[alias].length !== named.length) {
    return labels.map((label, at) => ({ label: String(label), share: scores[at] }));
  }
  const share = output.activation === "sigmoid" ? (one) => 1 / (1 + Math.exp(-one)) : (one) => one;
  return named.map((label, at) => ({ label, share: share(row[alias][at]), meant: labels.includes(label) }));
}

// Groups of labels in a row of an answer: {name, of, bars: [{label, share, meant}]} or {name, of, tokens}. A share is
// null where none is told, `meant` is undefined where all are.
function groupsOf(row, model) {
  if (row === null || typeof row !== "object" || Array.isArray(row)) return [];
  const groups = [];
  for (const [name, value] of Object.entries(row)) {
    const prefix = name.replace(/labels?$/, "");
    const scores = row[`${prefix}scores`];
    if (name.endsWith("labels") && Array.isArray(value) && Array.isArray(scores) && value.length === scores.length) {
      groups.push({ name, of: prefix, bars: barsOf(value, scores, row, prefix, model) });
    } else if (name.endsWith("label") && typeof value === "string") {
      const share = SHARES.map((key) => row[prefix + key]).find((one) => typeof one === "number");
      groups.push({ name, of: prefix, bars: [{ label: value, share: share ?? null }] });
    } else if (isList(value, "string") && name.endsWith("label")) {
      groups.push({ name, of: prefix, tokens: value });
    }
  }
  const several = groups.filter((group) => group.name.endsWith("labels"));
  // The best label by itself says less than a list of them.
  const kept = groups.filter((group) => group.bars === undefined || several.includes(group)
    || !several.some((other) => other.of === group.of));
  return kept.length ? kept : scoredGroups(row, model);
}

// Scores of as many classes as the model has labels, where an answer has them alone.
function scoredGroups(row, model) {
  const labels = model.labels || [];
  return Object.entries(row)
    .filter(([, value]) => labels.length > 1 && isList(value, "number") && value.length === labels.length)
    .map(([name, value]) => ({ name, bars: shares(value).map((share, at) => ({ label: labels[at], share })) }));
}

function barOf({ label, share, meant }) {
  const width = Math.min(1, Math.max(0, share ?? 0));
  const fill = make("span", { className: "fill" });
  fill.style.width = `${100 * width}%`;
  return make("li", { className: meant === false ? "unmeant" : "" },
    make("span", { className: "name", textContent: label }),
    make("span", { className: "share", textContent: share === null ? "" : `${(100 * share).toFixed(1)} %` }),
    ...(share === null ? [] : [make("span", { className: "bar" }, fill)]));
}

function groupElement(group) {
  if (group.tokens) {
    return make("ul", { className: "tokens" }, ...group.tokens.map((text) => make("li", { textContent: text })));
  }
  const bars = [...group.bars].sort((one, other) => (other.share ?? 0) - (one.share ?? 0));
  const list = make("ol", { className: "bars" }, ...bars.slice(0, MOST_BARS).map(barOf));
  const captions = [
    group.bars.every((bar) => bar.meant === false) && words.none,
    bars.length > MOST_BARS && filled(words.scores, bars.length),
  ].filter(Boolean);
  return make("div", {}, ...captions.map((text) => make("p", { className: "caption", textContent: text })), list);
}

// number: of a row among others, null for the only one.
function rowElements(row, number, model) {
  const groups = groupsOf(row, model).map(groupElement);
  if (number === null || !groups.length) return groups;
  return [make("p", { className: "caption", textContent: filled(words.of_row, number) }), ...groups];
}

// told: what `sendRequest` returned.
function answerElement(told, model) {
  const answer = parsed(told.text);
  const json = make("pre", { className: "json", tabIndex: 0, textContent: told.text === "" ? words.empty : pretty(told.text) });
  if (!told.good || (answer !== null && answer.err_no)) {
    return make("div", { className: "answer whole" }, make("p", { className: "refusal", textContent: refusalOf(answer) }), json);
  }
  const rows = answer !== null && Array.isArray(answer.predictions) ? answer.predictions : [];
  const shown = rows.slice(0, MOST_ROWS).flatMap((row, at) => rowElements(row, rows.length > 1 ? at : null, model));
  if (!shown.length) return make("div", { className: "answer whole" }, json);
  return make("div", { className: "answer" }, make("div", { className: "labels" }, ...shown), json);
}
