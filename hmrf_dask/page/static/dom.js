// Elements made of names and texts alone: no text of a document is ever read as HTML.

export const find = (id) => document.getElementById(id);

// Properties that start with "on" are listeners; null children and false attributes are left out.
export function make(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(key, value === true ? "" : String(value));
    }
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

export function button(words, key, action, properties = {}) {
  const hint = key ? [make("kbd", {}, key), " "] : [];
  const shortcut = key ? { "aria-keyshortcuts": key } : {};
  return make("button", { type: "button", ...shortcut, onclick: action, ...properties }, hint, words);
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child));
}

export function plural(number, word, words = `${word}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? word : words}`;
}

export function say(words) {
  find("said").textContent = words;
}

export function complain(words) {
  find("wrong").textContent = words;
}
