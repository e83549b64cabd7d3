// The ways to ask a model, folded: every operation with its example to edit, and gRPC as programs.

const KEPT_COMMAND = "paddlewheel:command";

// The same request as texts to copy, by name; `refresh` makes them anew. Nothing is shown where they are empty.
function commandBox(textsOf) {
  const text = make("pre", { tabIndex: 0 });
  const copy = make("button", { type: "button", textContent: words.copy });
  const names = Object.keys(textsOf());
  let chosen = names.includes(readKept(KEPT_COMMAND)) ? readKept(KEPT_COMMAND) : names[0];
  const choices = names.map((name) => make("button", { type: "button", className: "choice", textContent: name }));
  const element = make("div", { className: "commands" }, make("div", { className: "row" }, ...choices, copy), text);
  const refresh = () => {
    text.textContent = textsOf()[chosen];
    element.hidden = text.textContent === "";
    copy.textContent = words.copy;
    choices.forEach((choice) => choice.setAttribute("aria-pressed", String(choice.textContent === chosen)));
  };
  choices.forEach((choice) => choice.addEventListener("click", () => {
    chosen = choice.textContent;
    writeKept(KEPT_COMMAND, chosen);
    refresh();
  }));
  copy.addEventListener("click", async () => {
    copy.textContent = await copyText(text.textContent, text) ? words.copied : words.uncopied;
  });
  refresh();
  return { element, refresh };
}

function commandTexts(request) {
  return { curl: curlOf(request), Python: pythonOf(request) };
}

// A button that sends, and the line beside it that tells how that went. sent: is given what was answered, null for none.
function sender(requestNow, sent) {
  const send = make("button", { type: "button", className: "send", textContent: words.send });
  const state = make("span", { className: "told" });
  state.setAttribute("role", "status");
  let calling = null;
  const go = async () => {
    const request = requestNow();
    if (request === null) return;
    if (calling !== null) calling.abort();
    const own = calling = new AbortController();
    state.className = "told";
    state.textContent = words.sending;
    let told = null;
    try {
      told = await sendRequest(request, own.signal);
      state.className = told.good ? "told good" : "told bad";
      state.textContent = filled(words.answered, `${told.status} ${told.phrase}`.trim(), told.ms.toFixed(1));
    } catch (error) {
      if (own !== calling) return; // another has been sent since
      state.className = "told bad";
      state.textContent = words.failed + error.message;
    }
    if (own !== calling) return;
    calling = null;
    sent(told);
  };
  send.addEventListener("click", go);
  return { send, state, go };
}

function sendsOnCtrlEnter(element, go) {
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      go();
    }
  });
}

function openedOperation(operation) {
  const content = operation.requestBody && operation.requestBody.content[JSON_MEDIA];
  const example = content && "example" in content ? pretty(JSON.stringify(content.example)) : "";
  const input = content ? make("textarea", { spellcheck: false }) : null;
  const request = () => ({
    url: absolute(operation.path), method: operation.method, media: JSON_MEDIA,
    parts: input === null ? null : [onOneLine(input.value)],
  });
  const answer = make("pre", { className: "json", hidden: true, tabIndex: 0 });
  const { send, state, go } = sender(request, (told) => {
    answer.textContent = told === null ? "" : told.text === "" ? words.empty : pretty(told.text);
    answer.hidden = told === null;
  });
  const reset = make("button", { type: "button", className: "link", textContent: words.reset, hidden: true });
  const parts = [];
  if (input !== null) {
    input.value = edit("bodies", operation.path) ?? example;
    reset.hidden = input.value === example;
    input.rows = Math.min(20, input.value.split("\n").length + 1);
    parts.push(make("label", {}, words.body, input));
    if (!example) parts.push(make("p", { className: "caption", textContent: words.unknown_inputs }));
  }
  const commands = commandBox(() => commandTexts(request()));
  if (input !== null) {
    const changed = () => {
      reset.hidden = input.value === example;
      keepEdit("bodies", operation.path, reset.hidden ? undefined : input.value);
      commands.refresh();
    };
    input.addEventListener("input", changed);
    reset.addEventListener("click", () => {
      input.value = example;
      changed();
    });
    sendsOnCtrlEnter(input, go);
  }
  return make("div", { className: "body" }, ...parts, make("div", { className: "row" }, send, state, reset), answer, commands.element);
}

// Folded, and filled when it is first opened.
function folded(summary, fill) {
  const details = make("details", {}, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(fill());
  });
  return details;
}

function operationElement(operation) {
  const summary = make("summary", {},
    make("span", { className: "method", textContent: operation.method }),
    make("span", { className: "path", textContent: decodeURI(operation.path) }),
    make("span", { className: "about", textContent: language === "zh" ? operation["x-summary-zh"] : operation.summary }));
  return folded(summary, () => openedOperation(operation));
}

function rpcPrograms(model, port) {
  const programs = [];
  if (model.inputsOfV2) programs.push(["v2", () => tritonProgram(model.name, model.inputsOfV2, port)]);
  if (model.keyValues) programs.push(["key/value", () => pipelineProgram(model.service, model.keyValues, port)]);
  return programs.map(([endpoint, program]) => make("div", { className: "body" },
    make("p", { className: "caption", textContent: words.rpc[endpoint] }), commandBox(() => ({ Python: program() })).element));
}

function endpointElement(tag, fill) {
  const details = folded(make("summary", {}, make("span", { className: "endpoint", textContent: words.tags[tag] || tag })), fill);
  details.dataset.endpoint = tag;
  return details;
}

// A fold for each way to ask the model, and those that are no model's.
function endpointElements(description, model) {
  const groups = new Map();
  for (const operation of operationsOf(description.paths)) {
    const asked = operation["x-model"];
    if (asked !== undefined && (model === null || asked !== model.name)) continue;
    if (!groups.has(operation.tag)) groups.set(operation.tag, []);
    groups.get(operation.tag).push(operation);
  }
  const ordered = [...groups].sort(([one], [other]) => Number(other === "OpenAI") - Number(one === "OpenAI"));
  const endpoints = ordered.map(([tag, operations]) =>
    endpointElement(tag, () => make("div", { className: "body" }, ...operations.map(operationElement))));
  const port = description["x-rpc-port"];
  const programs = model !== null && port ? rpcPrograms(model, port) : [];
  if (programs.length) endpoints.splice(-1, 0, endpointElement("grpc", () => make("div", {}, ...programs)));
  return endpoints;
}
