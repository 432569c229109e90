// What all components share. Text reaches the page as text only: there is no innerHTML in this package.

/** An element: attributes, `on...` listeners, and children (nodes or text). */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (typeof child === "string" ? plain(child) : child)));
  return node;
}

/** Text without signs that cannot be seen, or that turn the order of others: they are written as numbers. */
function plain(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A number for people: whole ones with separators, others with few digits. */
function show(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

/** A number with three decimals, more where the largest of its column would show too few digits. */
function even(value, most = Math.abs(value)) {
  if (value === null || value === undefined) return "";
  const decimals = most > 0 && most < 0.1 ? Math.min(12, 2 - Math.floor(Math.log10(most))) : 3;
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

const KINDS = {
  number: (value) => show(value),
  index: (value) => (value === null || value === undefined ? "" : String(value)),
  mean: even,
  text: (value) => (value === null || value === undefined ? "" : String(value)),
  share: (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)}\u00a0%`),
  moment: (value) => (value ? new Date(1000 * value).toLocaleString("sv", { dateStyle: "short", timeStyle: "short" }) : ""),
  yes: (value) => (value ? "yes" : ""),
  seconds: (value) => (value === null || value === undefined ? "" : value < 0.01 && value > 0 ? value.toExponential(1) : value.toFixed(2)),
};

/** A number with its unit. */
function counted(number, unit) {
  return `${show(number)} ${unit}${number === 1 ? "" : unit.endsWith("s") ? "es" : "s"}`;
}

/** Offer a text as a file. */
function download(name, text, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csvLine(cells) {
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  return cells.map((cell) => quoted(cell === null || cell === undefined ? "" : String(cell))).join(",");
}

/** A section of the page with a heading that can be linked to. */
function section(block, ...children) {
  return el("section", { id: block.id, class: `block ${block.type}` }, block.title ? el("h2", {}, block.title) : null, ...children);
}

function note(text) {
  return text ? el("p", { class: "soft" }, text) : null;
}

/** What a click does: of no use on paper. */
function hint(text) {
  return text ? el("p", { class: "soft hint" }, text) : null;
}

/** A value on the style sheet. */
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
