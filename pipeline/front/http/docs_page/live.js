// The live view: the graph with its figures, the Op that is chosen, recent errors, and the models' versions.

const POLL_MS = 3000;
const FIRST_POLLS_MS = 1000; // until there is a window
const MOST_GRAPHS = 12;

const live = { samples: [], chosen: null, paused: false, timer: 0, opened: new Set(), boxes: [], parts: null };

function isLive() {
  return location.hash === "#live";
}

// The pictures to draw: each DAG and ensemble, and one with all other Ops.
function picturesOf(answer, width) {
  const graphs = answer.models.filter((model) => model.steps.length && !model.op);
  const drawn = new Set(graphs.flatMap((model) => model.steps.map((step) => step.op)));
  const others = Object.keys(answer.ops).filter((op) => !drawn.has(op)).sort();
  const columns = Math.max(1, Math.floor((width - 2 * BOX.margin + BOX.right) / (BOX.width + BOX.right)));
  const steps = others.map((op) => ({ name: op, op, inputs: [], jumps: [] }));
  const grid = steps.length ? [{ name: graphs.length ? words.live.other_ops : answer.service, steps, columns, response: "" }] : [];
  return [...graphs.slice(0, MOST_GRAPHS), ...grid];
}

function fill(element, ...children) {
  element.replaceChildren(...children);
}

