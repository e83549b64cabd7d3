// The page: loads the description, and shows the model that is chosen.

let description = null;
let shown = null; // the model that is shown, and the element with its state
const answers = new Map(); // the last answer by model

// The form of the chosen example, below a button for each example.
function attemptElement(model) {
  const section = make("section", { className: "attempt" });
  const heading = make("h2", { textContent: words.attempt });
  if (!model.operation) {
    section.append(heading, make("p", { textContent: words.unasked }));
    return section;
  }
  const examples = examplesOf(model);
  const open = (example) => {
    const { form, elements } = formElements(example);
    section.replaceChildren(heading, ...exampleButtons(examples, example, choose), ...elements);
    if (model.similarity) section.append(similarityElement());
    return form;
  };
  const choose = (example) => {
    keepEdit("examples", model.name, example.place);
    answers.delete(model.name);
    const form = open(example);
    form.reset(); // the values of the example, in place of kept edits
    (example.files || []).forEach(form.pick);
    section.querySelector(".examples [aria-pressed=true]").focus();
  };
  open(examples.find((one) => one.place === edit("examples", model.name)) || examples[0]);
  return section;
}

function formElements(model) {
  const form = inputForm(model, () => changed());
  const place = make("div", { className: "place" });
  const showAnswer = () => {
    place.replaceChildren(...(answers.has(model.name) ? [answerElement(answers.get(model.name), model)] : []));
  };
  const { send, state, go } = sender(() => requestOf(model, form, true), (told) => {
    if (told === null) answers.delete(model.name);
    else answers.set(model.name, told);
    showAnswer();
    askReadiness();
  });
  const reset = make("button", { type: "button", className: "link", textContent: words.reset });
  const openai = () => model.openai && !model.place && form.fields.length === 1 ? openaiRequest(model, form.fields[0]) : null;
  const empty = { ...(openai() ? { "OpenAI curl": "" } : {}), curl: "", Python: "" };
  const commands = commandBox(() => {
    const request = requestOf(model, form, false);
    if (request === null) return empty;
    return { ...(openai() ? { "OpenAI curl": curlOf(openai()) } : {}), ...commandTexts(request) };
  });
  const changed = () => {
    reset.hidden = !form.edited();
    commands.refresh();
  };
  reset.addEventListener("click", () => {
    form.reset();
    changed();
  });
  changed();
  showAnswer();
  sendsOnCtrlEnter(form.element, go);
  const row = make("div", { className: "row" }, send, state, reset,
    make("small", { className: "hint", textContent: words.again }));
  return { form, elements: [form.element, row, place, commands.element] };
}

function openaiRequest(model, field) {
  const body = `{"model": ${JSON.stringify(model.name)}, "input": [${field.parts()[0]}]}`;
  return { url: absolute(model.openai.path), method: "POST", media: JSON_MEDIA, parts: [body] };
}

// Two texts, and the cosine of their vectors.
function similarityElement() {
  const texts = words.similarity_examples.map((text, at) => {
    const label = filled(words.text_number, at + 1);
    const input = make("input", { value: text, autocomplete: "off", dir: "auto" });
    input.setAttribute("aria-label", label);
    return input;
  });
  const result = make("output", { className: "cosine" });
  const request = () => {
    const [source, other] = texts.map((input) => JSON.stringify(input.value));
    const body = `{"inputs": {"source_sentence": ${source}, "sentences": [${other}]}}`;
    return { url: absolute("/similarity"), method: "POST", media: JSON_MEDIA, parts: [body] };
  };
  const { send, state, go } = sender(request, (told) => {
    const answer = told === null ? null : parsed(told.text);
    result.textContent = Array.isArray(answer) ? answer[0].toFixed(4) : refusalOf(answer);
  });
  const element = make("div", { className: "similarity field text" }, make("h3", { textContent: words.similarity }),
    ...texts, make("div", { className: "row" }, send, state), result);
  sendsOnCtrlEnter(element, go);
  return element;
}

// The name of the model that is shown, to be changed where there are others.
function nameElement(models, chosen) {
  if (models.length < 2) return make("h2", { textContent: chosen.name });
  const select = make("select", { id: "model" }, ...models.map((model) => make("option", {
    value: model.name, selected: model === chosen,
    textContent: `${model.name} (${model.state || (model.op ? filled(words.alone, model.op) : words.service)})`,
  })));
  select.addEventListener("change", () => choose(select.value));
  select.setAttribute("aria-label", words.choose);
  return make("h2", {}, select);
}

function choose(name) {
  keepEdit("page", "model", name);
  show();
  document.getElementById("model")?.focus();
}

function show() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.getElementById("key-label").textContent = words.key;
  document.getElementById("use-key").textContent = words.use;
  document.getElementById("language").textContent = words.other;
  for (const link of document.querySelectorAll("nav .view")) {
    link.textContent = words.views[link.hash];
    if ((link.hash === "#live") === isLive()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const lead = document.getElementById("lead");
  lead.textContent = description !== null ? "" : apiKey() === "" ? words.unkeyed : words.unknown;
  lead.hidden = description !== null;
  if (description === null) return;
  document.getElementById("title").textContent = document.title = description.info.title;
  if (isLive()) {
    shown = null;
    document.getElementById("main").replaceChildren(...liveElement());
    updateLive();
    pollLive();
    return;
  }
  const models = modelsOf(description);
  const model = models.find((one) => one.name === edit("page", "model")) || models[0] || null;
  const parts = [];
  shown = null;
  const repository = repositoryElement(description, models, model, choose);
  if (repository !== null) parts.push(repository);
  if (model !== null) {
    const card = cardElement(model, nameElement(models, model));
    shown = { model, state: card.state };
    parts.push(card.element, attemptElement(model));
  }
  parts.push(make("section", { className: "endpoints" }, make("h2", { textContent: words.endpoints }),
    ...endpointElements(description, model)));
  document.getElementById("main").replaceChildren(...parts);
  askReadiness();
}

async function load() {
  try {
    const response = await fetch(new URL("openapi.json", document.baseURI), { headers: keyHeader() });
    if (response.status === 401) document.getElementById("keyed").hidden = false;
    description = response.ok ? await response.json() : null;
    if (description !== null) openKept(description.info.title);
    show();
  } catch (error) {
    document.getElementById("lead").textContent = words.unread + error.message;
  }
}

document.getElementById("language").addEventListener("click", () => {
  speak(language === "zh" ? "en" : "zh");
  writeKept(KEPT_LANGUAGE, language);
  show();
});
addEventListener("hashchange", show);
document.getElementById("keyed").addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
const askReadiness = watchReadiness(() => shown);
speak(readKept(KEPT_LANGUAGE) || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"));
load();
