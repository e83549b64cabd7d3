// Fields for what a model takes: a text, a number, an image, a tensor as JSON, a file of rows.
//
// Each has `parts`, its value as pieces of JSON (see requests.js), which throws a Mistake where there is none.

class Mistake extends Error {}

const ROW = "row"; // the kind of a field that is all of a row, where nothing is known of its members

// What a field is made of: its name, what is told of it, its kind and its example as a value of JSON.
function fieldsOf(model) {
  const described = Object.entries(model.inputs || {});
  const row = model.row || {};
  if (described.length) {
    return described.flatMap(([name, input]) => input.kind === "table"
      ? input.columns.map((column) => cellOf(column, row[column.name]))
      : [name, ...(input.pair ? [input.pair] : [])].map((one) =>
        ({ name: one, kind: input.kind, told: told(model.schema[one]), example: row[one] })));
  }
  const names = new Set([...Object.keys(model.schema), ...Object.keys(row)]);
  if (!names.size) return [{ name: words.row, kind: ROW, example: {} }];
  return [...names].map((name) => {
    const schema = model.schema[name];
    const media = Object.keys(model.raw).filter((one) => model.raw[one] === name);
    if (media.length) {
      const kind = media.every((one) => one.startsWith("image/")) ? "image" : "file";
      return { name, kind, media, schema, told: media.join(", "), example: undefined };
    }
    return { name, kind: kindOf(schema, row[name]), told: told(schema), optional: typesOf(schema).includes("null"), example: row[name] };
  });
}

function cellOf(column, example) {
  return { name: column.name, kind: column.type, short: true, optional: column.missing === "nan", example };
}

function told(schema) {
  return schema && !/^BYTES$/.test(schema.description || "") ? schema.description || "" : "";
}

function kindOf(schema, example) {
  if (schema === undefined) return typeof example === "string" ? "text" : "tensor";
  const types = typesOf(schema);
  if (schema.anyOf || types.includes("string")) return "text";
  return ["integer", "number"].find((kind) => types.includes(kind)) || "tensor";
}

function typesOf(schema) {
  return [].concat(schema?.type || []);
}

// The element of a field, with its label and the place for what is wrong with it.
function field(given, control, ...beside) {
  const mistake = make("p", { className: "mistake", id: newId(), hidden: true });
  mistake.setAttribute("role", "alert");
  control.id = newId();
  control.setAttribute("aria-describedby", mistake.id);
  const label = make("label", { htmlFor: control.id }, make("b", { textContent: given.name }));
  if (given.told) label.append(" ", make("small", { textContent: given.told }));
  const wrong = (text) => {
    mistake.textContent = text;
    mistake.hidden = text === "";
    control.setAttribute("aria-invalid", String(text !== ""));
  };
  return { name: given.name, kind: given.kind, control, wrong, element: make("div", { className: `field ${given.kind}` }, label, control, ...beside, mistake) };
}

const NUMBER = /^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

const READERS = {
  text: (text) => JSON.stringify(text),
  // As it was typed: JavaScript would round a large one.
  number: (text) => {
    if (!NUMBER.test(text.trim())) throw new Mistake(words.mistakes.number);
    return text.trim().replace(/^(-?)\./, (_, sign) => `${sign}0.`).replace(/\.(?=e|$)/i, "").replace(/^(-?)0+(?=\d)/, "$1");
  },
  integer: (text) => {
    if (!/^-?\d+$/.test(text.trim())) throw new Mistake(words.mistakes.integer);
    return text.trim().replace(/^(-?)0+(?=\d)/, "$1");
  },
  tensor: (text) => {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Mistake(filled(words.mistakes.json, error.message));
    }
    return onOneLine(text);
  },
};

READERS[ROW] = READERS.tensor;

function onOneLine(json) {
  return json.trim().replace(/(?<=[[{])\s*\n\s*|\s*\n\s*(?=[\]}])/g, "").replace(/\s*\n\s*/g, " ");
}

function writtenField(given, place, changed) {
  const asText = given.kind === "text" || typeof given.example === "string";
  const example = given.example === undefined ? "" : asText ? String(given.example) : JSON.stringify(given.example);
  const long = !given.short && ["text", "tensor", ROW].includes(given.kind);
  const control = make(long ? "textarea" : "input", { spellcheck: false, autocomplete: "off" });
  if (long) control.rows = given.kind === "text" ? 3 : 4;
  else control.inputMode = { integer: "numeric", number: "decimal" }[given.kind] || "text";
  if (given.kind === "text") control.dir = "auto";
  const made = field(given, control);
  const show = () => { control.value = edit(place, given.name) ?? example; };
  control.addEventListener("input", () => {
    made.wrong("");
    keepEdit(place, given.name, control.value === example ? undefined : control.value);
    changed();
  });
  show();
  return {
    ...made,
    parts: () => [given.optional && control.value.trim() === "" ? "null" : READERS[given.kind](control.value)],
    reset: () => {
      keepEdit(place, given.name, undefined);
      made.wrong("");
      show();
    },
    edited: () => control.value !== example,
  };
}

