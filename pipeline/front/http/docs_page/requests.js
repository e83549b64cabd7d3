// A request: what is sent, and the same as a command for a shell and as a Python program.
//
// Its `parts` are texts and files, one after the other; a file among texts stands there as base64, and one alone
// is sent as it is. `parts` is null where there is no body.

const JSON_MEDIA = "application/json";

function absolute(path) {
  return new URL(`.${path}`, document.baseURI).href;
}

function apiKey() {
  return document.getElementById("key").value.trim();
}

function keyHeader() {
  return apiKey() === "" ? {} : { authorization: `Bearer ${apiKey()}` };
}

function isFile(part) {
  return part instanceof File;
}

function isRaw(request) {
  return request.parts !== null && request.parts.length === 1 && isFile(request.parts[0]);
}

function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

async function bodyOf(request) {
  if (request.parts === null || isRaw(request)) return request.parts && request.parts[0];
  const texts = await Promise.all(request.parts.map((part) => isFile(part) ? base64Of(part) : part));
  return texts.join("");
}

async function sendRequest(request, signal) {
  const headers = { ...keyHeader(), ...(request.parts === null ? {} : { "content-type": request.media }) };
  const body = await bodyOf(request);
  const began = performance.now();
  const response = await fetch(request.url, { method: request.method, body, headers, signal });
  const text = await response.text();
  return { status: response.status, phrase: response.statusText, good: response.ok, text, ms: performance.now() - began };
}

// For a shell:

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curlOf(request) {
  const post = request.method === "POST" && request.parts === null ? " -X POST" : "";
  const key = apiKey() === "" ? "" : ' \\\n  -H "authorization: Bearer $API_KEY"';
  const told = request.parts === null ? "" : ` \\\n  -H ${quoted(`content-type: ${request.media}`)}`;
  const line = `curl -s${post} ${quoted(request.url)}${key}${told}`;
  if (request.parts === null) return line;
  if (isRaw(request)) {
    const [{ name, base64 }] = request.parts;
    if (base64 !== undefined) return `printf %s ${quoted(base64)} | base64 -d |\n${line} \\\n  --data-binary @-`;
    return `${line} \\\n  --data-binary @${quoted(name)}`;
  }
  if (!request.parts.some(isFile)) return `${line} \\\n  -d ${quoted(request.parts.join(""))}`;
  const pieces = request.parts.map((part) =>
    isFile(part) ? `base64 < ${quoted(part.name)} | tr -d '\\n'` : `printf %s ${quoted(part)}`);
  return `{ ${pieces.join("; ")}; } |\n${line} \\\n  -d @-`;
}

// In Python:

const PYTHON_NAMES = { true: "True", false: "False", null: "None" };

// JSON as Python writes it. files: what stands in place of their marks.
function pythonLiteral(json, files) {
  return json.replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (token) => {
    if (Object.hasOwn(PYTHON_NAMES, token)) return PYTHON_NAMES[token];
    const text = JSON.parse(token);
    return Object.hasOwn(files, text) ? files[text] : JSON.stringify(text);
  });
}

function pythonBody(request) {
  const files = {};
  const marked = request.parts.map((part, at) => {
    if (!isFile(part)) return part;
    files[`\u0001${at}`] = `base64.b64encode(Path(${JSON.stringify(part.name)}).read_bytes()).decode()`;
    return `\\u0001${at}`;
  });
  return pythonLiteral(marked.join(""), files);
}

function pythonOf(request) {
  const keyed = apiKey() !== "";
  const sample = isRaw(request) ? request.parts[0].base64 : undefined;
  const files = request.parts !== null && sample === undefined && request.parts.some(isFile);
  const json = request.parts !== null && !isRaw(request);
  const imports = [
    (files && !isRaw(request) || sample !== undefined) && "import base64", json && "import json", keyed && "import os", "import urllib.request",
    files && "from pathlib import Path",
  ].filter(Boolean);
  const headers = [
    request.parts !== null && `"content-type": ${JSON.stringify(request.media)}`,
    keyed && `"authorization": f"Bearer {os.environ['API_KEY']}"`,
  ].filter(Boolean);
  const data = request.parts === null ? "None" : json ? "json.dumps(body).encode()" : "body";
  const raw = sample === undefined ? () => `Path(${JSON.stringify(request.parts[0].name)}).read_bytes()`
    : () => `base64.b64decode(${JSON.stringify(sample)})`;
  const body = request.parts === null ? [] : [`body = ${json ? pythonBody(request) : raw()}`];
  return [
    ...imports, "", ...body,
    `url = ${JSON.stringify(request.url)}`,
    `request = urllib.request.Request(url, ${data}, {${headers.join(", ")}}, method="${request.method}")`,
    "with urllib.request.urlopen(request, timeout=30) as answer:",
    "    print(answer.read().decode())",
  ].join("\n");
}

// Over gRPC, from the example of KServe v2:

function rpcAddress(port) {
  return `${location.hostname}:${port}`;
}

function tritonProgram(model, inputs, port) {
  const secure = location.protocol === "https:";
  const key = apiKey() === "" ? "" : `, headers={"authorization": f"Bearer {os.environ['API_KEY']}"}`;
  return [
    ...(apiKey() === "" ? [] : ["import os", ""]),
    "import numpy as np",
    "import tritonclient.grpc as grpc",
    "from tritonclient.utils import triton_to_np_dtype",
    "",
    `client = grpc.InferenceServerClient(${JSON.stringify(rpcAddress(port))}${secure ? ", ssl=True" : ""})`,
    "inputs = []",
    `for given in ${pythonLiteral(JSON.stringify(inputs), {})}:`,
    '    tensor = grpc.InferInput(given["name"], given["shape"], given["datatype"])',
    '    array = np.array(given["data"], triton_to_np_dtype(given["datatype"]))',
    '    tensor.set_data_from_numpy(array.reshape(given["shape"]))',
    "    inputs.append(tensor)",
    `print(client.infer(${JSON.stringify(model)}, inputs${key}).get_response())`,
  ].join("\n");
}

function pipelineProgram(service, keyValues, port) {
  const secure = location.protocol === "https:";
  const key = apiKey() === "" ? "" : `, api_key=os.environ["API_KEY"]`;
  return [
    ...(apiKey() === "" ? [] : ["import os", ""]),
    "from client.rpc_client import RpcClient",
    ...(secure ? ["from client.tls import Tls"] : []),
    "",
    `with RpcClient(${JSON.stringify(rpcAddress(port))}, ${JSON.stringify(service)}${secure ? ", tls=Tls()" : ""}${key}) as client:`,
    `    print(client.predict(${pythonLiteral(JSON.stringify(keyValues), {})}).outputs)`,
  ].join("\n");
}
