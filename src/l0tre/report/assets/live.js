// Pages that a server sends, and goes on sending: a run at work, the list of runs, runs side by side.

/** Listen to a server's events; the browser connects again by itself, and then gets everything anew. */
function listen(address, handlers, told) {
  const source = new EventSource(address);
  for (const [kind, handler] of Object.entries(handlers)) source.addEventListener(kind, (event) => handler(JSON.parse(event.data)));
  source.onopen = () => told(true);
  source.onerror = () => told(false);
  return source;
}

function pathOf(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

/** Show what a server's address asks for. */
function follow(main) {
  const path = decodeURIComponent(location.pathname);
  main.replaceChildren();
  if (path.startsWith("/runs/")) followRun(main, path.slice("/runs/".length));
  else if (path === "/compare") showCompared(main);
  else followRuns(main);
}

function connection() {
  const node = el("span", { role: "status" });
  const told = (good) => { node.textContent = good ? "" : "connection lost: this is the last known state; trying again"; node.className = good ? "" : "warning"; };
  return [node, told];
}

const PHASES = { "at work": "at work", stopping: "stopping", stopped: "stopped: it can be resumed", finished: "finished", damaged: "cannot be read" };

function followRun(main, name) {
  const page = new Page({ sheet: (number) => `/api/sheet/${number}/${pathOf(name)}`, extra: async (row) => (await fetch(`/api/extra/${row}/${pathOf(name)}`)).json() });
  page.json = async () => (await fetch(`/api/result/${pathOf(name)}`)).text();
  const [lost, told] = connection();
  const phase = el("strong", { id: "phase" }), age = el("span", { class: "soft" }), failed = el("span", { class: "warning", role: "alert" });
  const stop = el("button", { type: "button", class: "stop", hidden: true, onclick: async () => {
    stop.disabled = true;
    failed.textContent = "";
    const answer = await fetch(`/api/stop/${pathOf(name)}`, { method: "POST", headers: { "X-L0tre-Stop": document.querySelector("meta[name=l0tre-stop]").content } }).catch((error) => error);
    if (!answer.ok) { stop.disabled = false; failed.textContent = `not stopped: ${(await answer.json?.().catch(() => null))?.error ?? answer.message ?? answer.status}`; }
  } }, "stop");
  const title = el("h1", {}, name), body = el("div", { class: "grid" });
  const status = el("div", { class: "status" }, el("a", { href: "/" }, "all runs"), phase, age, stop, failed, lost);
  main.append(status, title, body);
  const nodes = new Map();
  const put = (block) => {
    const node = drawBlock(block, page), old = nodes.get(block.id);
    nodes.set(block.id, node);
    if (old) old.replaceWith(node); else body.append(node);
  };
  const begin = (data) => {
    document.title = data.title;
    title.textContent = data.title;
    const number = page.number;
    page.number = data.number;
    if (number !== undefined && nodes.size) { // connected again: keep what people chose, change what differs
      for (const block of data.blocks) if (block.type !== "gallery" && nodes.has(block.id)) put(block);
      if (data.result.images.length === page.result.images.length) return page.setResult(data.result, false);
    }
    nodes.clear();
    body.replaceChildren();
    page.result = data.result;
    data.blocks.forEach(put);
    return undefined;
  };
  const change = (data) => {
    if (data.fresh) return begin(data);
    page.number = data.number;
    for (const block of data.blocks) if (block.type !== "gallery") put(block);
    for (const [row, entry] of data.rows) page.result.images[row] = entry;
    page.result.state = data.state;
    if (data.rows.length) page.setResult(page.result, false);
    return undefined;
  };
  const tell = (state) => {
    phase.textContent = PHASES[state.phase] ?? state.phase;
    phase.className = state.phase;
    age.textContent = state.phase === "at work" ? `last step ${show(Math.round(state.age))} s ago` : state.reason ?? "";
    stop.hidden = !["at work", "stopping"].includes(state.phase);
    stop.disabled = state.phase === "stopping";
  };
  listen(`/api/events/${pathOf(name)}`, { page: begin, change, status: tell }, told);
}

/** The list of all runs: choose some to see them side by side. */
function followRuns(main) {
  const [lost, told] = connection();
  const chosen = new Set();
  const compareButton = el("button", { type: "button", disabled: true, onclick: () => { location.href = `/compare?${[...chosen].map((name) => `run=${encodeURIComponent(name)}`).join("&")}`; } }, "compare the chosen ones");
  const search = el("input", { type: "search", "aria-label": "search runs", placeholder: "search", oninput: () => draw() });
  const table = el("table", { class: "images runs" });
  const state = { column: null, down: false };
  let rows = [];
  const heads = [["name", "run", "text"], ["phase", "state", "text"], ["model", "model", "text"], ["data", "data", "text"], ["images", "images", "number"], ["lower", "lower, mean", "number"], ["upper", "upper, mean", "number"], ["exact", "exact", "share"], ["t", "t", "number"], ["seconds", "seconds", "seconds"]];
  const draw = () => {
    const wish = search.value.toLowerCase();
    const shown = rows.filter((row) => heads.some(([key]) => String(row[key] ?? "").toLowerCase().includes(wish)));
    if (state.column !== null) shown.sort((a, b) => compare(a[heads[state.column][0]], b[heads[state.column][0]]) * (state.down ? -1 : 1));
    const line = (row) => el("tr", { class: row.phase }, el("td", {}, el("input", { type: "checkbox", "aria-label": `choose ${row.name}`, checked: chosen.has(row.name), disabled: row.phase === "damaged", onchange: (event) => { if (event.target.checked) chosen.add(row.name); else chosen.delete(row.name); compareButton.disabled = chosen.size < 2; } })),
      heads.map(([key, , kind]) => (key === "name" ? el("th", { scope: "row" }, el("a", { href: `/runs/${pathOf(row.name)}` }, row.name)) : el("td", { class: `${kind} ${key === "phase" ? row.phase : ""}`, title: key === "phase" ? row.reason : null }, row[key] === undefined ? "" : KINDS[kind](row[key])))));
    table.replaceChildren(el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "hidden" }, "choose")), heads.map(([, name, kind], place) => sortHead(name, kind, state, place, draw)))), el("tbody", {}, shown.map(line)));
    empty.hidden = rows.length > 0;
  };
  const empty = el("p", { class: "soft" }, "There is no run folder here yet; this list follows the folder.");
  main.append(el("h1", {}, "Runs"), el("div", { class: "status" }, search, compareButton, lost), el("div", { class: "scroll" }, table), empty);
  listen("/api/events", { runs: (list) => { rows = list; draw(); } }, told);
}

async function showCompared(main) {
  const answer = await fetch(`/api/compare${location.search}`);
  const data = await answer.json();
  main.append(el("div", { class: "status" }, el("a", { href: "/" }, "all runs")));
  if (!answer.ok) return main.append(el("p", { class: "warning" }, data.error));
  document.title = data.title;
  const page = new Page({ sheet: () => "", extra: () => ({}) });
  return main.append(el("h1", {}, data.title), el("div", { class: "grid" }, drawBlocks(data.blocks, page)));
}
