// Start: draw the blocks that the page holds, or those that a server sends.

function drawBlock(block, page) {
  const component = COMPONENTS[block.type];
  if (!component) return note(`unknown block ${block.type}`);
  const node = component(block, page);
  if (block.half) node.classList.add("half");
  return node;
}

/** Charts stand side by side where there is room, and so does what comes in twos. */
function drawBlocks(blocks, page) {
  return blocks.map((block) => drawBlock(block, page));
}

function start() {
  const data = document.getElementById("page-data");
  const main = document.getElementById("page");
  if (data) {
    const page = embeddedPage();
    main.append(el("div", { class: "grid" }, drawBlocks(JSON.parse(data.textContent).blocks, page)));
    page.ready.catch((error) => main.append(el("p", { class: "warning" }, `The rows of this page cannot be read: ${error.message}. Use a browser of 2023 or later.`)));
  } else {
    follow(main);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  const paper = (on) => () => { document.documentElement.classList.toggle("paper", on); redrawCharts(); };
  addEventListener("beforeprint", paper(true));
  addEventListener("afterprint", paper(false));
}
