// Lists: all answers, disputes, groups and their names, people.

import { showContradiction } from "./contradiction.js";
import { button, complain, find, make, plural, replace, say } from "./dom.js";
import { ask, send } from "./server.js";
import { excerpt } from "./texts.js";
import { memory } from "./memory.js";

const filters = { search: "", only: "", person: "", start: 0 };

function heading(words) {
  return make("h2", { tabindex: "-1" }, words);
}

function share(value) {
  return value === null ? "–" : `${Math.round(100 * value)} %`;
}

// Sends a change, then shows the view again; what was said stays.
async function change(path, content, view) {
  try {
    const reply = await send(path, { annotator: memory.person, ...content });
    complain("");
    say((reply.words || ["Saved."]).join(" "));
    if (reply.contradiction) await showContradiction(reply.contradiction);
    await view();
  } catch (error) {
    complain(error.message);
  }
}

// ---- answers

export async function showAnswers() {
  const main = find("main");
  const found = await ask("api/answers", filters);
  const list = make("div", {});
  replace(main, make("section", {}, heading("Answers"), filterForm(found.people, list), list));
  fillAnswers(list, found);
}

async function refill(list) {
  try {
    fillAnswers(list, await ask("api/answers", filters));
  } catch (error) {
    complain(error.message);
  }
}

function filterForm(people, list) {
  const again = () => { filters.start = 0; return refill(list); };
  const choice = (name, words, options) => make("label", {}, `${words} `, make("select", {
    onchange: (event) => { filters[name] = event.target.value; again(); },
  }, options.map(([value, text]) => make("option", { value, selected: filters[name] === value }, text))));
  return make("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    make("label", {}, "Search ", make("input", {
      type: "search", value: filters.search, dir: "auto", maxlength: 200,
      oninput: (event) => { filters.search = event.target.value; again(); },
    })),
    choice("only", "Show", [
      ["", "all"], ["review", "marked for review"], ["disputed", "disputed"],
      ["unknown", "don't know"], ["control", "asked again"],
    ]),
    choice("person", "By", [["", "everybody"], ...people.map((name) => [`=${name}`, name || "no name"])]));
}

function fillAnswers(list, found) {
  const turn = (start, words) => button(words, "", () => { filters.start = start; refill(list); });
  replace(list,
    make("p", { role: "status" }, found.total ? `${plural(found.total, "answer")}; the last ones first.` : "No answers yet, or none like this."),
    make("ol", { class: "entries", start: found.start + 1 }, found.answers.map(answerItem)),
    make("p", { class: "commands" },
      found.start ? turn(Math.max(0, found.start - found.page), "Newer") : null,
      found.start + found.page < found.total ? turn(found.start + found.page, "Older") : null));
}

function answerItem(entry) {
  const again = (path, content) => change(path, { about: entry.id, ...content }, showAnswers);
  const label = `The answer about ${excerpt(entry.documents[0].text, 40)}`;
  return make("li", { class: entry.disputed ? "entry disputed" : "entry" },
    entry.documents.map((one) => make("p", { class: "text", dir: "auto" }, excerpt(one.text, 200))),
    make("p", { class: "who" }, entry.who, entry.disputed ? make("strong", {}, " disputed") : null),
    make("p", { class: "commands" },
      make("select", { "aria-label": label, onchange: (event) => again("api/change", { option: event.target.value }) },
        entry.options.map((one) => make("option", { value: one.value, selected: one.value === entry.option, dir: "auto" }, one.words))),
      button("Take back", "", () => again("api/undo", {}), { class: "quiet" }),
      button(entry.review ? "No review" : "Mark for review", "", () =>
        again("api/comment", { text: "", review: !entry.review }), { class: "quiet", "aria-pressed": String(entry.review) })),
    entry.comments.map((one) => make("p", { class: "comment", dir: "auto" }, `${one.annotator || "somebody"}: ${one.text}`)),
    make("form", { class: "commands", onsubmit: (event) => {
      event.preventDefault();
      const text = new FormData(event.target).get("text").trim();
      if (text) again("api/comment", { text, review: entry.review });
    } },
    make("input", { name: "text", "aria-label": "Comment", placeholder: "Comment", maxlength: 2000, dir: "auto" }),
    make("button", { class: "quiet" }, "Save")));
}

