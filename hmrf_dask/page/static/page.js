// The page: views, keys, and who is asked.

import { complain, find, say } from "./dom.js";
import { memory } from "./memory.js";
import { ask } from "./server.js";
import { actionOf, nextQuestion } from "./question.js";
import { showAnswers, showDisputes, showGroups, showPeople } from "./lists.js";
import { showClusters } from "./clusters.js";
import { showHistory } from "./history.js";

const views = {
  ask: nextQuestion,
  answers: showAnswers,
  disputes: showDisputes,
  groups: showGroups,
  clusters: showClusters,
  history: showHistory,
  people: showPeople,
};
let current = "ask";

async function open(name) {
  current = name;
  document.querySelectorAll("[data-view]").forEach((tab) => {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  });
  complain("");
  say("");
  try {
    await views[name]();
  } catch (error) {
    complain(error.message);
  }
}

function writes(target) {
  return target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat || event.isComposing) return;
  if (writes(event.target) || document.querySelector("dialog[open]") || memory.keys !== "yes") return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "h" || key === "?") {
    event.preventDefault();
    find("help").showModal();
    return;
  }
  const action = current === "ask" ? actionOf(key) : null;
  if (action) {
    event.preventDefault();
    action();
  }
});

document.querySelectorAll("[data-view]").forEach((tab) => {
  tab.addEventListener("click", () => open(tab.dataset.view));
});
document.querySelectorAll("[data-close]").forEach((closer) => {
  closer.addEventListener("click", () => find(closer.dataset.close).close());
});
find("help-button").addEventListener("click", () => find("help").showModal());

const keys = find("single-keys");
keys.checked = memory.keys === "yes";
keys.addEventListener("change", () => { memory.keys = keys.checked ? "yes" : "no"; });

const person = find("person");
person.value = memory.person;
person.addEventListener("change", () => {
  memory.person = person.value.trim();
  open(current);
});

async function begin() {
  try {
    if (!memory.kind) memory.kind = (await ask("api/state")).kind;
  } catch (error) {
    complain(error.message);
    return;
  }
  open("ask");
}

begin();
