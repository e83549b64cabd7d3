// Recent errors of the live view: their causes, the ids of their requests, and how often each number was answered.

function causeKey(cause) {
  return [cause.model, cause.op, cause.kind, cause.user_place].join("|");
}

function meaningOf(cause) {
  return words.live.meanings[cause.kind] || (cause.http_status < 500 ? words.live.clients_mistake : words.live.servers_mistake);
}

function clockText(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(document.documentElement.lang);
}

function openCause(key) {
  const element = live.parts.errors.querySelector(`[data-cause="${CSS.escape(key)}"]`);
  if (!element) return;
  element.open = true;
  element.querySelector("summary").focus();
}

function requestList(requests) {
  return make("ul", {}, ...[...requests].reverse().map((request) => make("li", {
    textContent: filled(request.client_id ? words.live.request_with_id : words.live.request, request.number, clockText(request.at), request.client_id),
  })));
}

function causeElement(cause) {
  const told = words.live;
  const key = causeKey(cause);
  const element = make("details", { open: live.opened.has(key) });
  element.dataset.cause = key;
  element.addEventListener("toggle", () => (element.open ? live.opened.add(key) : live.opened.delete(key)));
  const latest = cause.requests[cause.requests.length - 1];
  const summary = make("summary", {}, make("span", { className: "endpoint", textContent: cause.kind }),
    make("span", { textContent: cause.op ? `${told.op} ${cause.op}` : cause.model }),
    make("span", { className: "about", textContent: filled(told.times, cause.count, clockText(latest.at)) }));
  summary.dataset.key = key;
  const facts = [
    ...(cause.user_place ? fact(told.raised, make("code", { textContent: cause.user_place })) : []),
    ...(cause.message ? fact(told.message, cause.message) : []),
    ...fact(told.meaning, meaningOf(cause)),
    ...fact(told.answered, `HTTP ${cause.http_status}, err_no ${cause.err_no}`),
    ...(cause.op ? fact(told.op, opButton(cause.op)) : []),
    ...fact(words.choose, cause.model), ...fact(told.endpoint, cause.endpoint),
    ...fact(told.requests, requestList(cause.requests)),
  ];
  element.append(summary, make("div", { className: "body" }, make("dl", { className: "narrow" }, ...facts)));
  return element;
}

// Of every error the number, also of requests that were refused before they were admitted.
function outcomeTable(outcomes) {
  const told = words.live;
  const rows = outcomes.filter(([, number]) => number).map(([endpoint, number, count]) =>
    make("tr", {}, ...[number, endpoint, count, told.numbers[number] || ""].map((text) => make("td", { textContent: text }))));
  if (!rows.length) return [];
  const head = ["err_no", told.endpoint, told.count, told.meaning].map((text) => make("th", { textContent: text, scope: "col" }));
  return [make("h3", { textContent: told.outcomes }),
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))];
}

function errorElements(totals) {
  const causes = totals.errors.map(causeElement);
  return [...(causes.length ? causes : [make("p", { textContent: words.live.no_errors })]), ...outcomeTable(totals.outcomes)];
}
