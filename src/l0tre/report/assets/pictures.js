// Inputs as pictures: cut from sheets, changed values put in, drawn on a canvas.

/** Loads sheets when they are first looked at. */
class Pictures {
  constructor(block, sheet) {
    this.block = block;
    this.sheet = sheet; // number of a sheet -> its address, or a promise of it
    this.loaded = new Map();
  }

  /** Where the picture of a row is: sheet and place in it; null for none. */
  place(row) {
    const picture = this.block.picture;
    if (!picture) return null;
    const cell = picture.cells ? picture.cells[row] : row;
    if (cell === undefined || cell < 0) return null;
    const inside = cell % picture.sheet;
    return { sheet: Math.floor(cell / picture.sheet), x: (inside % picture.across) * picture.width, y: Math.floor(inside / picture.across) * picture.height };
  }

  async image(number) {
    if (!this.loaded.has(number)) {
      const load = async () => {
        const image = new Image();
        image.src = await this.sheet(number);
        await image.decode();
        return image;
      };
      this.loaded.set(number, load());
    }
    return this.loaded.get(number);
  }

  /** Draw the picture of a row onto a canvas of its own size; false if there is none. */
  async draw(canvas, row, changes = null) {
    const place = this.place(row);
    if (!place) return false;
    const { width, height } = this.block.picture;
    let image;
    try {
      image = await this.image(place.sheet);
    } catch {
      return false;
    }
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, place.x, place.y, width, height, 0, 0, width, height);
    if (changes) this.change(context, changes);
    return true;
  }

  /** Row, column and channel of a position in the flattened input. */
  where(position) {
    const { shape, channels } = this.block;
    if (shape.length === 2) return { row: Math.floor(position / shape[1]), column: position % shape[1], channel: null };
    const [a, b, c] = shape, first = Math.floor(position / (b * c)), second = Math.floor(position / c) % b, third = position % c;
    if (channels === 0) return { row: second, column: third, channel: a > 1 ? first : null };
    return { row: first, column: second, channel: c > 1 ? third : null };
  }

  get pictured() {
    return this.block.shape.length >= 2 && (this.block.shape.length === 2 || this.block.channels !== null);
  }

  /** Put changed values into a picture. */
  change(context, changes) {
    const { width, height } = this.block.picture, { low, high } = this.block;
    const pixels = context.getImageData(0, 0, width, height);
    changes.positions.forEach((position, number) => {
      const { row, column, channel } = this.where(position), at = 4 * (row * width + column);
      const value = Math.round((255 * (changes.values[number] - low)) / (high - low));
      for (const part of channel === null ? [0, 1, 2] : [channel]) pixels.data[at + part] = value;
    });
    context.putImageData(pixels, 0, 0);
  }
}

/** A canvas that shows pixels as squares. */
function pixelCanvas(label, width, height) {
  const canvas = el("canvas", { class: "pixels", role: "img", "aria-label": label, width, height });
  canvas.style.aspectRatio = `${width} / ${height}`;
  return canvas;
}
