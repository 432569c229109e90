// The components of a page: each draws one kind of block.

const COMPONENTS = {
  answer: (block) => el("section", { id: block.id, class: "block" }, el("p", { class: "answer" }, block.text), block.notes.map(note)),
  tiles: (block) => el("dl", { id: block.id, class: "tiles" }, block.tiles.map(([name, value, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "soft" }, text)))),
  paragraphs: (block) => section(block, el("dl", { class: "terms" }, block.texts.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)]))),
  facts: (block) => el("section", { id: block.id, class: "block" }, el("details", { open: !block.closed }, el("summary", {}, block.title), el("dl", { class: "facts" }, block.rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])))),
  table: (block) => section(block, sortableTable(block), note(block.note)),
  chart: (block, page) => drawChart(block, page),
  matrix: (block, page) => drawMatrix(block, page),
  heat: (block) => drawHeat(block),
  gallery: (block, page) => drawGallery(block, page),
};

/** A cell's shade: the share of the largest count. */
function shade(node, value, most) {
  node.style.setProperty("--share", `${Math.round(100 * Math.sqrt(value / most))}%`);
}

function drawMatrix(block, page) {
  const most = Math.max(1, ...block.counts.flat());
  const cell = (row, column) => {
    const count = block.counts[row][column];
    if (!count) return el("td", {}, row === column ? "·" : "");
    const words = `${counted(count, "image")}: ${block.labels[row]} becomes ${block.labels[column]}`;
    const node = el("td", { class: "filled" }, el("button", { type: "button", title: words, "aria-label": words, onclick: () => page.filter?.({ label: block.numbers[row], becomes: block.numbers[column] }) }, show(count)));
    shade(node, count, most);
    return node;
  };
  const head = el("tr", {}, el("th", { scope: "col" }, "label \\ becomes"), block.labels.map((label) => el("th", { scope: "col" }, label)));
  const rows = block.labels.map((label, row) => el("tr", {}, el("th", { scope: "row" }, label), block.labels.map((_, column) => cell(row, column))));
  return section(block, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title }, el("table", { class: "pairs" }, el("thead", {}, head), el("tbody", {}, rows))), note(block.note));
}

function drawHeat(block) {
  const height = block.values.length, width = block.values[0].length;
  const most = Math.max(...block.values.map((row) => Math.max(...row))) || 1;
  const canvas = el("canvas", { width, height, class: "pixels heat", role: "img", tabindex: 0, "aria-label": `${block.title}: ${width} by ${height} values, the largest is ${show(most)}` });
  canvas.style.aspectRatio = `${width} / ${height}`;
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  block.values.flat().forEach((value, place) => pixels.data.set(heatColour(value / most), 4 * place));
  context.putImageData(pixels, 0, 0);
  const told = el("output", { class: "told", "aria-live": "polite" }, `0 to ${show(most)} ${block.unit}`);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * width), row = Math.floor(((event.clientY - box.top) / box.height) * height);
    const value = block.values[row]?.[column];
    if (value !== undefined) told.textContent = `row ${row}, column ${column}: ${show(value)} ${block.unit}`;
  });
  return section(block, el("div", { class: "heated" }, canvas, el("div", {}, el("div", { class: "ramp" }), told)), note(block.note));
}

/** A colour from black through red to yellow, [r, g, b, a], for 0 to 1. */
function heatColour(share) {
  const s = Math.sqrt(Math.max(0, Math.min(1, share)));
  return [Math.min(255, 20 + 420 * s), Math.max(0, 350 * s - 120), Math.max(20, 60 + 200 * (s - 0.85) * Number(s > 0.85)), 255];
}