// An image:

const PREVIEW_PX = 320;

function imageField(given, changed) {
  const control = make("input", { type: "file", accept: "image/*" });
  const canvas = make("canvas", { hidden: true });
  const caption = make("p", { className: "caption" });
  const box = make("div", { className: "drop" }, canvas, caption);
  const made = field(given, control, box);
  let picked = null;
  const show = async () => {
    const file = picked || sampleFile(given.example);
    canvas.hidden = true;
    caption.textContent = words.pick;
    if (file === null) return;
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      caption.textContent = filled(words.unseen, file.name);
      return;
    }
    const size = [bitmap.width, bitmap.height];
    draw(bitmap, canvas);
    caption.textContent = picked === null ? `${filled(words.sample, ...size)}. ${words.pick}`
      : filled(words.picked, file.name, ...size);
  };
  const take = (files) => {
    if (!files.length) return;
    picked = files[0];
    made.wrong("");
    changed();
    show();
  };
  control.addEventListener("change", () => take(control.files));
  box.addEventListener("dragover", (event) => event.preventDefault());
  box.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files);
  });
  made.element.addEventListener("paste", (event) => take(event.clipboardData.files));
  show();
  return {
    ...made,
    parts: () => {
      if (picked !== null) return given.schema ? fileParts(picked, given.schema) : ['"', base64Part(picked), '"'];
      if (typeof given.example !== "string") throw new Mistake(words.mistakes.file);
      return [JSON.stringify(given.example)];
    },
    picked: () => picked,
    pick: (file) => take([file]),
    media: given.media || ["image/*"],
    reset: () => {
      picked = null;
      control.value = "";
      made.wrong("");
      show();
    },
    edited: () => picked !== null,
  };
}

// A file in JSON: an object with base64 inside as many lists as the tensor has axes.
function fileParts(file, schema) {
  const depth = typesOf(schema).includes("array") ? 1 + depthOf(schema.items) : 0;
  return [`${"[".repeat(depth)}{"b64": "`, base64Part(file), `"}${"]".repeat(depth)}`];
}

// Examples stand in a request as text, since a command can't read them from a file.
function base64Part(file) {
  return file.base64 ?? file;
}

function depthOf(schema) {
  return typesOf(schema).includes("array") ? 1 + depthOf(schema.items) : 0;
}

function fileField(given, changed) {
  const control = make("input", { type: "file", accept: given.media.join(",") });
  const made = field(given, control);
  const { picked, pick, reset } = filePicker(control, () => {
    made.wrong("");
    changed();
  });
  return {
    ...made,
    picked,
    pick,
    media: given.media,
    parts: () => {
      if (picked() === null) throw new Mistake(words.mistakes.any_file);
      return fileParts(picked(), given.schema);
    },
    reset: () => {
      reset();
      made.wrong("");
    },
    edited: () => picked() !== null,
  };
}

// A file of an example, with its bytes in base64 for the commands: the reader has no file of this name.
function sampleFile(base64, media = "image/png") {
  try {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const name = `example.${media.split("/")[1].replace(/^x-/, "").replace(/\W.*/, "")}`;
    return Object.assign(new File([bytes], name, { type: media }), { base64 });
  } catch {
    return null;
  }
}

// The file of an input: the choice of the user, or an example that `pick` shows in its place.
function filePicker(control, changed) {
  let sample = null;
  control.addEventListener("change", () => {
    sample = null;
    changed();
  });
  return {
    picked: () => sample || control.files[0] || null,
    pick: (file) => {
      const files = new DataTransfer();
      files.items.add(file);
      control.files = files.files;
      sample = file;
      changed();
    },
    reset: () => {
      control.value = "";
      sample = null;
    },
  };
}

// On a canvas, which takes no source that the page's policy would have to allow.
function draw(bitmap, canvas) {
  const scale = PREVIEW_PX / Math.max(bitmap.width, bitmap.height);
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  canvas.hidden = false;
}

// Rows of a table, as a file in place of the cells:

const CSV_MEDIA = "text/csv";

function rowsField(changed) {
  const control = make("input", { type: "file", accept: `.csv,${CSV_MEDIA}` });
  return { ...field({ name: words.rows, told: words.columns, kind: "rows" }, control), ...filePicker(control, changed) };
}

// All fields of a model:

