// The models of a repository with their states; of a script's service there is no such list.

function repositoryRows(description, models) {
  const served = models.filter((model) => model.state).map((model) => ({
    name: model.name, version: model.version, state: model.state, reason: model.reason || "", model,
  }));
  const others = Object.entries(description["x-unavailable"] || {})
    .map(([name, reason]) => ({ name, version: "", state: "UNAVAILABLE", reason, model: null }));
  return [...served, ...others].sort((one, other) => (one.name < other.name ? -1 : 1));
}

function repositoryElement(description, models, chosen, choose) {
  const rows = repositoryRows(description, models);
  if (!rows.length) return null;
  const body = rows.map((row) => {
    const name = row.model === null ? make("span", { textContent: row.name })
      : make("button", { type: "button", className: "link", textContent: row.name });
    if (row.model !== null) name.addEventListener("click", () => choose(row.name));
    if (row.model !== null && row.model === chosen) name.setAttribute("aria-current", "true");
    const state = make("span", { className: `state ${row.state === "READY" ? "good" : "bad"}`, textContent: row.state });
    return make("tr", {}, make("td", {}, name), make("td", { textContent: row.version }), make("td", {}, state),
      make("td", { textContent: row.reason }));
  });
  const heads = [words.choose, words.version, words.state, words.reason].map((text) => make("th", { textContent: text }));
  return make("section", { className: "repository" }, make("h2", { textContent: words.repository }),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body)));
}
