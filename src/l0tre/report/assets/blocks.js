// The components of a page: each draws one kind of block.

const COMPONENTS = {
  answer: (block) => el("section", { id: block.id, class: "block" }, el("p", { class: "answer" }, block.text), block.notes.map(note)),
  tiles: (block) => el("dl", { id: block.id, class: "tiles" }, block.tiles.map(([name, value, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "soft" }, text)))),
  paragraphs: (block) => section(block, el("dl", { class: "terms" }, block.texts.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)]))),
  facts: (block) => drawFacts(block),
  table: (block) => drawTable(block),
  chart: (block, page) => drawChart(block, page),
  matrix: (block, page) => drawMatrix(block, page),
  heat: (block) => drawHeat(block),
  gallery: (block, page) => drawGallery(block, page),
};

function drawTable(block) {
  const table = sortableTable(block), words = el("p", { class: "soft" }, block.note);
  const node = section(block, table, words);
  const tell = (text) => { words.textContent = text; words.hidden = !text; };
  tell(block.note);
  node.update = (next) => { table.update(next); tell(next.note); };
  return node;
}

/** Names and values; closed ones open on a click. */
function drawFacts(block) {
  const list = el("dl", { class: "facts" });
  const fill = (rows) => list.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  fill(block.rows);
  const node = block.closed ? el("section", { id: block.id, class: "block" }, el("details", {}, el("summary", {}, block.title), list)) : section(block, list);
  node.update = (next) => fill(next.rows);
  return node;
}

/** A cell's shade: the share of the largest count. */
function shade(node, value, most) {
  node.style.setProperty("--share", `${Math.round(100 * Math.sqrt(value / most))}%`);
}

function drawMatrix(block, page) {
  const most = Math.max(1, ...block.counts.flat());
  const cell = (row, column) => {
    const count = block.counts[row][column];
    if (!count) return el("td", {}, row === column ? "·" : "");
    const words = `${counted(count, "input")}: ${block.labels[row]} becomes ${block.labels[column]}`;
    const node = el("td", { class: "filled" }, el("button", { type: "button", title: words, "aria-label": words, onclick: () => page.filter?.({ label: block.numbers[row], becomes: block.numbers[column] }) }, show(count)));
    shade(node, count, most);
    return node;
  };
  const named = block.labels.some((label) => label.length > 3) ? " named" : "", many = block.labels.length > 12 ? " many" : "";
  const head = el("tr", {}, el("th", { scope: "col", class: "corner" }, "label ↓ becomes →"), block.labels.map((label) => el("th", { scope: "col", title: label }, el("span", {}, label))));
  const rows = block.labels.map((label, row) => el("tr", {}, el("th", { scope: "row", title: label }, el("span", {}, label)), block.labels.map((_, column) => cell(row, column))));
  return section(block, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title }, el("table", { class: `pairs${named}${many}` }, el("thead", {}, head), el("tbody", {}, rows))), note(block.note), hint(block.hint));
}

function drawHeat(block) {
  const height = block.values.length, width = block.values[0].length;
  const most = Math.max(...block.values.map((row) => Math.max(...row))) || 1;
  const canvas = el("canvas", { width, height, class: "pixels heat", role: "img", tabindex: 0, "aria-label": `${block.title}: ${width} by ${height} values, the largest is ${show(most)}. Arrow keys tell values.` });
  canvas.style.aspectRatio = `${width} / ${height}`;
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  block.values.flat().forEach((value, place) => pixels.data.set(heatColour(value / most), 4 * place));
  context.putImageData(pixels, 0, 0);
  const told = el("output", { class: "told", "aria-live": "polite" }), spot = el("i", { hidden: true });
  const range = `0 to ${show(most)} ${block.unit}`;
  told.textContent = range;
  let at = null;
  const look = (row, column) => {
    at = [Math.min(height - 1, Math.max(0, row)), Math.min(width - 1, Math.max(0, column))];
    told.textContent = `row ${at[0]}, column ${at[1]}: ${show(block.values[at[0]][at[1]])} ${block.unit}`;
    spot.hidden = false;
    Object.assign(spot.style, spotStyle(at, width, height));
  };
  const leave = () => { at = null; spot.hidden = true; told.textContent = range; };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    look(Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width));
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  canvas.addEventListener("blur", leave);
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    if (at === null) look(0, 0); else look(at[0] + step[0], at[1] + step[1]);
  });
  return section(block, el("div", { class: "heated" }, el("div", { class: "outlined" }, canvas, spot), el("div", {}, el("div", { class: "ramp" }), told)), note(block.note));
}

/** Where a pixel lies in a picture of any size. */
function spotStyle([row, column], width, height) {
  return { left: `${(100 * column) / width}%`, top: `${(100 * row) / height}%`, width: `${100 / width}%`, height: `${100 / height}%` };
}

/** A colour from black through red to yellow, [r, g, b, a], for 0 to 1. */
function heatColour(share) {
  const s = Math.sqrt(Math.max(0, Math.min(1, share)));
  return [Math.min(255, 20 + 420 * s), Math.max(0, 350 * s - 120), Math.max(20, 60 + 200 * (s - 0.85) * Number(s > 0.85)), 255];
}
