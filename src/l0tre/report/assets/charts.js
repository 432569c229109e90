// Charts, drawn by uPlot: hover and keys tell values, dragging and buttons zoom.

const charts = new Set();

/** The colour of a line: a bound, or the number of a network or an attack. */
function colour(role) {
  return css(/^\d+$/.test(role) ? `--line-${Number(role) % 6}` : `--${role}`);
}

function tickLabel(value, share) {
  if (value === null || value === undefined) return "";
  return share ? `${Math.round(100 * value)} %` : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : show(value);
}

/** A name that fits into so many pixels; empty for none. */
function shortName(name, pixels) {
  const most = Math.max(3, Math.floor(pixels / 7) - 2);
  return name === undefined ? "" : name.length > most ? `${name.slice(0, most - 1)}…` : name;
}

const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

/** Whether every place of a chart is one image: it is as wide as the step between two places. */
function isRanking(block, number) {
  return (block.pick[number] ?? []).length > 0;
}

/** The lines of a variant as uPlot takes them: an image of a ranking goes from half a place before to half a place behind, also the last one that has a value. */
function chartData(block, number) {
  const { x, series } = block.variants[number], last = x.length - 1;
  if (!isRanking(block, number)) return [x, ...series.map((one) => one.values)];
  return [[...x.map((place) => place - 0.5), x[last] + 0.5], ...series.map(({ values }) => [...values.map((value, at) => value ?? values[at - 1] ?? null), values[last]])];
}

/** The place whose step holds a value of the horizontal axis; of bars and points the closest one. */
function placeAt(block, number, closest, value) {
  if (block.variants[number].series.some((one) => one.draw !== "step")) return closest;
  const x = chartData(block, number)[0], place = x[closest] > value ? closest - 1 : closest;
  return Math.max(0, Math.min(block.variants[number].x.length - 1, place));
}

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]]; // lines of networks or attacks that cover each other stay visible

/** Dashes of a line: of a number, or where it would cover the line below it for a part of its way. */
function dashes(series, number) {
  const { role, values, draw } = series[number];
  if (/^\d+$/.test(role)) return DASHES[Math.min(Number(role), DASHES.length - 1)];
  const below = number > 0 && draw === "step" && series[number - 1].draw === "step" ? series[number - 1].values : [];
  return values.some((value, place) => value !== null && value === below[place]) ? DASHES[1] : [];
}

/** Options of uPlot for one variant of a chart. */
function chartOptions(block, number, width, { tell, place, zoomed }) {
  const variant = block.variants[number];
  const soft = css("--soft"), rule = css("--rule");
  const phone = width < 480;
  const axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
  const bars = uPlot.paths.bars({ size: [0.7, 60] });
  const paths = { step: uPlot.paths.stepped({ align: 1 }), line: uPlot.paths.linear(), bars, points: () => null };
  const series = variant.series.map((one, at) => ({
    label: one.name,
    stroke: colour(one.role),
    width: one.draw === "bars" ? 0 : 2,
    fill: one.draw === "bars" ? colour(one.role) : undefined,
    dash: dashes(variant.series, at),
    paths: paths[one.draw],
    points: { show: one.draw === "points" || (variant.x.length === 1 && one.draw !== "bars"), size: 7, fill: colour(one.role) },
  }));
  const places = variant.x;
  // Bars and single points need room at their sides.
  const wide = variant.series.some((one) => one.draw === "bars" || one.draw === "points") || places.length === 1;
  const reach = (u, low, high) => (u.zoomed ? [low, high] : wide ? [places[0] - 0.6, places[places.length - 1] + 0.6] : [low, high]);
  const counts = !block.share && variant.series.every((one) => one.values.every((value) => value === null || Number.isInteger(value)));
  const xScale = block.log_x ? { time: false, distr: 4, asinh: 1 } : { time: false, range: reach };
  return {
    width,
    height: phone ? 240 : 290,
    series: [{ label: block.x }, ...series],
    bands: block.band && variant.series.length > 1 ? [{ series: [2, 1], fill: css("--area") }] : [],
    scales: { x: xScale, y: block.log ? { distr: 4, asinh: 1, range: (u, low, high) => [0, (high ?? 1) * 1.2] } : { range: (u, low, high) => [Math.min(0, low ?? 0), block.share ? 1 : Math.max(high ?? 1, 1e-9) * 1.06] } },
    axes: [
      { ...axis, ...(places.every(Number.isInteger) ? { incrs: WHOLE } : {}), label: block.x, labelSize: 20, size: 34, ...(block.log_x ? { splits: roundTicks, filter: (u, ticks) => ticks } : {}), values: (u, ticks) => ticks.map((tick) => (block.places?.length ? shortName(block.places[tick - 1], width / places.length) : tickLabel(tick, false))) },
      { ...axis, ...(counts ? { incrs: WHOLE } : {}), label: block.share ? `share of ${block.y}` : block.y, labelSize: 20, size: 52, ...(block.log ? { splits: roundTicks, filter: (u, ticks) => ticks } : {}), values: (u, ticks) => ticks.map((tick) => tickLabel(tick, block.share)) },
    ],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, uni: 10 }, points: { size: 7 }, dataIdx: (u, series, closest, value) => place(closest, value) },
    hooks: {
      setCursor: [(u) => tell(u)],
      draw: [(u) => drawStems(u, variant), (u) => drawMarks(u, block)],
      setSelect: [(u) => { if (u.select.width > 0) zoomed(u); }],
    },
  };
}

