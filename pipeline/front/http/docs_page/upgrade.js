// The latest upgrade of a model in the live view: its step, the comparison so far, and the verdict.

function shareText(share, total) {
  return total ? `${(100 * share / total).toFixed(2)} %` : "–";
}

function upgradePhase(upgrade) {
  const told = words.live;
  const { canary } = upgrade;
  if (upgrade.phase !== "canary" || !canary.share) return told.upgrade_phases[upgrade.phase];
  return filled(told.upgrade_step, canary.steps.length, canary.shares.length, canary.share);
}

// A table with the requests of each step of the canary.
function canaryTable(canary) {
  const told = words.live;
  const head = [told.share, told.requests, told.failed, told.late].map((text) => make("th", { textContent: text, scope: "col" }));
  const rows = canary.steps.map((step) => make("tr", {},
    ...[`${step.share} %`, step.requests, step.failed, step.late].map((text) => make("td", { textContent: text }))));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function upgradeElements(upgrade) {
  const told = words.live;
  const { requests, canary } = upgrade;
  const good = upgrade.result === "running" || upgrade.result === "accepted";
  const verdict = make("span", { className: `state ${good ? "good" : "bad"}`, textContent: told.upgrade_results[upgrade.result] });
  const facts = [
    ...fact(words.version, `${upgrade.old_version} → ${upgrade.new_version}`), ...fact(told.verdict, verdict),
    ...(upgrade.result === "running" ? fact(told.step, upgradePhase(upgrade)) : fact(told.because, upgrade.reason)),
    ...fact(told.copied, `${requests.copied} / ${requests.compared}`),
    ...fact(told.agreement, shareText(requests.compared - upgrade.changed, requests.compared)),
    ...fact(told.own_agreement, shareText(requests.compared - upgrade.noise, requests.compared)),
  ];
  const elements = [make("h2", { textContent: filled(told.upgrade_of, upgrade.model) }), make("dl", {}, ...facts)];
  if (!canary) return elements;
  const bar = make("progress", { max: 100, value: canary.share });
  bar.setAttribute("aria-label", told.upgrade_share);
  return [...elements, make("p", { className: "row" }, bar, make("span", { textContent: `${canary.share} %` })), canaryTable(canary)];
}
