// The view of one input: original, changed, difference, map; changed values; scores; bounds over time; its proof.

/** A place of the flattened input in words. */
function placeWords(pictures, block, position) {
  const named = block.names.features?.[position];
  if (named !== undefined) return [named];
  if (!pictures.pictured) return [`value ${position}`];
  const { row, column, channel } = pictures.where(position);
  return channel === null ? [String(row), String(column)] : [String(row), String(column), channelName(block, channel)];
}

function valueWords(block, position, value) {
  if (value === null || value === undefined) return "";
  return block.names.words?.[position]?.[value] ?? show(value, 6);
}

/** The channels of one pixel in words, those that changed. */
function pixelWords(spots, values) {
  return values === undefined ? "" : spots.map(({ at }) => (values[at] === null ? "?" : show(values[at]))).join(", ");
}

/** Whether an input is a picture whose pixels have several values. */
function hasChannels(page, block) {
  return page.pictures.pictured && !block.names.features && block.channels !== null && block.shape[block.channels] > 1;
}

/** Changed pixels of a picture with channels: one row each. */
function pixelsTable(page, block, witness) {
  const spots = new Map();
  witness.positions.forEach((position, at) => {
    const { row, column, channel } = page.pictures.where(position), key = `${row},${column}`;
    if (!spots.has(key)) spots.set(key, []);
    spots.get(key).push({ row, column, channel, at });
  });
  const names = (spot) => spot.map(({ channel }) => channelName(block, channel)).join(", ");
  const pixels = [...spots.values()].sort((a, b) => a[0].row - b[0].row || a[0].column - b[0].column);
  for (const spot of pixels) spot.sort((a, b) => a.channel - b.channel);
  const same = pixels.every((spot) => names(spot) === names(pixels[0])); // then the heading names the channels
  const rows = pixels.map((spot) => [spot[0].row, spot[0].column, ...(same ? [] : [names(spot)]), pixelWords(spot, witness.before), "→", pixelWords(spot, witness.values)]);
  const heads = [["row", "number"], ["column", "number"], ...(same ? [] : [["channels", "text"]]), [same ? `before: ${names(pixels[0])}` : "before", "text"], ["", "text"], ["after", "text"]];
  return sortableTable({ id: "changes", title: "changed values", heads, rows, total: [] });
}

/** Changed pixels of a picture with channels, else changed values. */
function changedCount(page, block, { positions }) {
  if (!hasChannels(page, block)) return positions.length;
  return new Set(positions.map((position) => { const { row, column } = page.pictures.where(position); return `${row},${column}`; })).size;
}

function channelName(block, channel) {
  return block.shape[block.channels] === 3 ? ["red", "green", "blue"][channel] : String(channel);
}

function changesTable(page, block, witness) {
  const pictures = page.pictures, before = witness.before;
  if (hasChannels(page, block)) return pixelsTable(page, block, witness);
  const first = witness.positions.length ? placeWords(pictures, block, witness.positions[0]) : [];
  const heads = first.length === 1 ? [[block.names.features ? "column" : "value", "text"]] : [["row", "number"], ["column", "number"], ["channel", "text"]].slice(0, first.length);
  const rows = witness.positions.map((position, number) => [...placeWords(pictures, block, position).map((word, part) => (heads[part][1] === "number" ? Number(word) : word)), valueWords(block, position, before?.[number]), "→", valueWords(block, position, witness.values[number])]);
  return sortableTable({ id: "changes", title: "changed values", heads: [...heads, ["before", "number"], ["", "text"], ["after", "number"]], rows, total: [] });
}

function scoresTable(block, scores) {
  const changed = scores.some(([, , after]) => after !== null);
  const rows = scores.map(([number, before, after]) => [className(block.names, number), before, ...(changed ? [after, after === null ? null : after - before] : [])]);
  const heads = [["class", "text"], [changed ? "before" : "score", "mean"], ...(changed ? [["after", "mean"], ["change", "mean"]] : [])];
  return sortableTable({ id: "scores", title: "scores", heads, rows, total: [] });
}

/** Bounds of one input over time, as a chart of its own. */
function timelineChart(page, block, timeline) {
  const last = timeline[timeline.length - 1], end = Math.max(page.result.global?.seconds ?? 0, 1.03 * last[0]);
  const moments = end > last[0] ? [...timeline, [end, last[1], last[2]]] : timeline; // the last bounds hold to the end
  const x = moments.map(([seconds]) => seconds), unit = `${block.unit}s`;
  const series = [{ name: "lower bound", role: "lower", draw: "step", values: moments.map((one) => one[1]) }, { name: "upper bound", role: "upper", draw: "step", values: moments.map((one) => one[2]) }];
  const most = Math.max(...moments.map((one) => one[2]));
  return drawChart({ type: "chart", id: "timeline", title: "Bounds over time", variants: [{ name: "", x, series }], x: "seconds of the run", y: unit, note: "", summary: "Both bounds over time.", band: true, log: most > 30, log_x: false, share: false, marks: [], pick: [] }, page);
}