/** Ticks of a nearly logarithmic axis: 0 and 1, 2, 5 times powers of ten, fewer where they would be too dense. */
function roundTicks(u, axis, low, high) {
  const powers = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7], least = high / 1e4;
  const found = powers.flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)).filter((tick) => tick >= Math.max(low, least, high > 5 ? 1 : 0.1) && tick <= high);
  const thinned = found.length > 9 ? found.filter((tick) => /^(1|0\.0*1)0*$/.test(String(tick))) : found;
  return low <= 0 ? [0, ...thinned] : thinned;
}

/** Points of two lines at the same place are the ends of an interval: a stem between them. */
function drawStems(u, { x, series }) {
  if (series.length !== 2 || series.some((one) => one.draw !== "points")) return;
  const context = u.ctx;
  context.save();
  context.strokeStyle = css("--open");
  context.lineWidth = 2 * (window.devicePixelRatio || 1);
  x.forEach((place, at) => {
    const [low, high] = series.map((one) => one.values[at]);
    if (low === null || high === null) return;
    const [across, from, to] = [u.valToPos(place, "x", true), u.valToPos(low, "y", true), u.valToPos(high, "y", true)];
    context.beginPath();
    context.moveTo(across, from);
    context.lineTo(across, to);
    context.stroke();
  });
  context.restore();
}

function drawMarks(u, block) {
  const context = u.ctx, top = u.bbox.top, ratio = window.devicePixelRatio || 1;
  let last = -Infinity;
  context.save();
  context.strokeStyle = context.fillStyle = css("--soft");
  context.textAlign = "left";
  context.setLineDash([3, 3]);
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  for (const [place, label] of block.marks) {
    const x = u.valToPos(place, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width - 30 * ratio || x - last < 40 * ratio) continue;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + u.bbox.height);
    context.stroke();
    context.fillText(label, x + 4, top + 11 * ratio);
    last = x;
  }
  context.restore();
}

/** The values at a place in words. */
function chartWords(block, number, place) {
  if (place === null || place === undefined) return [];
  const variant = block.variants[number], image = block.pick[number]?.[place];
  const values = variant.series.map((one) => [one.name, one.values[place]]).filter(([, value]) => value !== null && value !== undefined);
  const told = values.map(([name, value]) => `${name}: ${block.share ? KINDS.share(value) : show(value)}`);
  if (image === undefined) return [block.places?.[place] ?? `${block.x}: ${show(variant.x[place])}`, ...told];
  const none = values.length < variant.series.length ? ["no change known that alters the decision"] : [];
  return [`input ${image} (${show(place + 1)} of ${show(variant.x.length)})`, ...told, ...none];
}

/** The names of the lines; a single one needs none. */
function chartLegend(block) {
  const series = block.variants[0].series;
  const legend = el("ul", { class: "legend", hidden: series.length < 2 }, series.map((one) => {
    const item = el("li", {}, one.name);
    item.style.setProperty("--mark", `var(--${/^\d+$/.test(one.role) ? `line-${Number(one.role) % 6}` : one.role})`);
    return item;
  }));
  return legend;
}

function chartValues(block, number) {
  const chosen = block.variants[number];
  const heads = [[block.x, "number"], ...chosen.series.map((one) => [one.name, block.share ? "share" : "number"])];
  const rows = chosen.x.map((place, row) => [place, ...chosen.series.map((one) => one.values[row])]);
  if (block.places?.length) {
    heads[0] = [block.x, "text"];
    rows.forEach((row, at) => { row[0] = block.places[at]; });
  }
  if (isRanking(block, number)) {
    heads[0] = ["input", "index"];
    rows.forEach((row, at) => { row[0] = block.pick[number][at]; });
  }
  return sortableTable({ id: `${block.id}-values`, title: block.title, heads, rows, total: [] });
}

