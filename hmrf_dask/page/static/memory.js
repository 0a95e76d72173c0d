// What a browser remembers of a person between visits.

function stored(name, otherwise) {
  try {
    return localStorage.getItem(`hmrf-dask-${name}`) ?? otherwise;
  } catch {
    return otherwise; // a browser that stores nothing
  }
}

function store(name, value) {
  try {
    localStorage.setItem(`hmrf-dask-${name}`, value);
  } catch {
    // it lasts as long as the page
  }
}

// Two tabs are not asked the same; a tab that is loaded again is.
function tab() {
  try {
    const known = sessionStorage.getItem("hmrf-dask-tab") || crypto.getRandomValues(new Uint32Array(3)).join("-");
    sessionStorage.setItem("hmrf-dask-tab", known);
    return known;
  } catch {
    return String(Math.random());
  }
}

const now = {
  tab: tab(),
  person: stored("person", ""),
  kind: stored("kind", ""),
  keys: stored("keys", "yes"),
};

export const memory = new Proxy(now, {
  set(target, name, value) {
    target[name] = value;
    store(name, value);
    return true;
  },
});
