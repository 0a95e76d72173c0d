// The clusters of the last release: named, merged, split and frozen, all of which can be taken back.

import { button, complain, find, make, plural, replace, say } from "./dom.js";
import { ask, send } from "./server.js";
import { memory } from "./memory.js";

const chosen = new Set(); // clusters to merge

export async function showClusters() {
  const found = await ask("api/clusters");
  const there = new Set(found.clusters.map((one) => one.cluster));
  for (const cluster of [...chosen]) if (!there.has(cluster)) chosen.delete(cluster);
  replace(find("main"), make("section", {},
    make("h2", { tabindex: "-1" }, "Clusters"),
    found.refused ? make("p", {}, found.refused) : waitingView(found.waiting, found.refit),
    found.refused ? null : mergeView(found.clusters),
    make("ol", { class: "entries clusters" }, found.clusters.map((one) => clusterItem(one, found)))));
  follow(found.clusters);
}

// Sends an edit, then shows all again; the focus stays with what was pressed.
async function edit(verb, clusters, name = "") {
  const place = document.activeElement?.dataset.place;
  try {
    const reply = await send("api/edit", { annotator: memory.person, verb, clusters, name });
    complain("");
    if (verb === "merge") chosen.clear();
    await showClusters();
    say(reply.words.join(" "));
    const again = [...document.querySelectorAll("[data-place]")].find((one) => one.dataset.place === place);
    (again && !again.disabled ? again : document.querySelector("main h2")).focus();
  } catch (error) {
    complain(error.message);
  }
}

function waitingView(waiting, refused) {
  if (!waiting.length) {
    return make("p", {}, "A name is there at once. Clusters are merged, split and frozen by the next run of the job; until then, and afterwards, all can be taken back.");
  }
  const how = refused ? "" : " It can be started under History.";
  return make("p", { role: "status" }, `For the next run: ${waiting.join("; ")}.${how}`);
}

function mergeView(clusters) {
  return make("p", { class: "commands" },
    button("Merge the chosen clusters", "", () => {
      const largest = clusters.filter((one) => chosen.has(one.cluster)).map((one) => one.cluster);
      edit("merge", largest);
    }, { id: "merge", "data-place": "merge" }),
    make("span", { id: "to-merge", class: "who", "aria-live": "polite" }));
}

// Says what merging would do, as clusters are chosen.
function follow(clusters) {
  const merge = find("merge");
  if (!merge) return;
  const several = clusters.filter((one) => chosen.has(one.cluster)).map((one) => one.cluster);
  merge.disabled = several.length < 2;
  find("to-merge").textContent = several.length < 2
    ? "Choose at least two; the largest keeps its number."
    : `${several.slice(1).join(", ")} would go into ${several[0]}.`;
}

function clusterItem(one, found) {
  const title = `cluster-${one.cluster}`;
  const act = (words, verb, properties = {}) => button(words, "", () => edit(verb, [one.cluster]), {
    class: "quiet", "aria-describedby": title, "data-place": `${verb} ${one.cluster}`, ...properties,
  });
  const choose = make("label", {}, make("input", {
    type: "checkbox", checked: chosen.has(one.cluster), "data-place": `choose ${one.cluster}`, "aria-describedby": title,
    onchange: (event) => {
      if (event.target.checked) chosen.add(one.cluster);
      else chosen.delete(one.cluster);
      follow(found.clusters);
    },
  }), " Merge");
  return make("li", { class: "entry", value: one.cluster },
    make("h3", { id: title, dir: "auto" }, one.name, one.frozen ? make("span", { class: "likely" }, "frozen") : null),
    make("p", { class: "who" }, `Cluster ${one.cluster}, ${plural(one.size, "document")}`),
    one.words.length ? make("p", { class: "words", dir: "auto" }, one.words.join(" · ")) : null,
    found.refused ? null : make("form", { class: "commands", onsubmit: (event) => {
      event.preventDefault();
      edit("rename", [one.cluster], new FormData(event.target).get("name"));
    } },
    make("input", { name: "name", required: true, maxlength: 200, dir: "auto", "aria-label": `Name of cluster ${one.cluster}`, placeholder: one.name }),
    make("button", { class: "quiet", "data-place": `rename ${one.cluster}` }, "Save the name"),
    one.frozen ? null : [choose, act("Split in two", "split"), act("Freeze", "freeze")],
    one.last ? act(`Take back ${one.last}`, "undo") : null));
}
