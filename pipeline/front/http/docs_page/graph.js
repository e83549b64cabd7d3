// The graph of a model as SVG: a box for each step, from left to right, or one below the other where it is narrow.

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 236, height: 112, right: 52, below: 24, margin: 26 };
const WIDEST_BOX = 340;
const MOST_STEPS = 60; // of one picture

function drawSvg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The column of each step: one more than that of the last step before it.
function columnsOf(steps) {
  const byName = new Map(steps.map((step) => [step.name, step]));
  const columns = new Map();
  const columnOf = (step) => {
    if (!columns.has(step.name)) {
      columns.set(step.name, 0); // a cycle ends here; the server sends none
      const before = step.inputs.map((name) => byName.get(name)).filter(Boolean);
      columns.set(step.name, before.length ? 1 + Math.max(...before.map(columnOf)) : 0);
    }
    return columns.get(step.name);
  };
  steps.forEach(columnOf);
  return columns;
}

// The place of each step by name, and the size of the picture.
function layoutOf(steps, columns, width) {
  const count = 1 + Math.max(...columns.values());
  const wide = 2 * BOX.margin + count * BOX.width + (count - 1) * BOX.right;
  const places = new Map();
  if (wide <= width) {
    const rows = Array(count).fill(0);
    for (const step of steps) {
      const column = columns.get(step.name);
      places.set(step.name, {
        x: BOX.margin + column * (BOX.width + BOX.right), y: 4 + rows[column] * (BOX.height + BOX.below), width: BOX.width,
      });
      rows[column] += 1;
    }
    return { places, width: wide, height: 8 + Math.max(...rows) * (BOX.height + BOX.below) - BOX.below, down: false };
  }
  const boxWidth = Math.min(WIDEST_BOX, width - 2 * BOX.margin);
  const order = [...steps].sort((one, other) => columns.get(one.name) - columns.get(other.name));
  order.forEach((step, at) => {
    places.set(step.name, { x: BOX.margin, y: BOX.margin + at * (BOX.height + BOX.below), width: boxWidth });
  });
  const height = 2 * BOX.margin + order.length * (BOX.height + BOX.below) - BOX.below;
  return { places, width: boxWidth + 2 * BOX.margin, height, down: true, order };
}

// The line from one box to another, as the path of an SVG.
function lineBetween(from, to, layout) {
  if (!layout.down) {
    const [x1, y1, x2, y2] = [from.x + from.width, from.y + BOX.height / 2, to.x - 7, to.y + BOX.height / 2];
    return `M${x1} ${y1} C${x1 + 26} ${y1} ${x2 - 26} ${y2} ${x2} ${y2}`;
  }
  const middle = from.x + from.width / 2;
  if (to.y - from.y === BOX.height + BOX.below) return `M${middle} ${from.y + BOX.height} L${middle} ${to.y - 7}`;
  const [x, y1, y2] = [from.x + from.width, from.y + BOX.height / 2, to.y + BOX.height / 2 - 12];
  return `M${x} ${y1} C${x + 22} ${y1} ${x + 22} ${y2} ${x + 7} ${y2}`;
}

// The lines where requests come in and answers go out.
function lineIn(place, layout) {
  const [x, y] = [place.x, place.y + BOX.height / 2];
  return layout.down ? `M${x + place.width / 2} 0 L${x + place.width / 2} ${place.y - 7}` : `M0 ${y} L${x - 7} ${y}`;
}

function lineOut(place, layout) {
  const [x, y] = [place.x + place.width, place.y + BOX.height / 2];
  if (!layout.down) return `M${x} ${y} L${layout.width - 7} ${y}`;
  const middle = place.x + place.width / 2;
  return `M${middle} ${place.y + BOX.height} L${middle} ${place.y + BOX.height + BOX.margin - 7}`;
}

// As many characters as fit; those of Chinese are twice as wide.
function fitted(text, width) {
  let room = width;
  for (const [at, character] of [...text].entries()) {
    room -= character.codePointAt(0) > 0x2e80 ? 2 : 1;
    if (room < 0) return `${[...text].slice(0, at - 1).join("")}…`;
  }
  return text;
}

