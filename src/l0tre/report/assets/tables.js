// Small tables: sorted by any column, copied as CSV.

/** The order of two cells: numbers by size, texts by alphabet, empty ones last. */
function compare(a, b) {
  const empty = (value) => value === null || value === undefined || value === "";
  if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A heading that sorts. */
function sortHead(name, kind, state, place, change) {
  const direction = state.column === place ? (state.down ? "descending" : "ascending") : "none";
  const arrow = direction === "none" ? "" : state.down ? " ↓" : " ↑";
  return el("th", { scope: "col", class: kind, "aria-sort": direction }, el("button", { type: "button", class: "sort", onclick: () => { state.down = state.column === place && !state.down; state.column = place; change(); } }, name + arrow));
}

const SMALL = 15; // rows of a small table that are shown at once
const FEW = 3; // so many more are shown at once too: a button would be no shorter

/** A table; `node.update` gives it other rows and keeps how they are sorted. */
function sortableTable(block) {
  const state = { column: null, down: false, all: false };
  const table = el("table");
  const more = el("button", { type: "button", class: "more", onclick: () => { state.all = true; draw(); } });
  let most = [];
  const largest = (place) => block.rows.reduce((found, row) => Math.max(found, Math.abs(row[place] ?? 0)), 0);
  const cell = (value, place) => el("td", { class: block.heads[place][1] }, KINDS[block.heads[place][1]](value, most[place]));
  const draw = () => {
    most = block.heads.map(([, kind], place) => (kind === "mean" ? largest(place) : undefined));
    const focus = [...table.querySelectorAll("button")].indexOf(document.activeElement);
    const rows = [...block.rows];
    if (state.column !== null) rows.sort((a, b) => compare(a[state.column], b[state.column]) * (state.down ? -1 : 1));
    const shown = state.all || rows.length <= SMALL + FEW ? rows : rows.slice(0, SMALL);
    more.hidden = shown.length === rows.length;
    more.textContent = `show all ${rows.length.toLocaleString("en")} rows`;
    const head = el("thead", {}, el("tr", {}, block.heads.map(([name, kind], place) => sortHead(name, kind, state, place, draw))));
    const body = el("tbody", {}, shown.map((row) => el("tr", {}, row.map(cell))));
    const foot = block.total.length ? [el("tfoot", {}, el("tr", {}, block.total.map(cell)))] : [];
    table.replaceChildren(head, body, ...foot);
    if (focus >= 0) table.querySelectorAll("button")[focus]?.focus();
  };
  draw();
  const save = el("button", { type: "button", class: "quiet", title: `save ${block.title || "the table"} as csv`, onclick: () => download(`${block.id}.csv`, [block.heads.map(([name]) => name), ...block.rows].map(csvLine).join("\r\n") + "\r\n", "text/csv") }, "csv");
  const node = el("div", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title || "table" }, table), more, save);
  node.update = (next) => { block = next; draw(); };
  return node;
}
