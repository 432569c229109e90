// The view of one input: original, changed, difference, map; changed values; scores; bounds over time; its proof.

/** A place of the flattened input in words. */
function placeWords(pictures, block, position) {
  const named = block.names.features?.[position];
  if (named !== undefined) return [named];
  if (!pictures.pictured) return [`value ${position}`];
  const { row, column, channel } = pictures.where(position);
  return channel === null ? [String(row), String(column)] : [String(row), String(column), ["red", "green", "blue"][channel] && block.shape[block.channels] === 3 ? ["red", "green", "blue"][channel] : String(channel)];
}

function valueWords(block, position, value) {
  if (value === null || value === undefined) return "";
  return block.names.words?.[position]?.[value] ?? show(value, 6);
}

function changesTable(page, block, witness, before) {
  const pictures = page.pictures;
  const first = witness.positions.length ? placeWords(pictures, block, witness.positions[0]) : [];
  const heads = first.length === 1 ? [[block.names.features ? "column" : "value", "text"]] : [["row", "number"], ["column", "number"], ["channel", "text"]].slice(0, first.length);
  const rows = witness.positions.map((position, number) => [...placeWords(pictures, block, position).map((word, part) => (heads[part][1] === "number" ? Number(word) : word)), valueWords(block, position, before?.[number]), "→", valueWords(block, position, witness.values[number])]);
  return sortableTable({ id: "changes", title: "changed values", heads: [...heads, ["before", "number"], ["", "text"], ["after", "number"]], rows, total: [] });
}

function scoresTable(block, scores) {
  const rows = scores.map(([number, before, after]) => [className(block.names, number), before, after, after === null ? null : after - before]);
  return sortableTable({ id: "scores", title: "scores", heads: [["class", "text"], ["before", "number"], ["after", "number"], ["change", "number"]], rows, total: [] });
}

/** Bounds of one input over time, as a chart of its own. */
function timelineChart(page, block, timeline) {
  const last = timeline[timeline.length - 1], end = Math.max(page.result.global?.seconds ?? 0, 1.03 * last[0]);
  const moments = end > last[0] ? [...timeline, [end, last[1], last[2]]] : timeline; // the last bounds hold to the end
  const x = moments.map(([seconds]) => seconds), unit = `${block.unit}s`;
  const series = [{ name: "lower bound", role: "lower", draw: "step", values: moments.map((one) => one[1]) }, { name: "upper bound", role: "upper", draw: "step", values: moments.map((one) => one[2]) }];
  const most = Math.max(...moments.map((one) => one[2]));
  return drawChart({ type: "chart", id: "timeline", title: "Bounds over time", variants: [{ name: "", x, series }], x: "seconds of the run", y: unit, note: "", summary: "Bounds of this image over time.", band: true, log: most > 30, log_x: false, share: false, marks: [], pick: [] }, page);
}

