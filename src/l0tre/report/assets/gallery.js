// The table of all inputs: sort, filter, search, pages, small pictures; a row opens the view of its input.

const PAGE_SIZES = [25, 50, 100, 250];

/** What a row holds under a path such as `witness.label`; null where there is nothing. */
function held(entry, path) {
  let value = entry;
  for (const part of path.split(".")) value = value === null || value === undefined ? null : value[part];
  return value === undefined ? null : value;
}

function className(names, number) {
  return number === null ? "" : names.classes?.[number] ?? String(number);
}

function inputName(names, index) {
  const name = names.inputs?.[index];
  return name === undefined ? String(index) : `${index} ${name}`;
}

/** How far an image is: exact, tie, sampled or open. */
function stateOf(entry) {
  if (entry.converged) return "exact";
  if (entry.guarantee === "sampled") return "sampled";
  return entry.blocked && entry.guarantee !== "lipschitz" ? "tie" : "open";
}

/** A cell's value, by which it is sorted, and its text. */
function cellOf(entry, [path, , kind], names) {
  if (kind === "state") return [stateOf(entry), stateOf(entry)];
  const value = held(entry, path);
  if (kind === "class") return [value, className(names, value)];
  if (kind === "image") return [value, inputName(names, value)];
  if (kind === "upper") return [entry.witness ? value : Infinity, entry.witness ? show(value) : "none"];
  return [value, KINDS[kind](value)];
}

