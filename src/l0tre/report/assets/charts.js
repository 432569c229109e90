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

const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

/** Options of uPlot for one variant of a chart. */
function chartOptions(block, variant, width, tell) {
  const soft = css("--soft"), rule = css("--rule");
  const phone = width < 480;
  const axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
  const bars = uPlot.paths.bars({ size: [0.7, 60] });
  const paths = { step: uPlot.paths.stepped({ align: 1 }), line: uPlot.paths.linear(), bars, points: () => null };
  const series = variant.series.map((one) => ({
    label: one.name,
    stroke: colour(one.role),
    width: one.draw === "bars" ? 0 : 2,
    fill: one.draw === "bars" ? colour(one.role) : undefined,
    paths: paths[one.draw],
    points: { show: one.draw === "points" || variant.x.length === 1, size: 7, fill: colour(one.role) },
  }));
  const places = variant.x;
  // Bars and single points need room at their sides.
  const wide = variant.series.some((one) => one.draw === "bars") || places.length === 1;
  const reach = (u, low, high) => (wide && !u.zoomed ? [places[0] - 0.6, places[places.length - 1] + 0.6] : [low, high]);
  const xScale = block.log_x ? { time: false, distr: 4, asinh: 1 } : { time: false, range: reach };
  return {
    width,
    height: phone ? 240 : 290,
    series: [{ label: block.x }, ...series],
    bands: block.band && variant.series.length > 1 ? [{ series: [2, 1], fill: css("--area") }] : [],
    scales: { x: xScale, y: block.log ? { distr: 4, asinh: 1, range: (u, low, high) => [0, (high ?? 1) * 1.2] } : { range: (u, low, high) => [Math.min(0, low ?? 0), block.share ? 1 : Math.max(high ?? 1, 1e-9) * 1.06] } },
    axes: [
      { ...axis, ...(places.every(Number.isInteger) ? { incrs: WHOLE } : {}), label: block.x, labelSize: 20, size: 34, ...(block.log_x ? { splits: roundTicks } : {}), values: (u, ticks) => ticks.map((tick) => tickLabel(tick, false)) },
      { ...axis, label: block.y, labelSize: 20, size: 52, ...(block.log ? { splits: roundTicks } : {}), values: (u, ticks) => ticks.map((tick) => tickLabel(tick, block.share)) },
    ],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, uni: 10 }, points: { size: 7 } },
    hooks: {
      setCursor: [(u) => tell(u)],
      draw: [(u) => drawMarks(u, block)],
      setSelect: [(u) => { if (u.select.width > 0) u.zoomed = true; }],
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

function drawMarks(u, block) {
  const context = u.ctx, top = u.bbox.top, ratio = window.devicePixelRatio || 1;
  let last = -Infinity;
  context.save();
  context.strokeStyle = context.fillStyle = css("--soft");
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

/** The values under the cursor in words. */
function chartWords(block, variant, place, picked) {
  if (place === null || place === undefined) return "";
  const values = variant.series.map((one) => [one.name, one.values[place]]).filter(([, value]) => value !== null && value !== undefined);
  const told = values.map(([name, value]) => `${name}: ${block.share ? KINDS.share(value) : show(value)}`);
  return [`${block.x}: ${show(variant.x[place])}`, ...(picked === undefined ? [] : [`image ${picked}`]), ...told].join(" · ");
}

function drawChart(block, page) {
  let number = 0, plot = null;
  const host = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${block.summary || block.title} Arrow keys tell values, + and - zoom, 0 shows all.` });
  const told = el("output", { class: "told", "aria-live": "polite" });
  const bubble = el("div", { class: "bubble", hidden: true });
  const variant = () => block.variants[number];
  const picked = (place) => (block.pick[number] || [])[place];
  const tell = (u) => {
    const words = chartWords(block, variant(), u.cursor.idx, picked(u.cursor.idx));
    told.textContent = words;
    bubble.hidden = !words || u.cursor.left < 0;
    if (bubble.hidden) return;
    bubble.replaceChildren(...words.split(" · ").map((line) => el("div", {}, line)));
    const right = u.cursor.left > u.over.clientWidth / 2;
    bubble.style.left = `${u.over.offsetLeft + u.cursor.left + (right ? -12 - bubble.offsetWidth : 12)}px`;
    bubble.style.top = `${u.over.offsetTop + 8}px`;
  };
  const render = () => {
    if (plot) plot.destroy();
    const width = Math.max(240, host.clientWidth || host.parentElement?.clientWidth || 480);
    plot = new uPlot(chartOptions(block, variant(), width, tell), [variant().x, ...variant().series.map((one) => one.values)], host);
    host.append(bubble);
    plot.over.addEventListener("click", () => {
      const image = picked(plot.cursor.idx);
      if (image !== undefined && page.open && !(plot.select.width > 0)) page.open(image);
    });
    plot.over.addEventListener("dblclick", () => zoom(0));
  };
  const zoom = (factor) => {
    const { min, max } = plot.scales.x, x = variant().x;
    const centre = plot.cursor.idx === null || plot.cursor.idx === undefined ? (min + max) / 2 : x[plot.cursor.idx];
    plot.zoomed = factor !== 0;
    if (factor === 0) return render();
    const half = ((max - min) * factor) / 2;
    return plot.setScale("x", { min: Math.max(Math.min(x[0], min), centre - half), max: Math.min(Math.max(x[x.length - 1], max), centre + half) });
  };
  const move = (step) => {
    const x = variant().x, from = plot.cursor.idx ?? (step > 0 ? -1 : x.length);
    const place = Math.min(x.length - 1, Math.max(0, from + step));
    plot.setCursor({ left: plot.valToPos(x[place], "x"), top: plot.over.clientHeight / 3 });
  };
  host.addEventListener("keydown", (event) => {
    const keys = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(0), Enter: () => { const image = picked(plot.cursor.idx); if (image !== undefined) page.open?.(image); } };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const button = (text, title, factor) => el("button", { type: "button", title, "aria-label": title, onclick: () => zoom(factor) }, text);
  const choice = block.variants.length > 1
    ? el("select", { "aria-label": `${block.title}: which`, onchange: (event) => { number = Number(event.target.value); render(); } }, block.variants.map((one, place) => el("option", { value: place }, one.name)))
    : null;
  const legend = el("ul", { class: "legend" }, block.variants[0].series.map((one) => { const item = el("li", {}, one.name); item.style.setProperty("--mark", `var(--${/^\d+$/.test(one.role) ? `line-${Number(one.role) % 6}` : one.role})`); return item; }));
  const data = el("details", { class: "data" }, el("summary", {}, "values"));
  data.addEventListener("toggle", () => {
    if (!data.open) return;
    const chosen = variant();
    const heads = [[block.x, "number"], ...chosen.series.map((one) => [one.name, block.share ? "share" : "number"])];
    const rows = chosen.x.map((place, row) => [place, ...chosen.series.map((one) => one.values[row])]);
    data.replaceChildren(data.firstChild, sortableTable({ id: `${block.id}-values`, title: block.title, heads, rows, total: [] }));
  });
  const tools = el("div", { class: "tools" }, choice, button("+", "zoom in", 0.5), button("−", "zoom out", 2), button("all", "show all", 0));
  const node = el("section", { id: block.id, class: "block chart" }, el("div", { class: "head" }, el("h2", {}, block.title), tools), legend, host, told, note(block.note), data);
  charts.add({ node, render });
  requestAnimationFrame(render);
  return node;
}

/** Draw all charts anew: another width, another colour scheme, paper. */
function redrawCharts() {
  for (const chart of charts) {
    if (chart.node.isConnected) chart.render();
    else charts.delete(chart);
  }
}
