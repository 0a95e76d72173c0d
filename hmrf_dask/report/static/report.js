// The map, the chosen cluster, search and sorting. Texts become text nodes, never HTML.
"use strict";
(async () => {
  const by = (id) => document.getElementById(id);
  const data = await unpacked(by("data").textContent);
  const clusters = data.clusters;
  const place = new Map(clusters.map((cluster, at) => [cluster.id, at]));
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const called = (cluster) => cluster.name || cluster.words.slice(0, 4).join(", ");
  const titled = (cluster) => `Cluster ${cluster.id}${called(cluster) ? `: ${called(cluster)}` : ""}`;

  // ---- the map

  const canvas = by("map"), pen = canvas.getContext("2d"), hover = by("hover");
  const view = { x: 500, y: 500, scale: 1 };  // the middle in units of the map; pixels of a unit
  let fitting = 1, width = 0, height = 0, ratio = 1, waiting = false;
  let chosen = -1, pointed = -1, matched = null, colours = {};
  const largest = Math.max(1, ...clusters.map((cluster) => cluster.size));
  const bySize = clusters.map((_, at) => at).sort((a, b) => clusters[b].size - clusters[a].size);
  const radius = (at) => Math.max(3, 26 * Math.sqrt(clusters[at].size / largest)) * Math.min(2, Math.sqrt(zoom()));
  const zoom = () => view.scale / fitting;
  const toScreen = (x, y) => [width / 2 + (x - view.x) * view.scale, height / 2 + (y - view.y) * view.scale * height / width];
  const toMap = (x, y) => [view.x + (x - width / 2) / view.scale, view.y + (y - height / 2) / view.scale * width / height];

  function hue(at) {
    return (clusters[at].id * 137.508) % 360;
  }

  function readColours() {
    const style = getComputedStyle(canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
    colours = { ink: style.color, sheet: style.backgroundColor, accent: style.outlineColor, dark };
  }

  function measure() {
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    const whole = !width || zoom() < 1.01;
    ratio = Math.min(window.devicePixelRatio || 1, 2);
    width = box.width;
    height = box.height;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    fitting = width / 1040;
    if (whole) Object.assign(view, { x: 500, y: 500, scale: fitting });
    draw();
  }

  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paint(); });
  }

  function paint() {
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.sheet;
    pen.fillRect(0, 0, width, height);
    paintDocuments();
    paintClusters();
    paintLabels();
  }

  function paintDocuments() {
    const side = zoom() > 3 ? 4 : 2.5, light = colours.dark ? 62 : 45;
    let last = -1;
    for (let at = 0; at < data.ids.length; at++) {
      const [x, y] = toScreen(data.x[at], data.y[at]);
      if (x < -5 || y < -5 || x > width + 5 || y > height + 5) continue;
      const of = data.of[at], faded = (matched && !matched.documents.has(at)) || (chosen >= 0 && of !== chosen);
      const key = faded ? -2 - of : of;
      if (key !== last) {
        pen.fillStyle = `hsl(${hue(of)} 60% ${light}% / ${faded ? 0.4 : 0.9})`;
        last = key;
      }
      const wide = matched && !faded ? side + 2 : side;
      pen.fillRect(x - wide / 2, y - wide / 2, wide, wide);
    }
  }

  function paintClusters() {
    const light = colours.dark ? 62 : 42;
    for (const at of bySize) {
      const [x, y] = toScreen(clusters[at].x, clusters[at].y), size = radius(at);
      const faded = matched && !matched.clusters.has(at) && at !== chosen;
      pen.beginPath();
      pen.arc(x, y, size, 0, 7);
      pen.fillStyle = `hsl(${hue(at)} 55% ${light}% / ${faded ? 0.06 : 0.22})`;
      pen.fill();
      pen.lineWidth = at === chosen ? 3 : at === pointed ? 2 : 1;
      pen.strokeStyle = at === chosen || at === pointed ? colours.accent : `hsl(${hue(at)} 55% ${light}% / ${faded ? 0.2 : 0.9})`;
      pen.stroke();
    }
  }

  function paintLabels() {
    const taken = [], most = 24 + 40 * Math.log2(1 + zoom());
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    const order = [chosen, pointed, ...(matched ? bySize.filter((at) => matched.clusters.has(at)) : bySize)];
    let shown = 0;
    for (const at of new Set(order.filter((number) => number >= 0))) {
      const cluster = clusters[at], [x, y] = toScreen(cluster.x, cluster.y);
      if (x < 0 || y < 0 || x > width || y > height || shown > most) continue;
      const words = cluster.name || cluster.words.slice(0, zoom() > 2.5 ? 3 : 2).join(" ") || String(cluster.id);
      const label = words.length > 36 ? `${words.slice(0, 35)}…` : words;
      const half = pen.measureText(label).width / 2 + 4, centre = Math.min(Math.max(x, half), width - half);
      const box = [centre - half, y - 8, centre + half, y + 8];
      if (at !== chosen && taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
      taken.push(box);
      shown++;
      pen.lineWidth = 3;
      pen.lineJoin = "round";
      pen.strokeStyle = colours.sheet;
      pen.strokeText(label, centre, y + 4);
      pen.fillStyle = at === chosen ? colours.accent : colours.ink;
      pen.fillText(label, centre, y + 4);
    }
  }

  function zoomAt(factor, x = width / 2, y = height / 2) {
    const before = toMap(x, y);
    view.scale = Math.min(Math.max(view.scale * factor, fitting), 40 * fitting);
    const after = toMap(x, y);
    view.x += before[0] - after[0];
    view.y += before[1] - after[1];
    inside();
  }

  function inside() {
    const half = 500 / zoom();
    view.x = Math.min(Math.max(view.x, half), 1000 - half);
    view.y = Math.min(Math.max(view.y, half), 1000 - half);
    draw();
  }

  function nearest(x, y) {
    let best = -1, least = Infinity;
    clusters.forEach((cluster, at) => {
      const [cx, cy] = toScreen(cluster.x, cluster.y), far = Math.hypot(cx - x, cy - y) - radius(at);
      if (far < Math.min(least, 6)) [best, least] = [at, far];
    });
    return best;
  }

  function nearestDocument(x, y) {
    let best = -1, least = 36;
    for (let at = 0; at < data.ids.length; at++) {
      const [dx, dy] = toScreen(data.x[at], data.y[at]), far = (dx - x) ** 2 + (dy - y) ** 2;
      if (far < least) [best, least] = [at, far];
    }
    return best;
  }

  function showHover(x, y) {
    const text = nearestDocument(x, y), cluster = text >= 0 ? data.of[text] : nearest(x, y);
    if (cluster !== pointed) { pointed = cluster; draw(); }
    hover.hidden = cluster < 0;
    if (cluster < 0) return;
    hover.replaceChildren(element("b", {}, titled(clusters[cluster])));
    const said = text >= 0 ? data.texts[text] || data.ids[text] : `${clusters[cluster].size.toLocaleString("en")} documents`;
    hover.append(element("div", { dir: "auto" }, said));
    hover.style.setProperty("left", `${Math.min(x + 14, Math.max(0, width - hover.offsetWidth - 4))}px`);
    hover.style.setProperty("top", `${Math.min(y + 14, Math.max(0, height - hover.offsetHeight - 4))}px`);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  const fingers = new Map();
  let dragged = false, apart = 0;
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, at(event));
    dragged = false;
    apart = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), before = fingers.get(event.pointerId);
    if (!before) { if (event.pointerType === "mouse") showHover(x, y); return; }
    fingers.set(event.pointerId, [x, y]);
    if (fingers.size === 2) {
      const [first, second] = [...fingers.values()], far = Math.hypot(first[0] - second[0], first[1] - second[1]);
      if (apart) zoomAt(far / apart, (first[0] + second[0]) / 2, (first[1] + second[1]) / 2);
      apart = far;
      dragged = true;
    } else if (dragged || Math.hypot(x - before[0], y - before[1]) > 2) {
      if (!dragged && event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
      dragged = true;
      view.x -= (x - before[0]) / view.scale;
      view.y -= (y - before[1]) / view.scale * width / height;
      inside();
    }
  });
  const lift = (event) => fingers.delete(event.pointerId);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerup", (event) => {
    lift(event);
    if (dragged) return;
    const [x, y] = at(event), found = nearest(x, y), text = nearestDocument(x, y);
    choose(found >= 0 ? found : text >= 0 ? data.of[text] : -1);
  });
  canvas.addEventListener("pointerleave", () => { hover.hidden = true; pointed = -1; draw(); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
    event.preventDefault();
    zoomAt(Math.exp(-event.deltaY / 200), ...at(event));
  }, { passive: false });

  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ways) choose(next(...ways[event.key]));
    else if (event.key === "+" || event.key === "=") zoomAt(1.5);
    else if (event.key === "-") zoomAt(1 / 1.5);
    else if (event.key === "0") zoomAt(1e-9);
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
  });
  by("closer").addEventListener("click", () => zoomAt(1.5));
  by("farther").addEventListener("click", () => zoomAt(1 / 1.5));
  by("whole").addEventListener("click", () => zoomAt(1e-9));

  function next(right, down) {
    if (chosen < 0) return bySize[0] ?? -1;
    const from = clusters[chosen];
    let best = chosen, least = Infinity;
    clusters.forEach((cluster, number) => {
      const x = cluster.x - from.x, y = cluster.y - from.y, along = x * right + y * down;
      const cost = along + 2 * Math.abs(x * down + y * right);
      if (number !== chosen && along > 0 && cost < least) [best, least] = [number, cost];
    });
    return best;
  }

  // ---- the chosen cluster

  const panel = by("cluster");
  let relevance = 0.6;

  function choose(number) {
    chosen = number;
    document.querySelector("tr.chosen")?.classList.remove("chosen");
    if (number < 0) {
      panel.replaceChildren(element("p", { class: "soft" }, "Choose a cluster on the map or in the table: its words, documents and neighbours come here."));
    } else {
      by(`c${clusters[number].id}`)?.classList.add("chosen");
      show(clusters[number]);
      const [x, y] = toScreen(clusters[number].x, clusters[number].y);
      if (x < 0 || y < 0 || x > width || y > height) { [view.x, view.y] = [clusters[number].x, clusters[number].y]; inside(); }
    }
    draw();
  }

  function show(cluster) {
    const bars = element("div", { class: "bars" });
    panel.replaceChildren(
      element("h3", { dir: "auto" }, titled(cluster)),
      element("p", { class: "soft" }, `${cluster.size.toLocaleString("en")} documents`));
    if (cluster.bars) {
      const slider = element("input", { type: "range", min: 0, max: 1, step: 0.05, value: relevance });
      slider.addEventListener("input", () => { relevance = Number(slider.value); fill(bars, cluster); });
      panel.append(element("h4", {}, "Words"), element("label", { class: "soft" }, "special here ", slider, " heavy here"), bars,
        element("p", { class: "soft" }, "A bar is the word's weight in the centre; its dark part is more than in all documents together. A click on a word marks where else it is on the map."));
      fill(bars, cluster);
    }
    for (const [title, texts, withOther] of [["Typical documents", cluster.typical, false], ["Borderline documents", cluster.borderline, true]]) {
      if (!texts?.length) continue;
      panel.append(element("h4", {}, title));
      for (const text of texts) panel.append(documentOf(text, cluster, withOther));
    }
    if (cluster.near.length) {
      const list = element("p", {}, "Most like: ");
      cluster.near.forEach(([id, likeness], number) => {
        const other = clusters[place.get(id)];
        list.append(number ? ", " : "", element("a", { href: `#c${id}` }, String(id)), ` ${other ? called(other) : ""} (${likeness})`);
      });
      panel.append(list);
    }
  }

  function fill(bars, cluster) {
    // Relevance as in LDAvis: λ log weight + (1 − λ) log lift.
    const score = ([, weight, lift]) => relevance * Math.log(weight) + (1 - relevance) * Math.log(lift);
    const first = [...cluster.bars].sort((a, b) => score(b) - score(a)).slice(0, 12);
    const most = Math.max(...first.map((bar) => bar[1]));
    bars.replaceChildren();
    for (const [word, weight, lift, learned] of first) {
      const title = `weight ${weight}, ${lift} times that of all documents${learned === undefined ? "" : `, learned weight ${learned}`}`;
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 100 10");
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", title);
      for (const [kind, size] of [["pale-bar", 100 * weight / most], ["bar", 100 * weight / most * (1 - 1 / Math.max(lift, 1))]]) {
        const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        bar.setAttribute("class", kind);
        bar.setAttribute("width", size.toFixed(1));
        bar.setAttribute("height", "10");
        svg.append(bar);
      }
      const name = element("button", { type: "button", class: "word", dir: "auto", title: `Where else: ${word}` }, word);
      name.addEventListener("click", () => {
        const again = by("search").value === word;  // a second click lets go of it
        by("search").value = again ? "" : word;
        search(by("search").value);
      });
      if (learned !== undefined) name.append(" ", element("span", { class: "learned" }, `×${learned}`));
      bars.append(name, svg);
    }
  }

  function documentOf([id, text, other], cluster, withOther) {
    const words = new Set(cluster.words.concat(cluster.bars?.map((bar) => bar[0]) ?? []).flatMap((word) => word.toLowerCase().split(/\s+/)));
    const shown = element("div", { class: "text" });
    const head = element("div", { class: "id", dir: "auto" }, id);
    if (withOther && other !== null) {
      const near = clusters[place.get(other)];
      head.append(element("span", {}, ` · nearly in ${other}${near && called(near) ? ` (${called(near)})` : ""}`));
    }
    const body = element("div", { dir: "auto" });
    for (const part of text.split(/([\p{L}\p{N}]+)/u)) body.append(words.has(part.toLowerCase()) ? element("mark", {}, part) : part);
    shown.append(head, body);
    return shown;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#c']");
    const number = link ? place.get(Number(link.hash.slice(2))) : undefined;
    if (number === undefined) return;
    event.preventDefault();
    choose(number);
    by("map-part").scrollIntoView({ behavior: calm ? "auto" : "smooth" });
    panel.focus({ preventScroll: true });
  });

  // ---- search, filter, sort

  const lower = clusters.map((cluster) => `${cluster.id} ${cluster.name} ${cluster.words.join(" ")}`.toLowerCase());
  let texts = null;

  function search(wanted) {
    const needle = wanted.trim().toLowerCase();
    if (!needle) { matched = null; by("found").textContent = ""; draw(); return; }
    texts ??= data.ids.map((id, number) => `${id} ${data.texts[number] ?? ""}`.toLowerCase());
    matched = { clusters: new Set(), documents: new Set() };
    lower.forEach((words, number) => { if (words.includes(needle)) matched.clusters.add(number); });
    texts.forEach((text, number) => { if (text.includes(needle)) matched.documents.add(number); });
    by("found").textContent = `${matched.clusters.size} clusters, ${matched.documents.size} of ${texts.length} documents`;
    draw();
  }

  const rows = [...by("table").tBodies[0].rows];
  function filter(wanted) {
    const needle = wanted.trim().toLowerCase();
    let left = 0;
    rows.forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(needle);
      left += !row.hidden;
    });
    by("filtered").textContent = needle ? `${left} of ${rows.length} clusters` : "";
  }

  function numberOf(text) {
    const number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? 0 : number;
  }

  function later(work) {
    let timer = 0;
    return (event) => { clearTimeout(timer); timer = setTimeout(() => work(event.target.value), 120); };
  }
  by("search").addEventListener("input", later(search));
  by("filter").addEventListener("input", later(filter));

  document.querySelectorAll("#table th[data-sort]").forEach((head) => {
    const button = element("button", { type: "button" }, head.textContent), column = head.cellIndex;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : head.classList.contains("number");
      document.querySelectorAll("#table th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = head.dataset.sort === "number" ? (row) => numberOf(row.cells[column].textContent) : (row) => row.cells[column].textContent;
      const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1);
      by("table").tBodies[0].append(...rows.sort(order));
    });
  });

  document.querySelectorAll(".needs-script").forEach((part) => { part.hidden = false; });
  readColours();
  choose(bySize[0] ?? -1);
  measure();
  new ResizeObserver(measure).observe(canvas);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => { readColours(); paint(); });
  }
  document.documentElement.dataset.ready = "yes";
})();
