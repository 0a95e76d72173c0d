// One question at a time: shown, answered by one key, and the next.

import { button, complain, find, make, plural, replace, say } from "./dom.js";
import { send } from "./server.js";
import { documentView, excerpt } from "./texts.js";
import { showContradiction } from "./contradiction.js";
import { memory } from "./memory.js";

const GROUP_KEYS = "123456789abcefgijklq"; // no key that does something else
const MARKED = 3; // of many groups, the likeliest are marked
const FEW = 6;
let question = null;
let busy = false;
let lastAnswer = null; // id of the last one here, for a mark
let actions = {}; // what keys do now

export function actionOf(key) {
  return busy ? null : actions[key] || null;
}

// ---- asking

export function nextQuestion() {
  return work(async () => present(await send("api/next", about())));
}

function about() {
  return { annotator: memory.person, kind: memory.kind, tab: memory.tab };
}

export function refreshQuestion() {
  if (question) present({ question });
  else nextQuestion();
}

async function work(job) {
  if (busy) return;
  busy = true;
  find("main").setAttribute("aria-busy", "true");
  try {
    await job();
    complain("");
  } catch (error) {
    complain(error.message);
  } finally {
    busy = false;
    find("main").removeAttribute("aria-busy");
  }
}

function present(reply) {
  question = reply.question;
  const main = find("main");
  if (!question) {
    replace(main, nothingLeft(reply.nothing));
  } else {
    replace(main, question.kind === "pair" ? pairView() : choiceView());
  }
  main.querySelector("h2").focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function nothingLeft(words) {
  return make("section", {},
    make("h2", { tabindex: "-1" }, "Nothing more to ask"),
    make("p", {}, words || "All questions of this round are answered."),
    make("p", {}, "A refit, under History, moves documents by the answers; so does the next run."),
    make("p", { class: "commands" }, commandButtons({ e: ["More questions", more], z: ["Back", back], p: [otherWords(), otherKind] })));
}

function more() {
  say("Choosing more questions …");
  return work(async () => {
    present(await send("api/more", about()));
    say("");
  });
}

function otherWords() {
  return memory.kind === "pair" ? "Ask for groups" : "Ask about pairs";
}

function otherKind() {
  memory.kind = memory.kind === "pair" ? "choice" : "pair";
  return nextQuestion();
}

// ---- two documents

function pairView() {
  const [first, second] = question.documents;
  const view = make("section", { class: "pair" },
    make("h2", { tabindex: "-1" }, "Do these two belong together?"),
    reason(),
    make("div", { class: "documents" },
      documentView(first, "First document", question.ticket),
      documentView(second, "Second document", question.ticket)),
    make("p", { class: "commands answers" }, commandButtons({
      s: ["Same", () => answer("same")],
      d: ["Different", () => answer("different")],
      u: ["Don't know", () => answer("unknown")],
      ...commands(),
    })));
  Object.assign(actions, {
    ArrowRight: actions.s, ArrowLeft: actions.d, ArrowDown: actions.u, Backspace: back,
  });
  swipes(view);
  return view;
}

function reason() {
  return make("p", { class: "reason" }, question.reason,
    question.settles >= 1 ? ` An answer is expected to settle ${plural(Math.round(question.settles), "pair")}.` : "");
}

// ---- one document, and the groups

function choiceView() {
  const keys = {};
  const anchors = question.groups.some((group) => group.state === "its own");
  const likely = question.groups.length > FEW ? new Set(question.likely.slice(0, MARKED)) : new Set();
  const cards = question.groups.map((group, place) => {
    const key = GROUP_KEYS[place] || "";
    const choose = () => answer("same", group.document);
    if (key && !group.state) keys[key] = choose;
    return groupCard(group, key, choose, likely.has(group.document));
  });
  const view = make("section", { class: "choice" },
    make("h2", { tabindex: "-1" }, "Which group does this document belong to?"),
    reason(),
    make("div", { class: "document-and-groups" },
      documentView(question.documents[0], "Document", question.ticket),
      make("ol", { class: "groups" }, cards)),
    make("p", { class: "commands answers" }, commandButtons({
      ...(question.more ? { 0: ["None of these: show more", () => answer("none")] } : {}),
      n: [anchors ? "None of these" : "Something new", () => answer("new")],
      u: ["Don't know", () => answer("unknown")],
      ...commands(),
    })));
  if (!question.more) actions[0] = actions.n;
  Object.assign(actions, keys, { ArrowDown: actions.u, Backspace: back });
  return view;
}

function groupCard(group, key, choose, likely) {
  const name = make("span", { dir: "auto", class: "name" }, group.name);
  if (group.state) {
    return make("li", { class: "group closed" }, button(name, key, choose, { disabled: true }),
      make("span", { class: "likely" }, group.state));
  }
  const byClick = (event) => {
    if (!event.target.closest("button") && !String(window.getSelection())) choose();
  };
  return make("li", { class: "group", onclick: byClick }, button(name, key, choose),
    likely ? make("span", { class: "likely" }, "likely") : null,
    group.words.length ? make("p", { class: "words", dir: "auto" }, group.words.join(" · ")) : null,
    group.representatives.map((one) => make("p", { class: "representative", dir: "auto" }, excerpt(one.text, 150))));
}

// ---- what every question has

function commands() {
  return { x: ["Skip", skip], z: ["Back", back], p: [otherWords(), otherKind] };
}

function commandButtons(named) {
  actions = Object.fromEntries(Object.entries(named).map(([key, [, action]]) => [key, action]));
  Object.assign(actions, { r: markLast, o: () => press("open"), m: () => press("columns") });
  return Object.entries(named).map(([key, [words, action]]) =>
    button(words, key, action, { class: `command-${key}` }));
}

function press(name) {
  document.querySelectorAll(`[data-switch=${name}]`).forEach((toggle) => toggle.click());
}

function answer(word, chosen = null) {
  return work(async () => {
    const content = { ticket: question.ticket, answer: word, chosen, ...about() };
    const reply = await send("api/answer", content);
    lastAnswer = reply.id;
    say(reply.words.join(" "));
    present(reply);
    if (reply.contradiction) await showContradiction(reply.contradiction);
  });
}

function skip() {
  return work(async () => {
    const reply = await send("api/skip", { ticket: question.ticket, ...about() });
    say("Skipped: nothing was saved.");
    present(reply);
  });
}

function back() {
  return work(async () => {
    const reply = await send("api/undo", about());
    say(reply.words.join(" "));
    present(reply);
  });
}

function markLast() {
  if (!lastAnswer) return say("There is no answer to mark yet.");
  return work(async () => {
    await send("api/comment", { about: lastAnswer, text: "", review: true, ...about() });
    say("Marked your last answer for review.");
  });
}

// ---- a swipe over two documents

function swipes(view) {
  let start = null;
  view.addEventListener("touchstart", (event) => {
    const [touch] = event.touches;
    start = event.touches.length === 1 ? { x: touch.clientX, y: touch.clientY } : null;
  }, { passive: true });
  view.addEventListener("touchend", (event) => {
    if (!start || String(window.getSelection())) return;
    const [touch] = event.changedTouches;
    const across = touch.clientX - start.x;
    const along = Math.abs(touch.clientY - start.y);
    start = null;
    if (Math.abs(across) > 90 && Math.abs(across) > 2 * along) answer(across > 0 ? "same" : "different");
  });
}