/** Values of pixels as a picture: what changed (blue less, red more), or a map. */
function valuesCanvas(label, height, width, values, signed) {
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

/** What changed in a picture: of grey ones the sign, of coloured ones how far each channel moved. */
function differenceCanvas(pictures, height, width, { positions, values, before }) {
  const places = positions.map((position) => pictures.where(position));
  if (places.every(({ channel }) => channel === null)) {
    const difference = Array(width * height).fill(0);
    places.forEach(({ row, column }, number) => { difference[row * width + column] = values[number] - before[number]; });
    return ["difference (red: more, blue: less)", valuesCanvas("difference", height, width, difference, true)];
  }
  const canvas = pixelCanvas("difference", width, height), context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  const moved = values.map((value, number) => Math.abs(value - before[number])), most = Math.max(...moved) || 1;
  for (let at = 3; at < pixels.data.length; at += 4) pixels.data[at] = 255;
  places.forEach(({ row, column, channel }, number) => { pixels.data[4 * (row * width + column) + channel] = (255 * moved[number]) / most; });
  context.putImageData(pixels, 0, 0);
  return ["difference (how far red, green and blue moved)", canvas];
}

/** The changed inputs of a row: its own, or one of each network or attack that the page is about. */
function changedInputs(entry, extra) {
  if (extra.witnesses) return extra.witnesses;
  return entry.witness?.positions ? [{ ...entry.witness, before: extra.before, by: "" }] : [];
}

/** The number that a sensitivity map is about. */
function lowered(entry) {
  return entry.observed === undefined ? "the score" : entry.observed.startsWith("score ") ? `the ${entry.observed}` : entry.observed;
}

/** What is known of one pixel: its value in the original, as the picture has it, and what changed inputs make of it. */
function pixelFacts(page, block, entry, extra, changes, original) {
  const pictures = page.pictures, { width } = block.picture, changed = new Map();
  for (const witness of changes) {
    witness.positions.forEach((position, at) => {
      const { row, column, channel } = pictures.where(position), key = `${row},${column}`;
      if (!changed.has(key)) changed.set(key, new Map());
      const by = changed.get(key);
      const from = witness.before ? `${show(witness.before[at])} → ` : "→ ";
      by.set(witness.by, [...(by.get(witness.by) ?? []), `${channel === null ? "" : `${channelName(block, channel)} `}${from}${show(witness.values[at])}`]);
    });
  }
  const pixels = original.getContext("2d", { willReadFrequently: true }), colours = block.channels !== null && block.shape[block.channels] > 1;
  return ([row, column]) => {
    const shades = [...pixels.getImageData(column, row, 1, 1).data].slice(0, colours ? 3 : 1);
    const values = shades.map((shade) => show(block.low + (shade / 255) * (block.high - block.low), 3)).join(", ");
    const moves = [...(changed.get(`${row},${column}`) ?? [])].map(([by, parts]) => `${by ? `${by}: ` : ""}${parts.join(", ")}`);
    const drop = extra.map?.length ? [`alone lowers ${lowered(entry)} by ${show(extra.map[row * width + column])}`] : [];
    return `row ${row}, column ${column}: ${[`about ${values}`, ...(moves.length ? [`changed, ${moves.join("; ")}`] : []), ...drop].join("; ")}`;
  };
}

async function inputPictures(page, block, entry, row, extra) {
  const pictures = page.pictures, host = el("div", { class: "views" });
  if (!pictures.place(row)) return host;
  const { width, height } = block.picture;
  const usual = "Point at a pixel for its values. A click enlarges.", told = el("output", { class: "told" }, usual);
  let facts = () => usual;
  const add = (title, canvas, spots = []) => {
    const frame = outline(canvas, spots);
    const large = el("button", { type: "button", class: "picture", "aria-pressed": "false", "aria-label": `${canvas.getAttribute("aria-label")}: enlarge`, onclick: () => large.setAttribute("aria-pressed", String(large.parentElement.classList.toggle("large"))) }, frame);
    const point = (event) => {
      const box = canvas.getBoundingClientRect(), at = (place, size, most) => Math.min(most - 1, Math.max(0, Math.floor((place / size) * most)));
      told.textContent = facts([at(event.clientY - box.top, box.height, height), at(event.clientX - box.left, box.width, width)]);
    };
    frame.addEventListener("pointermove", point);
    frame.addEventListener("pointerdown", point);
    frame.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") told.textContent = usual; });
    host.append(el("figure", {}, large, el("figcaption", {}, title)));
  };
  const spotsOf = ({ positions }) => [...new Set(positions.map((position) => { const at = pictures.where(position); return `${at.row},${at.column}`; }))].map((text) => text.split(",").map(Number));
  const changes = changedInputs(entry, extra), spots = changes.length === 1 ? spotsOf(changes[0]) : [];
  const original = pixelCanvas(`original, ${className(block.names, entry.label)}`, width, height);
  if (!(await pictures.draw(original, row))) return host;
  facts = pixelFacts(page, block, entry, extra, changes, original);
  add(entry.label === null || entry.label === undefined ? "original" : `original: ${className(block.names, entry.label)}`, original, spots);
  for (const witness of changes) {
    const changed = pixelCanvas(`changed, becomes ${className(block.names, witness.label)}`, width, height);
    await pictures.draw(changed, row, witness);
    add(`${witness.by || "changed"}: ${className(block.names, witness.label)}`, changed, spotsOf(witness));
    if (witness.before && changes.length === 1) add(...differenceCanvas(pictures, height, width, witness));
  }
  if (extra.map && extra.map.length === width * height) add(`sensitivity: how far a pixel alone lowers ${lowered(entry)}, 0 to ${show(Math.max(...extra.map))}`, valuesCanvas("sensitivity map", height, width, extra.map, false), spots);
  host.append(told);
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

const SHORT_ROW = 40; // columns of a row that is shown at once

/** All columns of an input that is a row of a table, those that change first. */
function wholeRow(page, block, entry, row) {
  const changed = new Map((entry.witness?.positions ?? []).map((position, number) => [position, entry.witness.values[number]]));
  const order = [...changed.keys(), ...row.map((_, position) => position).filter((position) => !changed.has(position))];
  const rows = order.map((position) => [placeWords(page.pictures, block, position).join(" "), valueWords(block, position, row[position]), changed.has(position) ? valueWords(block, position, changed.get(position)) : ""]);
  const heads = [["column", "text"], ["value", "number"], ["changed to", "number"]];
  return el("details", { open: row.length <= SHORT_ROW }, el("summary", {}, `The whole row (${counted(row.length, "column")})`), sortableTable({ id: "row", title: "the whole row", heads, rows, total: [] }));
}

/** Why an input has no changed one; empty where none was looked for. */
function withoutChange(entry, extra) {
  if (extra.without) return extra.without;
  if (entry.distance === 0) return "No change is needed: the decision is the wanted one as it is.";
  return entry.guarantee || extra.witnesses || entry.distance === null ? "No change that alters the decision is known." : "";
}

/** All that is known of an input: its figures, pictures, changed values, scores, bounds over time, proof. */
async function inputParts(page, block, entry, row) {
  const extra = (await page.extra(row)) ?? {};
  const facts = block.columns.filter(([path, , kind]) => kind !== "picture" && path !== "index").map((column) => [column[1], cellOf(entry, column, block.names)[1]]);
  const parts = [el("dl", { class: "brief" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value || "—")))), await inputPictures(page, block, entry, row, extra)];
  const part = (title, node) => parts.push(el("section", {}, title ? el("h3", {}, title) : null, node));
  if (extra.missing) parts.push(el("p", { class: "warning" }, extra.missing));
  const changes = changedInputs(entry, extra);
  const tables = el("div", { class: "beside" });
  const table = (title, node) => tables.append(el("section", {}, el("h3", {}, title), node));
  for (const witness of changes) table(`Changed ${hasChannels(page, block) ? "pixels" : "values"}${witness.by ? `, ${witness.by}` : ""} (${changedCount(page, block, witness)})`, changesTable(page, block, witness));
  if (!changes.length && !entry.witness) parts.push(note(withoutChange(entry, extra)) ?? "");
  if (extra.scores) table("Scores", scoresTable(block, extra.scores));
  if (tables.childElementCount) parts.push(tables);
  if (extra.row) parts.push(wholeRow(page, block, entry, extra.row));
  if (extra.map?.length && !page.pictures.pictured) part("Sensitivity", sortableTable({ id: "sensitivity", title: "sensitivity", heads: [["column", "text"], ["lowers the score by", "mean"]], rows: extra.map.map((value, position) => [placeWords(page.pictures, block, position).join(" "), value]), total: [] }));
  if (extra.timeline?.length) parts.push(timelineChart(page, block, extra.timeline));
  if (entry.guarantee || extra.certificate) part("What it rests on", proofFacts(entry, extra));
  return parts;
}

/** Show an input in the dialog, or show it again with what has become known of it. */
async function showInput(page, block, entry, row, { go, first, last }) {
  const dialog = page.dialog ??= document.body.appendChild(el("dialog", { class: "input", tabindex: -1, "aria-labelledby": "input-title" }));
  const close = el("button", { type: "button", class: "close", "aria-label": "close", onclick: () => dialog.close() }, "×");
  const step = (text, label, size, off) => el("button", { type: "button", "aria-label": label, title: label, disabled: off, onclick: () => go(size) }, text);
  const parts = [
    el("header", {}, el("h2", { id: "input-title" }, `${block.noun} ${inputName(block.names, entry.index)}`), step("‹", `previous ${block.noun}`, -1, first), step("›", `next ${block.noun}`, 1, last), close),
    ...(await inputParts(page, block, entry, row)),
  ];
  if (page.shown !== row) return; // somebody went on before it was there
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