// Rewrites a part of the page only where its content has changed, and puts the focus back.
function refill(element, content, create) {
  const text = JSON.stringify(content);
  if (element.content === text) return;
  element.content = text;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  fill(element, ...create());
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function chooseOp(op) {
  live.chosen = op;
  updateLive();
  live.parts.details.querySelector("h2").focus();
}

function opButton(op) {
  const button = make("button", { type: "button", className: "link", textContent: op });
  button.dataset.key = `op ${op}`;
  button.addEventListener("click", () => chooseOp(op));
  return button;
}

// The skeleton of the view; updateLive fills it.
function liveElement() {
  const told = words.live;
  const parts = {
    facts: make("dl", { className: "totals" }),
    finds: make("div", { className: "row finds" }),
    message: make("p", { className: "bad", role: "status", hidden: true }),
    graphs: make("div", { className: "graphs" }),
    upgrade: make("section", { className: "upgrade card", hidden: true }),
    details: make("section", { className: "details card", hidden: true }),
    errors: make("div"), models: make("div"),
  };
  const pause = make("button", { type: "button", className: "choice" });
  const showPause = () => {
    pause.textContent = live.paused ? told.resume : told.pause;
  };
  pause.addEventListener("click", () => {
    live.paused = !live.paused;
    showPause();
    pollLive();
  });
  showPause();
  const overview = make("section", { className: "overview" },
    make("div", { className: "row" }, make("h2", { textContent: told.heading }), pause), parts.message, parts.facts, parts.finds, parts.graphs);
  live.parts = parts;
  new ResizeObserver(() => updateLive()).observe(parts.graphs);
  const part = (name, heading, body) => make("section", { className: name }, make("h2", { textContent: heading }), body);
  return [overview, parts.details, parts.upgrade, part("errors", told.errors, parts.errors), part("models", told.models, parts.models)];
}

function updateLive() {
  const { samples, parts } = live;
  if (!parts || !parts.graphs.isConnected || !samples.length) return;
  const range = windowOf(samples);
  const figures = new Map(Object.keys(range.totals.ops).map((op) => [op, latestFigures(op, range)]));
  const slowest = slowestOf([...figures.values()].filter((op) => !op.isOld)) || slowestOf([...figures.values()]);
  showTotals(range, slowest);
  showGraphs(range.totals, figures, slowest);
  showDetails(range.totals, figures);
  refill(parts.errors, [range.totals.errors, range.totals.outcomes, language], () => errorElements(range.totals));
  parts.upgrade.hidden = !range.totals.upgrade;
  refill(parts.upgrade, [range.totals.upgrade, language], () => (range.totals.upgrade ? upgradeElements(range.totals.upgrade) : []));
  refill(parts.models, [range.totals.models, modelEngines(range.totals), language], () => [modelTable(range.totals)]);
}

function showTotals({ totals, since, seconds }, slowest) {
  const told = words.live;
  const requests = histogramIn(totals.requests, since?.requests);
  const [p50, p99] = [0.5, 0.99].map((quantile) => timeText(quantileOf(requests, totals.bounds, quantile)));
  fill(live.parts.facts,
    ...fact(words.state, make("span", { className: `state ${totals.ready ? "good" : "bad"}`, textContent: totals.ready ? words.ready : words.starting })),
    ...fact(told.rate, rateText(seconds ? requests.count / seconds : null)),
    ...fact("p50 / p99", `${p50} / ${p99}`), ...fact(told.pending, totals.pending), ...fact(told.front_memory, memoryText(totals.memory)));
  const failed = sum(totals.errors.map((cause) => cause.count));
  refill(live.parts.finds, [slowest?.name, slowest && timeText(slowest.seconds), failed, language], () => {
    const slow = make("button", { type: "button", className: "find", disabled: slowest === null,
      textContent: slowest === null ? told.no_requests : filled(told.slowest, slowest.name, timeText(slowest.seconds)) });
    slow.dataset.key = "slowest";
    slow.addEventListener("click", () => chooseOp(slowest.name));
    const latest = make("button", { type: "button", className: "find", disabled: !failed,
      textContent: failed ? filled(told.latest_error, totals.errors[0].kind, failed) : told.no_errors });
    latest.dataset.key = "latest";
    latest.addEventListener("click", () => openCause(causeKey(totals.errors[0])));
    return [slow, latest];
  });
}

function showGraphs(totals, figures, slowest) {
  const { graphs } = live.parts;
  const width = graphs.clientWidth;
  if (!width) return; // it is not laid out yet; the observer reports its size
  const pictures = picturesOf(totals, width);
  refill(graphs, [pictures, width, language], () => {
    live.boxes = [];
    return pictures.map((picture) => {
      const { element, boxes } = graphElement(picture, width, chooseOp);
      live.boxes.push(...boxes);
      return make("figure", {}, make("figcaption", { textContent: picture.name }), element);
    });
  });
  for (const box of live.boxes) box.update(figures.get(box.op) || null, box.op === slowest?.name, box.op === live.chosen);
}

// The time of a request in an Op, as one bar of its stages.
function stageBar(op) {
  const told = words.live;
  const parts = Object.entries(op.stages).map(([name, seconds]) => {
    const part = make("span", { className: `stage ${name}` });
    part.style.width = `${op.seconds ? (100 * seconds) / op.seconds : 0}%`;
    return part;
  });
  const legend = Object.entries(op.stages).map(([name, seconds]) =>
    make("li", { className: `stage-name ${name}`, textContent: `${told.stages[name]} ${timeText(seconds)}` }));
  const bar = make("div", { className: "stages" }, ...parts);
  bar.setAttribute("aria-hidden", "true"); // the list has the same figures
  return [bar, make("ul", { className: "legend" }, ...legend)];
}

function showDetails(totals, figures) {
  const { details } = live.parts;
  const op = figures.get(live.chosen) || null;
  details.hidden = op === null;
  if (op === null) return;
  const told = words.live;
  if (details.op !== `${op.name} ${language}`) {
    details.op = `${op.name} ${language}`;
    details.figures = make("div");
    details.causes = make("div");
    fill(details, make("h2", { textContent: `${told.op} ${op.name}`, tabIndex: -1 }), details.figures, details.causes);
  }
  const state = make("span", { className: `state ${op.ready ? "good" : "bad"}`,
    textContent: filled(words.instances, op.ready ? words.ready : words.starting, op.ready, op.instances) });
  fill(details.figures,
    make("p", { className: "caption", textContent: filled(op.isOld ? told.mean_time_ever : told.mean_time, timeText(op.requests ? op.seconds : null)) }), ...stageBar(op),
    make("dl", {}, ...fact(words.state, state), ...fact(told.rate, rateText(op.rate)),
      ...fact(told.run_times, op.run.map(timeText).join(" / ")), ...fact(told.queue_times, op.queue.map(timeText).join(" / ")),
      ...fact(told.waiting, op.waiting), ...fact(told.batch, op.batch === null ? "–" : op.batch.toFixed(2)),
      ...fact(told.memory, memoryText(op.memory)), ...fact(told.restarts, op.restarts), ...fact(told.retried, op.retried),
      ...fact(told.failed, filled(told.failed_in, op.errors, op.errorsEver)),
      ...(op.version ? fact(words.version, op.version) : []), ...(op.engine ? fact(words.engine, op.engine) : [])));
  const causes = totals.errors.filter((cause) => cause.op === op.name);
  refill(details.causes, [causes, language], () => causes.map((cause) => {
    const button = make("button", { type: "button", className: "link", textContent: `${cause.kind}: ${cause.user_place || cause.message || meaningOf(cause)}` });
    button.dataset.key = causeKey(cause);
    button.addEventListener("click", () => openCause(causeKey(cause)));
    return make("p", {}, button);
  }));
}

function modelEngines(totals) {
  return totals.models.map((model) => totals.ops[model.op]?.engine || "");
}

// Models with their versions and states; a repository's also while they load and where they can't be served.
function modelTable(totals) {
  const engines = modelEngines(totals);
  const heads = [words.choose, words.version, words.engine, words.state, words.reason];
  const rows = totals.models.map((model, at) => {
    const ops = [...new Set(model.steps.map((step) => step.op))];
    const name = ops.length === 1 ? opButton(ops[0]) : make("span");
    name.textContent = model.name;
    const state = make("span", { className: `state ${model.state === "READY" ? "good" : "bad"}`, textContent: model.state });
    const cells = [name, model.version, engines[at], state, model.reason];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  const head = make("tr", {}, ...heads.map((text) => make("th", { textContent: text, scope: "col" })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

async function pollLive() {
  clearTimeout(live.timer);
  if (!isLive() || live.paused || document.visibilityState !== "visible" || !live.parts) return;
  let problem = "";
  try {
    const response = await fetch(absolute("/overview.json"), { headers: keyHeader() });
    if (response.ok) addSample(live.samples, await response.json());
    else problem = `${response.status} ${response.statusText}`;
  } catch (error) {
    problem = error.message;
  }
  Object.assign(live.parts.message, { hidden: !problem, textContent: problem && words.live.unread + problem });
  updateLive();
  clearTimeout(live.timer);
  live.timer = setTimeout(pollLive, live.samples.length < 3 ? FIRST_POLLS_MS : POLL_MS);
}

document.addEventListener("visibilitychange", () => pollLive());
