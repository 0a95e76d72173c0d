// A chain of answers that cannot all be right, and the question which of them is wrong.

import { button, complain, find, make, replace, say } from "./dom.js";
import { send } from "./server.js";
import { excerpt } from "./texts.js";
import { memory } from "./memory.js";

// Resolves once the person has said which link is wrong, or that none is for now.
export function showContradiction(contradiction) {
  const dialog = find("contradiction");
  find("contradiction-words").textContent = contradiction.words;
  return new Promise((resolve) => {
    const links = contradiction.links.map((link, place) => linkItem(link, place, async () => {
      try {
        const reply = await send("api/undo", { about: link.id, annotator: memory.person });
        say(reply.words.join(" "));
      } catch (error) {
        complain(error.message);
      }
      dialog.close();
    }));
    replace(find("chain"), links);
    const keys = (event) => {
      const chosen = links[Number(event.key) - 1];
      if (chosen && !event.repeat) chosen.querySelector("button").click();
    };
    dialog.addEventListener("keydown", keys);
    dialog.addEventListener("close", () => {
      dialog.removeEventListener("keydown", keys);
      resolve();
    }, { once: true });
    dialog.showModal();
  });
}

function linkItem(link, place, wrong) {
  const [first, second] = link.texts;
  return make("li", { class: "link" },
    make("blockquote", { dir: "auto" }, excerpt(first)),
    make("p", { class: `said-${link.answer}` }, link.says),
    second === undefined ? null : make("blockquote", { dir: "auto" }, excerpt(second)),
    make("p", { class: "who" }, link.who),
    button("This one is wrong", String(place + 1), wrong));
}
