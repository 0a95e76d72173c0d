// What the page asks its server, and sends it; a refusal is an error with the server's words.

const key = document.querySelector("meta[name=page-key]").content;

async function reply(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The server does not answer, so nothing was saved. Start it again, then open its new address.");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error || `The server refused: ${response.status}.`);
  return content;
}

export function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return reply(query ? `${path}?${query}` : path, {});
}

export function send(path, content) {
  return reply(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Page-Key": key },
    body: JSON.stringify(content),
  });
}
