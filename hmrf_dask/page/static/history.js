// Rounds so far, whether more questions are worth asking, and a refit while the page goes on.

import { button, complain, find, make, plural, replace, say } from "./dom.js";
import { ask, send } from "./server.js";

const PAUSE = 1000; // milliseconds between two looks at a refit
let watching = false;

export async function showHistory() {
  const found = await ask("api/history");
  replace(find("main"), make("section", { "data-history": true },
    make("h2", { tabindex: "-1" }, "History"),
    make("p", { class: "outlook" }, found.outlook),
    make("div", { id: "refit" }, refitView(found.refit)),
    roundsTable(found.rounds)));
  if (found.refit.state === "running") watch();
}

function number(value, digits = 3) {
  return value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toLocaleString("en");
}

function roundsTable(rounds) {
  const columns = ["Release", "When", "Answers", "Clusters", "J", "NMI", "Documents", "Moved"];
  const cells = (one) => [one.release, one.when, number(one.answers, 9), number(one.clusters, 9),
    number(one.J, 6), number(one.nmi), number(one.documents, 9), number(one.moved, 9)];
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Releases" }, make("table", {},
    make("caption", {}, "Releases: answers are those of the journal that the run took; moved are documents in another cluster than before"),
    make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rounds.map((one) => make("tr", {}, cells(one).map((cell, at) =>
      make(at ? "td" : "th", at ? {} : { scope: "row" }, String(cell))))))));
}

function refitView(refit) {
  if (refit.state === "running") {
    const known = refit.of > 0;
    return [
      make("p", { role: "status" }, `Refit: ${refit.step || "begins"} …`),
      make("progress", known ? { max: refit.of, value: refit.done, "aria-label": "Refit" } : { "aria-label": "Refit" }),
      make("p", {}, "Questions go on meanwhile."),
    ];
  }
  const start = refit.refused ? make("p", {}, refit.refused) : make("p", { class: "commands" }, button("Refit with the answers so far", "", begin));
  if (refit.state === "failed") return [make("p", { class: "failed" }, `The refit failed: ${refit.words}`), start];
  return refit.state === "done" ? [moved(refit), start] : [start];
}

function moved(refit) {
  const { before, after } = refit;
  return make("section", { class: "moved" },
    make("h3", {}, "The refit is done"),
    make("p", {}, `${plural(after.moved ?? 0, "document")} moved to another cluster. J ${number(before?.J, 6)} before, ${number(after.J, 6)} after; ` +
      `clusters ${number(before?.clusters, 9)} before, ${number(after.clusters, 9)} after${after.nmi === null ? "" : `; NMI ${number(before?.nmi)} before, ${number(after.nmi)} after`}.`),
    make("ul", {}, refit.flows.map((flow) => make("li", { dir: "auto" },
      `${plural(flow.documents, "document")}: ${flow.from} → ${flow.to}`))));
}

async function begin() {
  try {
    await send("api/refit", {});
    say("The refit began; questions go on meanwhile.");
    await showHistory();
  } catch (error) {
    complain(error.message);
  }
}

async function watch() {
  if (watching) return;
  watching = true;
  try {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
      const refit = await ask("api/refit");
      const place = find("refit");
      if (refit.state !== "running") {
        say(refit.state === "done" ? "The refit is done: see History." : "The refit failed: see History.");
        if (document.querySelector("[data-history]")) await showHistory();
        return;
      }
      if (place) replace(place, refitView(refit));
    }
  } catch (error) {
    complain(error.message);
  } finally {
    watching = false;
  }
}