/** A chart; `node.update` gives it other values and keeps what people chose: variant, zoom, open table. */
function drawChart(block, page) {
  let number = 0, plot = null, forced = null, full = null;
  const host = el("div", { class: "plot", tabindex: 0, role: "img" });
  const told = el("output", { class: "told", "aria-live": "polite" });
  const bubble = el("div", { class: "bubble", hidden: true });
  const picked = (place) => (block.pick[number] || [])[place];
  const current = () => plot.cursor.idxs?.[1] ?? null;
  const place = (closest, value) => forced ?? placeAt(block, number, closest, value);
  const tell = (u) => {
    const words = chartWords(block, number, u.cursor.left < 0 ? null : u.cursor.idxs?.[1]);
    told.textContent = words.join(" · ");
    bubble.hidden = !words.length;
    if (bubble.hidden) return;
    bubble.replaceChildren(...words.map((line) => el("div", {}, line)));
    const right = u.cursor.left > u.over.clientWidth / 2;
    bubble.style.left = `${u.over.offsetLeft + u.cursor.left + (right ? -12 - bubble.offsetWidth : 12)}px`;
    bubble.style.top = `${u.over.offsetTop + 8}px`;
  };
  const render = () => {
    const before = plot && { ...plot.scales.x, zoomed: plot.zoomed, left: plot.cursor.left, top: plot.cursor.top };
    if (plot) plot.destroy();
    const paper = document.documentElement.classList.contains("paper");
    const width = paper ? PAPER : Math.max(240, host.clientWidth || host.parentElement?.clientWidth || 480);
    plot = new uPlot(chartOptions(block, number, width, { tell, place, zoomed }), chartData(block, number), host);
    host.append(bubble);
    plot.over.addEventListener("click", () => {
      const image = picked(current());
      if (image !== undefined && page.open && !(plot.select.width > 0)) page.open(image);
    });
    plot.over.addEventListener("dblclick", () => zoom(0));
    plot.over.style.cursor = isRanking(block, number) && page.open ? "pointer" : "";
    if (before?.zoomed) {
      plot.zoomed = true;
      plot.setScale("x", { min: before.min, max: before.max });
    }
    if (before?.left >= 0 && host.contains(document.activeElement)) plot.setCursor({ left: before.left, top: before.top });
  };
  const zoomed = (u) => {
    if (!u.zoomed) full = [u.scales.x.min, u.scales.x.max];
    u.zoomed = true;
  };
  const look = (min, max) => {
    zoomed(plot);
    plot.setScale("x", { min, max });
  };
  const zoom = (factor) => {
    const { min, max } = plot.scales.x, at = current();
    if (!plot.zoomed) full = [min, max]; // all there is
    const centre = at === null ? (min + max) / 2 : block.variants[number].x[at], half = ((max - min) * factor) / 2;
    const low = Math.max(full[0], centre - half), high = Math.min(full[1], centre + half);
    if (factor > 0 && (low > full[0] || high < full[1])) return look(low, high);
    plot.zoomed = false;
    return render();
  };
  const move = (step) => {
    const x = block.variants[number].x, from = current() ?? (step > 0 ? -1 : x.length);
    forced = Math.min(x.length - 1, Math.max(0, from + step));
    const { min, max } = plot.scales.x, wide = max - min;
    if (plot.zoomed && (x[forced] < min || x[forced] > max)) look(x[forced] - wide / 2, x[forced] + wide / 2);
    plot.setCursor({ left: Math.max(0, plot.valToPos(x[forced], "x")), top: plot.over.clientHeight / 3 });
    forced = null;
  };
  const open = () => { const image = picked(current()); if (image !== undefined) page.open?.(image); };
  const keys = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(0), Enter: open };
  host.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
  const button = (text, title, factor) => el("button", { type: "button", title, "aria-label": title, onclick: () => zoom(factor) }, text);
  const choice = el("select", { "aria-label": `${block.title}: which`, onchange: (event) => { number = Number(event.target.value); plot.zoomed = false; render(); list(); } });
  const data = el("details", { class: "data" }, el("summary", {}, "values"));
  const list = () => { if (data.open) data.replaceChildren(data.firstChild, chartValues(block, number)); };
  data.addEventListener("toggle", list);
  const tools = el("div", { class: "tools" }, choice, button("+", "zoom in", 0.5), button("−", "zoom out", 2), button("all", "show all", 0));
  const title = el("h2", {}), legend = el("div"), words = el("p", { class: "soft" }), clicks = el("p", { class: "soft hint" });
  const describe = () => {
    title.textContent = block.title;
    legend.replaceChildren(chartLegend(block));
    words.textContent = block.note;
    words.hidden = !block.note;
    clicks.textContent = block.hint ?? "";
    clicks.hidden = !block.hint;
    host.setAttribute("aria-label", `${block.summary || block.title} Arrow keys tell values, + and - zoom, 0 shows all.`);
    choice.hidden = block.variants.length < 2;
    choice.replaceChildren(...block.variants.map((one, at) => el("option", { value: at, selected: at === number }, one.name)));
  };
  describe();
  const node = el("section", { id: block.id, class: "block chart" }, el("div", { class: "head" }, title, tools), legend, host, told, words, clicks, data);
  charts.add({ node, render });
  let wide = 0; // of the place for the chart, which is drawn anew where that changes
  new ResizeObserver(() => { if (host.clientWidth && host.clientWidth !== wide) { wide = host.clientWidth; render(); } }).observe(host);
  node.update = (next) => {
    const chosen = block.variants[number].name;
    block = next;
    number = Math.max(0, block.variants.findIndex((one) => one.name === chosen));
    describe();
    if (plot) render();
    list();
  };
  return node;
}

const PAPER = 340; // pixels of a chart on paper, where two stand side by side

/** Draw all charts anew: another width, another colour scheme, paper. */
function redrawCharts() {
  for (const chart of charts) {
    if (chart.node.isConnected) chart.render();
    else charts.delete(chart);
  }
}