/** Values of pixels as a picture: what changed (blue less, red more), or a map. */
function valuesCanvas(label, pictures, height, width, values, signed) {
  const canvas = pixelCanvas(label, width, height);
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  const most = Math.max(...values.map(Math.abs)) || 1;
  values.forEach((value, place) => {
    const share = value / most;
    const shade = signed ? (share > 0 ? [200 * share + 55, 60 * (1 - share), 60] : share < 0 ? [60, 110, 55 - 200 * share] : [24, 26, 30]) : heatColour(share).slice(0, 3);
    pixels.data.set([...shade, 255], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function outline(canvas, spots) {
  const { width, height } = canvas;
  const frame = el("div", { class: "outlined" }, canvas);
  for (const [row, column] of spots.slice(0, 400)) {
    const spot = el("i", {});
    Object.assign(spot.style, spotStyle([row, column], width, height));
    frame.append(spot);
  }
  return frame;
}

async function inputPictures(page, block, entry, row, extra) {
  const pictures = page.pictures, host = el("div", { class: "views" });
  if (!pictures.place(row)) return host;
  const { width, height } = block.picture;
  const add = (title, canvas, spots = []) => host.append(el("figure", {}, outline(canvas, spots), el("figcaption", {}, title)));
  const witness = entry.witness;
  const spots = witness ? [...new Set(witness.positions.map((position) => { const at = pictures.where(position); return `${at.row},${at.column}`; }))].map((text) => text.split(",").map(Number)) : [];
  const original = pixelCanvas(`original, ${className(block.names, entry.label)}`, width, height);
  if (!(await pictures.draw(original, row))) return host;
  add(entry.label === null || entry.label === undefined ? "original" : `original: ${className(block.names, entry.label)}`, original, spots);
  if (witness) {
    const changed = pixelCanvas(`changed, becomes ${className(block.names, witness.label)}`, width, height);
    await pictures.draw(changed, row, witness);
    add(`changed: ${className(block.names, witness.label)}`, changed, spots);
    const difference = Array(width * height).fill(0);
    if (extra.before) witness.positions.forEach((position, number) => { const at = pictures.where(position); difference[at.row * width + at.column] += witness.values[number] - extra.before[number]; });
    add("difference (red: more, blue: less)", valuesCanvas("difference", pictures, height, width, difference, true));
  }
  if (extra.map && extra.map.length === width * height) add("sensitivity", valuesCanvas("sensitivity map", pictures, height, width, extra.map, false), spots);
  return host;
}

/** What the bounds of an input rest on. */
function proofFacts(entry, extra) {
  const certificate = Object.entries(extra.certificate ?? {}).map(([name, value]) => [name, KINDS.text(value)]);
  const facts = entry.guarantee ? [["guarantee", entry.guarantee]] : [];
  if (entry.level && entry.guarantee !== "sampled") facts.push(["searched up to", `t = ${entry.level}`]);
  if (entry.blocked) facts.push(["stopped by", `a tie, or a difference too small to trust, at t = ${entry.blocked}`]);
  if (certificate.length) facts.push(...certificate);
  else if (entry.guarantee === "certified" && entry.lower > 0) facts.push(["certificate", "not kept; l0tre evaluate --certificates keeps the proofs, for l0tre check"]);
  if (entry.witness && typeof entry.witness.margin === "number") facts.push(["margin of the changed input", `${show(entry.witness.margin)} (as replayed)`]);
  return el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** All columns of an input that is a row of a table, those that change first. */
function wholeRow(page, block, entry, row) {
  const changed = new Map((entry.witness?.positions ?? []).map((position, number) => [position, entry.witness.values[number]]));
  const order = [...changed.keys(), ...row.map((_, position) => position).filter((position) => !changed.has(position))];
  const rows = order.map((position) => [placeWords(page.pictures, block, position).join(" "), valueWords(block, position, row[position]), changed.has(position) ? valueWords(block, position, changed.get(position)) : ""]);
  const heads = [["column", "text"], ["value", "number"], ["changed to", "number"]];
  return el("details", {}, el("summary", {}, `The whole row (${row.length} columns)`), sortableTable({ id: "row", title: "the whole row", heads, rows, total: [] }));
}

/** Show an input in the dialog, or show it again with what has become known of it. */
async function showInput(page, block, entry, row, { go, first, last }) {
  const extra = (await page.extra(row)) ?? {};
  const dialog = page.dialog ??= document.body.appendChild(el("dialog", { class: "input", tabindex: -1, "aria-labelledby": "input-title" }));
  const close = el("button", { type: "button", class: "close", "aria-label": "close", onclick: () => dialog.close() }, "×");
  const step = (text, label, size, off) => el("button", { type: "button", "aria-label": label, title: label, disabled: off, onclick: () => go(size) }, text);
  const facts = block.columns.filter(([path, , kind]) => kind !== "picture" && path !== "index").map((column) => [column[1], cellOf(entry, column, block.names)[1]]);
  const parts = [
    el("header", {}, el("h2", { id: "input-title" }, `image ${inputName(block.names, entry.index)}`), step("‹", "previous image", -1, first), step("›", "next image", 1, last), close),
    el("dl", { class: "brief" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value || "—")))),
    await inputPictures(page, block, entry, row, extra),
  ];
  if (page.shown !== row) return; // somebody went on before it was there
  const part = (title, node) => parts.push(el("section", {}, title ? el("h3", {}, title) : null, node));
  if (extra.missing) parts.push(el("p", { class: "warning" }, extra.missing));
  if (entry.witness?.positions) part(`Changed values (${entry.witness.positions.length})`, changesTable(page, block, entry.witness, extra.before));
  if (extra.row) parts.push(wholeRow(page, block, entry, extra.row));
  if (extra.map && !page.pictures.pictured) part("Sensitivity", sortableTable({ id: "sensitivity", title: "sensitivity", heads: [["column", "text"], ["lowers the score by", "number"]], rows: extra.map.map((value, position) => [placeWords(page.pictures, block, position).join(" "), value]), total: [] }));
  if (extra.scores) part("Scores", scoresTable(block, extra.scores));
  if (extra.timeline?.length) parts.push(timelineChart(page, block, extra.timeline));
  if (entry.guarantee || extra.certificate) part("What it rests on", proofFacts(entry, extra));
  const again = dialog.open && page.drawn === row, place = dialog.scrollTop, focus = dialog.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  page.drawn = row;
  dialog.replaceChildren(...parts);
  dialog.onkeydown = (event) => {
    if (event.target.closest(".plot, input, select, .scroll")) return;
    if (event.key === "ArrowLeft" && !first) go(-1);
    if (event.key === "ArrowRight" && !last) go(1);
  };
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = again ? place : 0;
  const control = focus === null ? null : dialog.querySelector(`header [aria-label="${CSS.escape(focus)}"]:enabled`);
  (control ?? dialog).focus({ preventScroll: true });
}