function drawGallery(block, page) {
  const names = block.names;
  const columns = block.columns.filter(([, , kind]) => kind !== "picture" || block.picture);
  const shown = columns.filter(([, , kind]) => kind !== "picture");
  const state = { column: null, down: false, page: 0, size: PAGE_SIZES[0], label: null, becomes: null, search: "", state: "", bound: "", least: "", most: "" };
  let entries = [], rows = [];
  const pictures = page.pictures = new Pictures(block, page.sheet);

  const has = (path) => columns.some(([one]) => one === path);
  const bounds = shown.filter(([path]) => ["lower", "upper", "distance"].includes(path));
  state.bound = bounds[0]?.[0] ?? "";
  const keep = (entry) => {
    if (state.state && stateOf(entry) !== state.state) return false;
    if (state.label !== null && entry.label !== state.label) return false;
    if (state.becomes !== null && held(entry, "witness.label") !== state.becomes) return false;
    const bound = state.bound ? entry[state.bound] : 0;
    if (state.least !== "" && !(bound >= Number(state.least))) return false;
    if (state.most !== "" && !(bound <= Number(state.most))) return false;
    if (!state.search) return true;
    return shown.some((column) => cellOf(entry, column, names)[1].toLowerCase().includes(state.search));
  };

  const count = el("output", { class: "soft", "aria-live": "polite" });
  const table = el("table", { class: "images" });
  const pager = el("nav", { class: "pager", "aria-label": "pages" });

  const alone = el("div", { class: "alone", hidden: true }); // the view of the only input
  const showAlone = async () => {
    const entry = entries[0], parts = await inputParts(page, block, entry, 0);
    if (entries[0] === entry) alone.replaceChildren(el("h3", {}, `${block.noun} ${inputName(names, entry.index)}`), ...parts);
  };

  const openRow = (row) => {
    const at = rows.indexOf(row);
    const go = (step) => { const next = rows[rows.indexOf(page.shown) + step]; if (next !== undefined) openRow(next); };
    page.shown = row;
    return showInput(page, block, entries[row], row, { go, first: at <= 0, last: at === rows.length - 1 });
  };
  page.again = () => { if (page.dialog?.open) openRow(page.shown); };
  page.open = (index) => { const row = entries.findIndex((entry) => entry.index === index); if (row >= 0) openRow(row); };

  const line = (row) => {
    const entry = entries[row];
    const cells = columns.map((column) => {
      const [, , kind] = column;
      if (kind === "picture") {
        const canvas = pixelCanvas("", block.picture.width, block.picture.height);
        pictures.draw(canvas, row, entry.witness);
        return el("td", { class: "thumb" }, canvas);
      }
      const [value, text] = cellOf(entry, column, names);
      if (kind === "image") return el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => openRow(row) }, text));
      return el("td", { class: kind === "state" ? `text state ${value}` : kind }, text);
    });
    return el("tr", { "data-index": entry.index, onclick: (event) => { if (!event.target.closest("button") && !String(getSelection())) openRow(row); } }, cells);
  };

  const draw = () => {
    rows = entries.map((_, row) => row).filter((row) => keep(entries[row]));
    if (state.column !== null) {
      const keys = new Map(rows.map((row) => [row, cellOf(entries[row], columns[state.column], names)[0]]));
      rows.sort((a, b) => compare(keys.get(a), keys.get(b)) * (state.down ? -1 : 1) || a - b);
    }
    turn(Math.min(state.page, Math.max(0, Math.ceil(rows.length / state.size) - 1)));
  };
  const turn = (number) => {
    state.page = number;
    const focus = table.contains(document.activeElement) ? [...table.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    const part = rows.slice(number * state.size, (number + 1) * state.size);
    const head = el("tr", {}, columns.map(([, name, kind], place) => (kind === "picture" ? el("th", { scope: "col" }, el("span", { class: "hidden" }, "picture")) : sortHead(name, kind, state, place, draw))));
    table.replaceChildren(el("thead", {}, head), el("tbody", {}, part.map(line)));
    if (focus >= 0) table.querySelectorAll("button")[focus]?.focus();
    const from = rows.length ? number * state.size + 1 : 0;
    count.textContent = `${from.toLocaleString("en")} to ${(from + Math.max(0, part.length - 1)).toLocaleString("en")} of ${rows.length.toLocaleString("en")}` + (rows.length < entries.length ? ` (${entries.length.toLocaleString("en")} in all)` : "");
    const last = Math.max(0, Math.ceil(rows.length / state.size) - 1);
    const step = (text, title, target) => el("button", { type: "button", title, "aria-label": title, disabled: target < 0 || target > last || target === number, onclick: () => turn(target) }, text);
    pager.replaceChildren(step("«", "first page", 0), step("‹", "previous page", number - 1), el("span", {}, `page ${number + 1} of ${last + 1}`), step("›", "next page", number + 1), step("»", "last page", last));
  };

  const restart = () => { state.page = 0; draw(); };
  const choose = (label, options, change) => el("label", {}, label, el("select", { onchange: (event) => { change(event.target.value); restart(); } }, options.map(([value, text]) => el("option", { value }, text))));
  const filters = el("div", { class: "filters" });
  const makeFilters = () => {
    const classes = (path) => [...new Set(entries.map((entry) => held(entry, path)).filter((value) => value !== null))].sort((a, b) => a - b).map((value) => [value, className(names, value)]);
    const known = (path, key, text) => { const select = choose(text, [["", "any"], ...classes(path)], (value) => { state[key] = value === "" ? null : Number(value); }); select.lastChild.value = state[key] ?? ""; select.lastChild.dataset.filter = key; return select; };
    const limit = (key, text) => el("input", { type: "number", min: 0, step: 1, "aria-label": `${state.bound} ${text}`, placeholder: text, value: state[key], oninput: (event) => { state[key] = event.target.value; restart(); } });
    const parts = [el("label", {}, "search", el("input", { type: "search", value: state.search, oninput: (event) => { state.search = event.target.value.trim().toLowerCase(); restart(); } }))];
    if (has("state")) { const states = choose("state", [["", "any"], ["open", "open"], ["exact", "exact"], ["tie", "tie"], ["sampled", "sampled"]], (value) => { state.state = value; }); states.lastChild.dataset.filter = "state"; states.lastChild.value = state.state; parts.push(states); }
    if (has("label")) parts.push(known("label", "label", "label"));
    if (has("witness.label")) parts.push(known("witness.label", "becomes", "becomes"));
    if (bounds.length) parts.push(el("span", { class: "range" }, choose("bound", bounds.map(([path, name]) => [path, name]), (value) => { state.bound = value; }), limit("least", "at least"), limit("most", "at most")));
    parts.push(choose("rows", PAGE_SIZES.map((size) => [size, size]), (value) => { state.size = Number(value); }));
    const clear = () => { Object.assign(state, { label: null, becomes: null, search: "", state: "", least: "", most: "", page: 0 }); makeFilters(); draw(); };
    parts.push(el("button", { type: "button", class: "quiet", onclick: clear }, "clear"));
    filters.replaceChildren(...parts);
  };
  page.filter = (wish) => { Object.assign(state, { label: null, becomes: null, ...wish }); makeFilters(); restart(); node.scrollIntoView({ behavior: "smooth" }); };

  const csv = () => [csvLine(page.csvHead(entries)), ...entries.map((entry) => csvLine(page.csvRow(entry)))].join("\r\n") + "\r\n";
  const saves = el("p", { class: "saves" }, "download ",
    el("button", { type: "button", onclick: () => download(`${block.file}.csv`, csv(), "text/csv") }, "csv"), " ",
    el("button", { type: "button", onclick: async () => download(`${block.file}.json`, await page.json(), "application/json") }, "json"));
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title }, table);
  const node = section(block, filters, scroll, alone, el("div", { class: "pages" }, pager, count), block.notes.map(note), saves);
  const pages = node.querySelector(".pages");
  page.onRows((all, fresh) => {
    entries = all;
    filters.hidden = pages.hidden = entries.length < 2;
    scroll.hidden = entries.length === 1;
    alone.hidden = !scroll.hidden;
    if (fresh) makeFilters();
    draw();
    if (!alone.hidden) showAlone();
  });
  return node;
}