function inputForm(model, changed) {
  const place = `model ${model.name}${model.place ? ` ${model.place}` : ""}`;
  const table = Object.values(model.inputs || {}).some((input) => input.kind === "table");
  const rows = table && model.media.includes(CSV_MEDIA) ? rowsField(() => chosen()) : null;
  const fields = fieldsOf(model).map((given) =>
    given.kind === "image" ? imageField(given, changed)
      : given.kind === "file" ? fileField(given, changed) : writtenField(given, place, changed));
  const file = () => rows && rows.picked();
  const show = () => fields.forEach((one) => { one.control.disabled = file() !== null; });
  const chosen = () => {
    show();
    changed();
  };
  return {
    element: make("div", { className: table ? "fields table" : "fields" },
      ...[...fields, ...(rows ? [rows] : [])].map((one) => one.element)),
    fields, file,
    // Puts an example of an upload into the empty field that accepts its media type.
    pick: (sample) => {
      const fits = (one) => one.media?.some((media) => media === sample.type || media === `${sample.type.split("/")[0]}/*`);
      const place = rows && sample.type === CSV_MEDIA ? rows : fields.find(fits);
      if (place && place.picked() === null) place.pick(sample);
    },
    edited: () => file() !== null || fields.some((one) => one.edited()),
    reset: () => {
      if (rows) rows.reset();
      show();
      fields.forEach((one) => one.reset());
    },
  };
}

// The request that the fields make; null where one of them has a mistake, which it then shows. aloud: and has the focus.
function requestOf(model, form, aloud) {
  const url = absolute(model.operation.path);
  if (form.file() !== null) return { url, method: "POST", media: CSV_MEDIA, parts: [form.file()] };
  const members = [];
  let wrong = null;
  for (const one of form.fields) {
    try {
      if (one.kind === ROW) members.push(...membersOf(one.parts()[0]));
      else members.push([one.name, one.parts()]);
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      wrong = wrong || one;
      if (aloud) one.wrong(error.message);
    }
  }
  if (wrong !== null) {
    if (aloud) wrong.control.focus();
    return null;
  }
  const [only] = form.fields;
  const file = form.fields.length === 1 && only.picked ? only.picked() : null;
  const raw = Object.keys(model.raw).filter((media) => model.raw[media] === only.name);
  if (file !== null && (raw.length || model.media.some((media) => media.startsWith("image/")))) {
    const known = raw.some((media) => media === file.type || media === `${file.type.split("/")[0]}/*`);
    const media = known || !raw.length || raw[0].endsWith("*") ? file.type || "application/octet-stream" : raw[0];
    return { url, method: "POST", media, parts: [file] };
  }
  return { url, method: "POST", media: JSON_MEDIA, parts: bodyFormat(model.operation)(members, model.beside, model.inputsOfV2) };
}

function bodyFormat(operation) {
  return operation.tag === "v2" && !isInfer(operation) ? BODIES.members : BODIES[operation.tag] || BODIES.members;
}

function membersOf(row) {
  const members = JSON.parse(row);
  if (members === null || typeof members !== "object" || Array.isArray(members)) throw new Mistake(words.mistakes.row);
  return Object.entries(members).map(([name, value]) => [name, [JSON.stringify(value)]]);
}

function joined(lists, between) {
  return lists.flatMap((list, at) => at ? [between, ...list] : list);
}

// Neighbouring texts as one.
function merged(parts) {
  return parts.reduce((all, part) => {
    const last = all[all.length - 1];
    if (!isFile(part) && typeof last === "string") return [...all.slice(0, -1), last + part];
    return [...all, part];
  }, []);
}

// A tensor of KServe v2 from a value as KServe v1 has it: its elements, and its shape with the axes of the template.
function tensorPart([name, parts], template) {
  const file = parts.some(isFile);
  const value = file ? "" : JSON.parse(parts.join(""));
  const shape = shapeOf(value);
  const ones = Array(Math.max(0, template.shape.length - shape.length)).fill(1);
  const elements = file ? parts : [parts.join("").replace(/"(?:[^"\\]|\\.)*"|[[\]]/g, (token) => token.startsWith('"') ? token : "")];
  const head = { name, datatype: template.datatype, shape: [...ones, ...shape] };
  return [`${JSON.stringify(head).slice(0, -1)}, "data": [`, ...elements, "]}"];
}

function shapeOf(value) {
  return Array.isArray(value) ? [value.length, ...(value.length ? shapeOf(value[0]) : [])] : [];
}

// The body of one row, by the endpoint that it is sent to; with the parameters that the example has beside it.
const BODIES = {
  v1: (members, parameters) => merged(['{"instances": [{',
    ...joined(members.map(([name, parts]) => [`${JSON.stringify(name)}: `, ...parts]), ", "),
    parameters ? `}], "parameters": ${JSON.stringify(parameters)}}` : "}]}"]),
  "key/value": (members) => merged([`{"key": ${JSON.stringify(members.map(([name]) => name))}, "value": [`,
    ...joined(members.map(([, parts]) => parts[0].startsWith('"') ? parts : [JSON.stringify(parts[0])]), ", "), "]}"]),
  v2: (members, parameters, templates) => merged(['{"inputs": [',
    ...joined(members.map((member) => tensorPart(member, templates.find((one) => one.name === member[0]))), ", "),
    parameters ? `], "parameters": ${JSON.stringify(parameters)}}` : "]}"]),
  members: (members) => merged(["{", ...joined(members.map(([name, parts]) => [`${JSON.stringify(name)}: `, ...parts]), ", "), "}"]),
};
