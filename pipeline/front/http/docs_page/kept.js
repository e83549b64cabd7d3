// What somebody has typed and chosen, kept in this browser; no API key and no file.

const KEPT_LANGUAGE = "paddlewheel:language";
const MOST_KEPT = 100000; // characters of one text

let keptName = "";
let kept = {};

// Browsers may refuse all of it, in private windows say: the page works without.
function readKept(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function writeKept(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // as above
  }
}

function openKept(service) {
  keptName = `paddlewheel:${new URL(".", document.baseURI).pathname}:${service}`;
  const found = readKept(keptName);
  kept = found !== null && typeof found === "object" ? found : {};
}

// An edit by its place and name; undefined where the example stands.
function edit(place, name) {
  const found = (kept[place] || {})[name];
  return typeof found === "string" ? found : undefined;
}

function keepEdit(place, name, text) {
  const edits = { ...kept[place] };
  if (text === undefined || text.length > MOST_KEPT) delete edits[name];
  else edits[name] = text;
  kept[place] = edits;
  writeKept(keptName, kept);
}