// ---- disputes

export async function showDisputes() {
  const found = await ask("api/disputes");
  const nothing = !found.contradictions.length && !found.disputes.length && !found.set_aside.length;
  replace(find("main"), make("section", {},
    heading("Disputes"),
    nothing ? make("p", {}, "No answers contradict one another, and nobody gave a document up.") : null,
    found.contradictions.map(contradictionItem),
    found.disputes.length ? make("h3", {}, "Documents about which answers differ") : null,
    found.disputes.map((one) => documentItem(one)),
    found.set_aside.length ? make("h3", {}, "Set aside: nobody could place these") : null,
    found.set_aside.map((one) => documentItem(one))));
}

function contradictionItem(one) {
  return make("section", { class: "entry disputed" }, make("h3", {}, "A chain that contradicts itself"),
    make("p", {}, one.words), make("ol", {}, one.links.map(linkItem)));
}

function documentItem(one) {
  return make("section", { class: "entry" },
    make("p", { class: "text", dir: "auto" }, excerpt(one.text, 300)),
    make("p", {}, one.words), make("ol", {}, one.links.map(linkItem)));
}

function linkItem(link) {
  return make("li", {}, link.texts.map((text) => make("p", { class: "text", dir: "auto" }, excerpt(text, 120))),
    make("p", {}, link.says, " ", make("span", { class: "who" }, link.who), " ",
      button("Take this one back", "", () => change("api/undo", { about: link.id }, showDisputes), { class: "quiet" })));
}

// ---- groups

export async function showGroups() {
  const { groups } = await ask("api/groups");
  replace(find("main"), make("section", {}, heading("Groups"),
    make("p", {}, "A group is called by its words until somebody names it; the name is saved with the answers."),
    make("ol", { class: "entries" }, groups.map(groupItem))));
}

function groupItem(group) {
  const words = group.words.join(" · ");
  return make("li", { class: "entry" },
    make("form", { class: "commands", onsubmit: (event) => {
      event.preventDefault();
      const name = new FormData(event.target).get("name").trim();
      change("api/name", { document: group.document, name }, showGroups);
    } },
    make("input", { name: "name", value: group.own_name, placeholder: words || group.name, "aria-label": `Name of the group ${group.name}`, maxlength: 200, dir: "auto" }),
    make("button", {}, "Save the name")),
    words ? make("p", { class: "words", dir: "auto" }, words) : null,
    group.size === null ? null : make("p", { class: "who" }, plural(group.size, "document")),
    group.representatives.map((one) => make("p", { class: "text", dir: "auto" }, excerpt(one.text, 200))));
}

// ---- people

export async function showPeople() {
  const { people } = await ask("api/people");
  const columns = ["Name", "Answers", "Don't know", "Seconds", "Agrees with others", "Asked again", "Answered otherwise", "Wrong, estimated"];
  const cells = (one) => [
    one.name || "no name", one.answers, one.unknown, one.seconds.toFixed(1),
    one.compared ? `${share(one.agreement)} of ${one.compared}` : "–",
    one.controls, one.controls ? share(one.control_errors / one.controls) : "–", share(one.error),
  ];
  replace(find("main"), make("section", {}, heading("People"),
    make("p", {}, "About one question in ten was answered before: how somebody answers it again says how far answers can be trusted."),
    people.length ? make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "People" }, make("table", {},
      make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, people.map((one) => make("tr", {}, cells(one).map((cell, at) =>
        make(at ? "td" : "th", at ? {} : { scope: "row", dir: "auto" }, String(cell)))))))) : make("p", {}, "No answers yet.")));
}
