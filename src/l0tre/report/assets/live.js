// Pages that a server sends, and goes on sending: a run at work, the list of runs, runs side by side.

const AGAIN = 3000; // milliseconds until a server that refused is asked again

/** Listen to a server's events; who connects again gets everything anew. */
function listen(address, handlers, told) {
  const source = new EventSource(address);
  for (const [kind, handler] of Object.entries(handlers)) source.addEventListener(kind, (event) => handler(JSON.parse(event.data || "null")));
  source.onopen = () => told(true);
  source.onerror = async () => {
    told(false);
    if (source.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    told(false, await refusal(address));
    setTimeout(() => listen(address, handlers, told), AGAIN);
  };
}

/** Why a server refuses events; empty if it does not. */
async function refusal(address) {
  const answer = await fetch(address).catch(() => null);
  if (answer === null) return "";
  if (answer.ok) { answer.body.cancel(); return ""; }
  const text = await answer.text();
  try { return JSON.parse(text).error; } catch { return text; }
}

/** Ask for the end of a run; the token of a server that was started anew is on its page. */
async function askStop(name) {
  const ask = (token) => fetch(`/api/stop/${pathOf(name)}`, { method: "POST", headers: { "X-L0tre-Stop": token } });
  const answer = await ask(document.querySelector("meta[name=l0tre-stop]").content);
  if (answer.status !== 403) return answer;
  const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
  return ask(page.querySelector("meta[name=l0tre-stop]")?.content ?? "");
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

/** What is said about the connection: nothing while there is one. */
function connection() {
  const node = el("span", { role: "status" });
  let ended = false;
  const told = (good, why = "") => {
    if (good) ended = false;
    node.textContent = good ? "" : why ? `the server says: ${plain(why)}; trying again` : ended ? "the server has ended: this is the last state it knew" : "connection lost: this is the last known state; trying again";
    node.className = good ? "" : "warning";
  };
  const closed = () => { ended = true; told(false); };
  return [node, told, closed];
}

const PHASES = { "at work": "at work", silent: "silent", stopping: "stopping", stopped: "stopped: it can be resumed", finished: "finished", damaged: "cannot be read" };

/** Seconds for people. */
function ago(seconds) {
  const [size, unit] = seconds < 100 ? [1, "s"] : seconds < 6000 ? [60, "min"] : seconds < 172800 ? [3600, "h"] : [86400, "days"];
  return `${Math.round(seconds / size)} ${unit}`;
}

/** What is known of a run beside its phase. */
function phaseWords(state) {
  if (state.phase === "silent") return `no step for ${ago(state.age)}: a long one, or its process is gone (l0tre evaluate --resume goes on)`;
  if (["at work", "stopping"].includes(state.phase)) return `last step ${ago(state.age)} ago`;
  return state.reason ?? "";
}

/** How far the level at work is. */
function levelBar(state) {
  const most = state.max_t ? ` of ${state.max_t}` : "";
  return [el("span", {}, `t = ${state.t}${most}`), el("progress", { max: 1, value: state.share, "aria-label": `share of level t = ${state.t}`, title: `${KINDS.share(state.share)} of this level` })];
}

function followRun(main, name) {
  const lookUp = async (kind) => {
    const answer = await fetch(`/api/${kind}/${pathOf(name)}`);
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error ?? `the server says ${answer.status}`);
    return answer;
  };
  // Without an answer the view of an image shows what the page knows itself.
  const extra = async (row) => lookUp(`extra/${row}`).then((answer) => answer.json()).catch((error) => ({ missing: `Scores and bounds over time cannot be had from the server (${error.message}).` }));
  const page = new Page({ sheet: (number) => `/api/sheet/${number}/${pathOf(name)}`, extra });
  page.json = async () => (await lookUp("result")).text();
  const [lost, told, closed] = connection();
  const phase = el("strong", { id: "phase" }), age = el("span", { class: "soft" }), failed = el("span", { class: "warning", role: "alert" }), level = el("span", { class: "level" });
  const stop = el("button", { type: "button", class: "stop", title: "end the run as Ctrl-C does: behind its current step, with everything recorded", hidden: true, onclick: async () => {
    stop.disabled = true;
    failed.textContent = "";
    const answer = await askStop(name).catch((error) => error);
    if (!answer.ok) { stop.disabled = false; failed.textContent = `not stopped: ${(await answer.json?.().catch(() => null))?.error ?? answer.message ?? answer.status}`; }
  } }, "stop");
  const title = el("h1", {}, name), body = el("div", { class: "grid" });
  const status = el("div", { class: "status" }, el("a", { href: "/" }, "all runs"), el("span", {}, name), phase, level, age, stop, failed, lost);
  main.append(status, title, body);
  const nodes = new Map(), texts = new Map();
  const put = (block) => {
    const text = JSON.stringify(block), old = nodes.get(block.id);
    if (texts.get(block.id) === text) return;
    texts.set(block.id, text);
    if (old?.update) { old.update(block); return; } // keeps what people chose
    const node = drawBlock(block, page);
    nodes.set(block.id, node);
    old?.replaceWith(node);
  };
  const begin = (data) => {
    document.title = data.title;
    title.textContent = data.title;
    const other = data.result.images.length !== page.result.images.length;
    if (other) texts.delete("images");
    page.result = data.result;
    data.blocks.forEach(put);
    const wanted = data.blocks.map((block) => nodes.get(block.id));
    for (const [id, node] of nodes) if (!wanted.includes(node)) { node.remove(); nodes.delete(id); texts.delete(id); }
    wanted.forEach((node, place) => { if (body.children[place] !== node) body.insertBefore(node, body.children[place] ?? null); });
    page.setResult(data.result, other);
    page.again?.();
  };
  const change = (data) => {
    if (data.fresh) { begin(data); return; }
    data.blocks.forEach(put);
    for (const [row, entry] of data.rows) page.result.images[row] = entry;
    page.result.state = data.state;
    if (data.rows.length) page.setResult(page.result, false);
    if (data.rows.some(([row]) => row === page.shown)) page.again?.();
  };
  const tell = (state) => {
    phase.textContent = PHASES[state.phase] ?? state.phase;
    phase.className = state.phase;
    age.textContent = phaseWords(state);
    const running = ["at work", "silent", "stopping"].includes(state.phase);
    level.replaceChildren(...(running ? levelBar(state) : []));
    stop.hidden = !running;
    stop.disabled = state.phase === "stopping";
  };
  listen(`/api/events/${pathOf(name)}`, { page: begin, change, status: tell, closed }, (good, why) => { if (good) failed.textContent = ""; told(good, why); });
}

/** Runs at work first, then the newest. */
function byInterest(a, b) {
  const done = (row) => Number(!["at work", "stopping"].includes(row.phase));
  return done(a) - done(b) || (b.written ?? 0) - (a.written ?? 0) || compare(a.name, b.name);
}

const RUN_COLUMNS = [
  ["name", "run", "text"], ["phase", "state", "text"], ["lower", "lower, mean", "mean"], ["upper", "upper, mean", "mean"], ["exact", "exact", "share"], ["images", "images", "number"],
  ["t", "t", "number"], ["model", "model", "text"], ["data", "data", "text"], ["seconds", "seconds", "seconds"], ["written", "last step", "moment"],
];

/** The list of all runs: choose some to see them side by side. */
function followRuns(main) {
  const [lost, told, closed] = connection();
  const chosen = new Set();
  const compareButton = el("button", { type: "button", disabled: true, title: "choose two or more", onclick: () => { location.href = `/compare?${[...chosen].map((name) => `run=${encodeURIComponent(name)}`).join("&")}`; } }, "compare the chosen ones");
  const search = el("input", { type: "search", "aria-label": "search runs", placeholder: "search", oninput: () => draw() });
  const table = el("table", { class: "images runs" });
  const state = { column: null, down: false };
  const empty = el("p", { class: "soft" }, "There is no run folder here yet; this list follows the folder.");
  let rows = [];
  const choice = (row) => el("input", { type: "checkbox", "aria-label": `choose ${row.name}`, checked: chosen.has(row.name), disabled: row.phase === "damaged", onchange: (event) => { if (event.target.checked) chosen.add(row.name); else chosen.delete(row.name); compareButton.disabled = chosen.size < 2; } });
  const cell = (row, [key, , kind]) => {
    if (key === "name") return el("th", { scope: "row" }, el("a", { href: `/runs/${pathOf(row.name)}` }, row.name));
    if (key === "phase") return el("td", { class: `text ${row.phase}`, title: row.reason }, row.phase, row.share === undefined ? null : el("span", { class: "soft" }, ` ${Math.round(100 * row.share)} % of t = ${row.t}`));
    return el("td", { class: kind }, row[key] === undefined ? "" : KINDS[kind](row[key]));
  };
  const draw = () => {
    const wish = search.value.trim().toLowerCase(), controls = () => [...table.querySelectorAll("a, button, input")];
    const focus = controls().indexOf(document.activeElement);
    const shown = rows.filter((row) => RUN_COLUMNS.some(([key]) => String(row[key] ?? "").toLowerCase().includes(wish)));
    const key = state.column === null ? null : RUN_COLUMNS[state.column][0];
    shown.sort(key === null ? byInterest : (a, b) => compare(a[key], b[key]) * (state.down ? -1 : 1));
    const heads = RUN_COLUMNS.map(([, name, kind], place) => sortHead(name, kind, state, place, draw));
    table.replaceChildren(
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "hidden" }, "choose")), heads)),
      el("tbody", {}, shown.map((row) => el("tr", {}, el("td", {}, choice(row)), RUN_COLUMNS.map((column) => cell(row, column))))),
    );
    if (focus >= 0) controls()[focus]?.focus();
    empty.hidden = rows.length > 0;
  };
  document.title = "Runs";
  main.append(el("h1", {}, "Runs"), el("div", { class: "status" }, search, compareButton, lost), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "runs" }, table), empty);
  listen("/api/events", { runs: (list) => { rows = list; draw(); }, closed }, told);
}

async function showCompared(main) {
  main.append(el("div", { class: "status" }, el("a", { href: "/" }, "all runs")));
  const fail = (text) => main.append(el("p", { class: "warning" }, text));
  const answer = await fetch(`/api/compare${location.search}`).catch((error) => error);
  if (!answer.json) return fail(`the server does not answer: ${answer.message}`);
  const data = await answer.json();
  if (!answer.ok) return fail(data.error);
  document.title = data.title;
  const page = new Page({ sheet: (number) => data.sheets[number], extra: (row) => data.extras[row] });
  if (data.result) page.result = data.result;
  return main.append(el("h1", {}, data.title), el("div", { class: "grid" }, drawBlocks(data.blocks, page)));
}
