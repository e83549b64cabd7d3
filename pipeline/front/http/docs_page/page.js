"use strict";

const WORDS = {
  en: {
    other: "中文", lead: "Edit an example and send it to this service.", send: "Send", sending: "Sending…",
    body: "Body (JSON)", answer: "Answer", command: "The same with curl", empty: "(empty)",
    missing: "No example is known for this one: the Op can declare it as example or example_key_values.",
    key: "API key", use: "Use", unkeyed: "The service asks for an API key.", unknown: "The service does not know this API key.",
    failed: "Not answered: ", unread: "openapi.json can't be read: ",
    tags: { "key/value": "Key/value", v1: "KServe v1", v2: "KServe v2", health: "Health and figures" },
  },
  zh: {
    other: "English", lead: "修改示例并发送给本服务。", send: "发送", sending: "发送中…",
    body: "请求体（JSON）", answer: "应答", command: "等价的 curl 命令", empty: "（空）",
    missing: "没有已知的示例：可以在 Op 中用 example 或 example_key_values 声明。",
    key: "API 密钥", use: "使用", unkeyed: "本服务需要 API 密钥。", unknown: "本服务不认识这个 API 密钥。",
    failed: "没有得到应答：", unread: "无法读取 openapi.json：",
    tags: { "key/value": "键值接口", v1: "KServe v1", v2: "KServe v2", health: "健康检查与指标" },
  },
};

let language = (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
let description = null;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function operationsOf(paths) {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, told]) => ({ path, method: method.toUpperCase(), ...told })));
}

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

function keyHeader() {
  const key = document.getElementById("key").value.trim();
  return key === "" ? {} : { authorization: `Bearer ${key}` };
}

function quoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

function command(url, body) {
  const data = body === null ? "" : ` \\\n  -H 'content-type: application/json' \\\n  -d ${quoted(body)}`;
  const key = "authorization" in keyHeader() ? ' \\\n  -H "authorization: Bearer $API_KEY"' : "";
  return `curl -s ${quoted(url)}${key}${data}`;
}

function opened(operation) {
  const words = WORDS[language];
  const url = new URL("." + operation.path, document.baseURI).href;
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const send = make("button", { type: "button", className: "send", textContent: words.send });
  const state = make("span", { role: "status" });
  const curl = make("pre");
  const answer = make("pre", { hidden: true });
  const parts = [];
  let input = null;
  if (content) {
    const example = "example" in content ? pretty(JSON.stringify(content.example)) : "";
    input = make("textarea", { value: example, spellcheck: false });
    input.rows = Math.min(20, example.split("\n").length + 1);
    parts.push(make("label", {}, words.body, input));
    if (!example) parts.push(make("p", { textContent: words.missing }));
  }
  const body = () => input === null ? null : input.value;
  const told = () => {
    curl.textContent = command(url, input === null ? null : input.value.trim().replace(/\s*\n\s*/g, " "));
  };
  if (input !== null) input.addEventListener("input", told);
  told();

  send.addEventListener("click", async () => {
    send.disabled = true;
    state.className = "";
    state.textContent = words.sending;
    const began = performance.now();
    try {
      const headers = { ...keyHeader(), ...(input === null ? {} : { "content-type": "application/json" }) };
      const response = await fetch(url, { method: operation.method, body: body(), headers });
      const text = await response.text();
      state.className = response.ok ? "good" : "bad";
      state.textContent = `${response.status} ${response.statusText}, ${(performance.now() - began).toFixed(1)} ms`;
      answer.textContent = text === "" ? words.empty : pretty(text);
    } catch (error) {
      state.className = "bad";
      state.textContent = words.failed + error.message;
      answer.textContent = "";
    }
    answer.hidden = answer.textContent === "";
    send.disabled = false;
  });
  parts.push(make("div", { className: "row" }, send, state), answer,
    make("label", { textContent: words.command }), curl);
  return make("div", { className: "body" }, ...parts);
}

function listed(operation, open) {
  const summary = make("summary", {},
    make("span", { className: "method", textContent: operation.method }),
    make("span", { className: "path", textContent: decodeURI(operation.path) }),
    make("span", { className: "told", textContent: language === "zh" ? operation["x-summary-zh"] : operation.summary }));
  const details = make("details", { open }, summary);
  const fill = () => { if (details.open && details.childElementCount === 1) details.append(opened(operation)); };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function show() {
  const words = WORDS[language];
  document.getElementById("key-label").textContent = words.key;
  document.getElementById("use-key").textContent = words.use;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.getElementById("language").textContent = words.other;
  document.getElementById("lead").textContent = description !== null ? words.lead
    : "authorization" in keyHeader() ? words.unknown : words.unkeyed;
  if (description === null) return;
  document.getElementById("title").textContent = document.title = description.info.title;
  const groups = new Map();
  for (const operation of operationsOf(description.paths)) {
    const tag = operation.tags[0];
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(operation);
  }
  const sections = [...groups].map(([tag, operations], group) => make("section", {},
    make("h2", { textContent: words.tags[tag] || tag }),
    ...operations.map((operation, at) => listed(operation, group === 0 && at === 0))));
  document.getElementById("operations").replaceChildren(...sections);
}

document.getElementById("language").addEventListener("click", () => {
  language = language === "zh" ? "en" : "zh";
  show();
});

async function load() {
  try {
    const response = await fetch(new URL("openapi.json", document.baseURI), { headers: keyHeader() });
    if (response.status === 401) document.getElementById("keyed").hidden = false;
    description = response.ok ? await response.json() : null;
    show();
  } catch (error) {
    document.getElementById("lead").textContent = WORDS[language].unread + error.message;
  }
}

document.getElementById("use-key").addEventListener("click", load);
document.getElementById("key").addEventListener("keydown", (event) => { if (event.key === "Enter") load(); });
load();
