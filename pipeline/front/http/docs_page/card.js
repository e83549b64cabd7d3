// The card of a model: what it is, and whether it is ready.

const MOST_LABELS = 12;
const READY_EVERY_MS = 5000;
const FORM_TAGS = ["v1", "key/value"]; // the protocols of the form, until another example is chosen

// The models of the description, each with the operation that its fields are sent to, if there is one.
function modelsOf(description) {
  const operations = operationsOf(description.paths);
  return Object.entries(description["x-models"] || {}).map(([name, card]) => {
    const own = operations.filter((operation) => operation["x-model"] === name);
    const operation = FORM_TAGS.map((tag) => own.find((one) => one.tag === tag && one.requestBody)).find(Boolean);
    const content = operation ? operation.requestBody.content : {};
    const json = content[JSON_MEDIA] || {};
    const keyValue = own.find((one) => one.tag === "key/value");
    const v2 = own.find((one) => one.tag === "v2" && one.path.endsWith("/infer"));
    return {
      ...card, name, operation, media: Object.keys(content), raw: card.op ? {} : description["x-raw-bodies"] || {},
      openai: own.find((one) => one.tag === "OpenAI" && one.requestBody),
      similarity: own.find((one) => one.path === "/similarity"),
      row: rowOf(json.example), beside: json.example?.parameters, schema: schemaOf(json.schema),
      inputsOfV2: exampleOf(v2)?.inputs,
      keyValues: asMapping(exampleOf(keyValue)),
      posts: own.filter((one) => one.requestBody?.content[JSON_MEDIA]),
      service: keyValue && decodeURIComponent(keyValue.path.split("/")[1]),
    };
  });
}

function operationsOf(paths) {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, told]) => ({ path, method: method.toUpperCase(), tag: told.tags[0], ...told })));
}

function exampleOf(operation) {
  return operation?.requestBody?.content[JSON_MEDIA]?.example;
}

function asMapping(example) {
  return example && Object.fromEntries(example.key.map((key, at) => [key, example.value[at]]));
}

function rowOf(example) {
  return example?.instances ? example.instances[0] : asMapping(example);
}

function schemaOf(schema) {
  return schema?.properties?.instances?.items?.properties || {};
}

function fact(name, ...values) {
  return [make("dt", { textContent: name }), make("dd", {}, ...values)];
}

function labelList(labels) {
  const item = (label) => make("li", { textContent: label });
  const list = make("ul", { className: "chips" }, ...labels.slice(0, MOST_LABELS).map(item));
  const rest = labels.slice(MOST_LABELS);
  if (!rest.length) return list;
  const more = make("button", { type: "button", textContent: filled(words.more, rest.length) });
  list.append(make("li", {}, more));
  more.addEventListener("click", () => {
    more.parentElement.remove();
    list.append(...rest.map(item));
  });
  return list;
}

// What the model is for: as its conversion has noted it, else as its fields and labels let one know.
function taskOf(model) {
  const given = Object.values(model.outputs || {}).map((output) => output.kind).find((kind) => kind !== "tensor");
  if (given === "entities" || given === "zero-shot") return words.tasks[given];
  if (model.task) return words.tasks[model.task] || model.task;
  if (given === "tokens" || given === "multilabel") return words.tasks[given];
  const taken = Object.values(model.inputs || {}).length ? Object.values(model.inputs) : fieldsOf(model);
  const kinds = new Set(taken.map((one) => one.kind));
  return (given || model.labels) && kinds.size === 1 && words.tasks[[...kinds][0]] || "";
}

function cardElement(model, name) {
  const state = make("span", { className: "state" });
  const task = taskOf(model);
  const facts = [
    ...(task ? fact(words.task, task) : []),
    ...(model.engine ? fact(words.engine, model.engine) : []),
    ...fact(words.version, model.version),
    ...fact(words.state, state),
  ];
  if (model.labels) {
    const [name, list] = fact(`${words.labels} (${model.labels.length})`, labelList(model.labels));
    list.className = "wide";
    facts.push(name, list);
  }
  return { element: make("section", { className: "card" }, name, make("dl", {}, ...facts)), state };
}

// What /health/ready says of the Ops that a model's requests go through.
function showReadiness(told, model, state) {
  const ops = model.ops.map((op) => told.ops[op]).filter(Boolean);
  const ready = ops.length === model.ops.length && ops.every((op) => op.ready > 0);
  const count = (name) => ops.reduce((sum, op) => sum + op[name], 0);
  state.className = `state ${ready ? "good" : "bad"}`;
  const text = filled(words.instances, ready ? words.ready : words.starting, count("ready"), count("instances"));
  if (state.textContent !== text) state.textContent = text;
}

// Asks as long as somebody looks. shown: the model and where its state stands, of the moment.
function watchReadiness(shown) {
  const ask = async () => {
    if (document.visibilityState !== "visible" || shown() === null) return;
    try {
      const response = await fetch(absolute("/health/ready"), { headers: keyHeader() });
      const told = await response.json();
      const now = shown();
      if (now !== null && told.ops) showReadiness(told, now.model, now.state);
    } catch {
      const now = shown();
      if (now !== null) Object.assign(now.state, { className: "state bad", textContent: words.starting });
    }
  };
  setInterval(ask, READY_EVERY_MS);
  document.addEventListener("visibilitychange", ask);
  return ask;
}
