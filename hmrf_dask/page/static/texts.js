// Documents: marked words, passages of long ones, other columns on demand.

import { button, complain, make, plural } from "./dom.js";
import { ask } from "./server.js";

function paragraph(segments) {
  return make("p", { dir: "auto", class: "text" }, segments.map(
    ([text, kind]) => (kind ? make("mark", { class: kind }, text) : text),
  ));
}

// A document as an article; `open` and `columns` are its two switches, for keys.
export function documentView(shown, heading, ticket) {
  const body = make("div", { class: "body", tabindex: "0", role: "group", "aria-label": heading }, shown.passages.map(paragraph));
  const title = make("h3", { dir: "auto" }, heading);
  const view = make("article", { class: "document", "data-document": shown.id }, title, body);
  if (shown.folded) foldable(view, body, shown, ticket);
  columnsOnDemand(view, shown, ticket);
  return view;
}

function foldable(view, body, shown, ticket) {
  const all = `Show all ${plural(shown.characters, "character")}`;
  let whole = false;
  const toggle = button(all, "o", async () => {
    try {
      const full = whole ? shown : await ask("api/document", { id: shown.id, ticket });
      whole = !whole;
      body.replaceChildren(...full.passages.map(paragraph));
      body.classList.toggle("folded", !whole);
      toggle.lastChild.textContent = whole ? "Show the telling passages" : all;
      toggle.setAttribute("aria-expanded", String(whole));
    } catch (error) {
      complain(error.message);
    }
  }, { class: "quiet", "aria-expanded": "false", "data-switch": "open" });
  body.classList.add("folded");
  view.append(toggle);
}

function columnsOnDemand(view, shown, ticket) {
  const list = make("dl", { class: "columns", hidden: true });
  const toggle = button("Other columns", "m", async () => {
    if (list.hidden && !list.children.length) {
      const { columns } = await ask("api/columns", { id: shown.id, ticket }).catch((error) => {
        complain(error.message);
        return { columns: null };
      });
      if (!columns) return;
      const named = Object.entries(columns);
      list.append(...named.map(([name, value]) => make("div", {},
        make("dt", { dir: "auto" }, name), make("dd", { dir: "auto" }, String(value)))));
      if (!named.length) list.append(make("div", {}, make("dt", {}, "id"), make("dd", {}, shown.id)));
    }
    list.hidden = !list.hidden;
    toggle.setAttribute("aria-expanded", String(!list.hidden));
  }, { class: "quiet", "aria-expanded": "false", "data-switch": "columns" });
  view.append(toggle, list);
}

export function excerpt(text, length = 160) {
  return text.length > length ? `${text.slice(0, length).trimEnd()} …` : text;
}
