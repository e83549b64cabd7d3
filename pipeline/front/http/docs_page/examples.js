// The example requests of a model: a button for each, which fills the form.

const MOST_EXAMPLE_BUTTONS = 12;

// Each example is a model as the form shows it: with the operation, the fields and the body of its protocol. `label` is
// the text of the button. `files` are examples of uploads: the button's, then those of the other inputs.
function examplesOf(model) {
  const others = model.posts.filter((operation) => operation !== model.operation && isExample(model, operation));
  const single = (operation) => others.filter((one) => one.tag === operation.tag).length === 1;
  const label = (operation) => single(operation) || isInfer(operation) ? nameOf(operation) : operation.path.split("/").at(-1);
  const samples = sampleFiles(model.operation);
  return [
    { ...model, label: nameOf(model.operation) },
    ...others.map((operation) => ({ ...variantOf(model, operation), label: label(operation) })),
    ...samples.map((file) => ({ ...model, label: file.type, files: [file, ...samples.filter((one) => one !== file)] })),
  ];
}

function nameOf(operation) {
  return words.tags[operation.tag] || operation.tag;
}

// Inputs that get files have generated texts in the examples of other protocols: the service would reject them.
function isExample(model, operation) {
  const files = Object.keys(model.inputs || {}).length === 0 && Object.keys(model.raw).length > 0;
  return !files && Object.keys(exampleOf(operation) || {}).length > 0;
}

function variantOf(model, operation) {
  const body = exampleOf(operation);
  const media = Object.keys(operation.requestBody.content);
  const variant = { ...model, operation, media, raw: {}, beside: body.parameters, place: operation.path };
  if (isInfer(operation)) return variant;
  if (operation.tag === "key/value") return { ...variant, schema: {}, row: asMapping(body) };
  return { ...variant, inputs: {}, schema: {}, row: body };
}

function isInfer(operation) {
  return operation.tag === "v2" && operation.path.endsWith("/infer");
}

function sampleFiles(operation) {
  return Object.entries(operation.requestBody.content).flatMap(([media, content]) => {
    const text = media.startsWith("text/") ? content.example : undefined;
    const base64 = text === undefined ? content["x-example-base64"] : base64OfText(text);
    const file = base64 === undefined ? null : sampleFile(base64, media);
    return file === null ? [] : [file];
  });
}

function base64OfText(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

// The buttons above the form. choose: called with the example of the button.
function exampleButtons(examples, chosen, choose) {
  if (examples.length < 2) return [];
  const buttons = examples.map((one) => {
    const button = make("button", { type: "button", className: "choice", textContent: one.label });
    button.setAttribute("aria-pressed", String(one === chosen));
    button.addEventListener("click", () => choose(one));
    return button;
  });
  const row = make("div", { className: "row examples" }, make("span", { textContent: words.examples }), ...buttons);
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", words.examples);
  return [row];
}
