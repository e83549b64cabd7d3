// Elements of the document, made in one call; and what is copied to the clipboard.

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

let numbers = 0;

function newId() {
  numbers += 1;
  return `e${numbers}`;
}

// Beyond https and localhost browsers have no clipboard for scripts: then the text is selected.
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(from);
    return document.execCommand("copy");
  }
}