// The box of a step. update(figures, isSlowest, isChosen) writes its figures.
function boxElement(step, place, choose) {
  const line = (y, name) => drawSvg("text", { x: 12, y, class: name });
  const [title, rates, times, queue, instances] = [line(24, "name"), line(46, ""), line(64, ""), line(82, ""), line(100, "")];
  const mark = drawSvg("text", { x: place.width - 10, y: 24, class: "mark" });
  title.textContent = fitted(step.name, Math.floor(place.width / 9) - 8);
  const element = drawSvg("g", { class: "box", role: "button", tabindex: "0", transform: `translate(${place.x} ${place.y})` },
    drawSvg("rect", { width: place.width, height: BOX.height, rx: 8 }), title, mark, rates, times, queue, instances);
  element.dataset.key = `op ${step.op}`;
  element.addEventListener("click", () => choose(step.op));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(step.op);
  });
  const update = (op, isSlowest, isChosen) => {
    const told = words.live;
    const state = op === null ? told.no_figures : op.ready ? "" : words.starting;
    mark.textContent = state || (isSlowest ? told.slowest_mark : "");
    const texts = op === null ? ["", "", "", ""] : [
      filled(told.box_rate, rateText(op.rate), op.errorsEver),
      filled(told.box_times, timeText(op.run[0] ?? op.stages.run), timeText(op.run[1])),
      filled(told.box_queue, op.waiting, timeText(op.queue[1]), op.batch === null ? "–" : op.batch.toFixed(1)),
      filled(told.box_instances, op.ready, op.instances, memoryText(op.memory)),
    ];
    [rates, times, queue, instances].forEach((text, at) => { text.textContent = texts[at]; });
    rates.setAttribute("class", op?.errors ? "failing" : "");
    const marks = { slowest: isSlowest, unready: op !== null && !op.ready, failing: op?.errors, chosen: isChosen };
    element.setAttribute("class", ["box", ...Object.keys(marks).filter((name) => marks[name])].join(" "));
    element.setAttribute("aria-pressed", String(isChosen));
    element.setAttribute("aria-label", [`${words.live.op} ${step.name}`, mark.textContent, ...texts].filter(Boolean).join(", "));
  };
  return { element, update, op: step.op };
}

let markers = 0;

// The picture of a model's steps. Its boxes are updated in place, so that the focus stays.
function graphElement(model, width, choose) {
  const steps = model.steps.slice(0, MOST_STEPS);
  // Steps of no model in common have no order: they fill the rows of a grid.
  const columns = model.columns ? new Map(steps.map((step, at) => [step.name, at % model.columns])) : columnsOf(steps);
  const layout = layoutOf(steps, columns, width);
  markers += 1;
  const id = `arrow${markers}`;
  const arrow = drawSvg("marker", { id, viewBox: "0 0 8 8", refX: 2, refY: 4, markerWidth: 8, markerHeight: 8,
    markerUnits: "userSpaceOnUse", orient: "auto" }, drawSvg("path", { d: "M0 0 L8 4 L0 8 z", class: "head" }));
  const lines = [];
  const add = (d, name = "line") => lines.push(drawSvg("path", { d, class: name, "marker-end": `url(#${id})` }));
  for (const step of steps) {
    const place = layout.places.get(step.name);
    const before = step.inputs.filter((name) => layout.places.has(name));
    if (before.length < step.inputs.length && (!layout.down || step === layout.order[0])) add(lineIn(place, layout));
    before.forEach((name) => add(lineBetween(layout.places.get(name), place, layout)));
    if (step.name === model.response && (!layout.down || step === layout.order.at(-1))) add(lineOut(place, layout));
  }
  const boxes = steps.map((step) => boxElement(step, layout.places.get(step.name), choose));
  const element = drawSvg("svg", { viewBox: `0 0 ${layout.width} ${layout.height}`, width: layout.width, height: layout.height,
    role: "group", "aria-label": filled(words.live.picture_of, model.name) },
  drawSvg("defs", {}, arrow), ...lines, ...boxes.map((box) => box.element));
  return { element, boxes };
}
