// Where a page's data come from: the file itself, or a server.

/** Unpack what `packing.packed` packed. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** The columns of bounds.csv, as the exports write them. */
const CSV = ["index", "label", "lower", "upper", "converged", "guarantee", "seconds", "queries", "level"];

/** What all components know of their page: its rows, and where their details are. */
class Page {
  constructor({ sheet, extra }) {
    this.sheet = sheet;
    this.extra = extra;
    this.result = { images: [] };
    this.listeners = [];
  }

  /** Call a function now and whenever rows change: all rows, and whether they are other ones than before. */
  onRows(listener) {
    this.listeners = [listener];
    listener(this.result.images, true);
  }

  setResult(result, fresh = true) {
    this.result = result;
    for (const listener of this.listeners) listener(result.images, fresh);
  }

  /** The result as a file. */
  async json() {
    return `${JSON.stringify(this.result, null, 1)}\n`;
  }

  csvHead(entries) {
    this.plain = entries.length && !("lower" in entries[0]);
    if (this.plain) return Object.keys(entries[0]).filter((name) => name !== "witness").concat("becomes");
    const names = this.result.config?.names ?? {};
    this.named = [...(names.inputs ? ["name"] : []), ...(names.classes ? ["class", "becomes_class"] : [])];
    return [...CSV, "state", ...this.named];
  }

  csvRow(entry) {
    const becomes = entry.witness ? entry.witness.label : "";
    if (this.plain) return [...Object.entries(entry).filter(([name]) => name !== "witness").map(([, value]) => value), becomes];
    const python = (value) => (value === true ? "True" : value === false ? "False" : value);
    const names = this.result.config?.names ?? {};
    const more = { name: names.inputs?.[entry.index], class: className(names, entry.label), becomes_class: becomes === "" ? "" : className(names, becomes) };
    return [...CSV.map((name) => python(entry[name])), this.result.state ?? "", ...this.named.map((name) => more[name])];
  }
}

/** The page that is in this file. */
function embeddedPage() {
  const sheets = JSON.parse(document.getElementById("page-sheets").textContent);
  const packed = document.getElementById("page-packed").textContent;
  let extras = [];
  const page = new Page({ sheet: (number) => sheets[number], extra: (row) => extras[row] });
  page.ready = packed ? unpack(packed).then((data) => { extras = data.extras; page.setResult(data.result); }) : Promise.resolve();
  return page;
}
