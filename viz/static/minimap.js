// The whole pool with one pixel a block: what the map shows when its cells are too small for glyphs, and the minimap
// that says, when they are large, which part of the pool is seen.

const MINIMAP_WIDTH = 168;
const MINIMAP_HEIGHT = 108;

/** One pixel a block, in the rows and columns of the map. */
class Overview {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
  }

  /** Returns whether the picture had to begin anew, so that every block must be set. */
  begin(columns, rows) {
    if (this.canvas.width === columns && this.canvas.height === rows) return false;
    this.canvas.width = columns;
    this.canvas.height = rows;
    this.image = this.context.createImageData(columns, rows);
    return true;
  }

  set(block, [red, green, blue]) {
    this.image.data.set([red, green, blue, 255], 4 * block);
  }

  flush() {
    this.context.putImageData(this.image, 0, 0);
  }
}

class Minimap {
  /** `changed()` is called when a click or a drag has moved the view. */
  constructor(view, overview, changed) {
    Object.assign(this, { view, overview, changed });
    this.canvas = make("canvas", "minimap", { "aria-hidden": "true", hidden: "" }); // the keys move the map itself
    this.canvas.addEventListener("pointerdown", event => {
      this.canvas.setPointerCapture(event.pointerId);
      this.moveTo(event);
    });
    this.canvas.addEventListener("pointermove", event => { if (event.buttons) this.moveTo(event); });
  }

  moveTo({ offsetX, offsetY }) {
    const { view } = this;
    const across = view.width / view.pitch;
    const down = view.height / view.pitch;
    view.moveTo(offsetX / this.pitchX - across / 2, offsetY / this.pitchY - down / 2);
    this.changed();
  }

  /** Paint it in the lower right corner of the map, `below` pixels above the end of what the map stands on. */
  paint(theme, below) {
    const { view, canvas } = this;
    canvas.hidden = !view.zoomed;
    if (canvas.hidden) return;
    canvas.style.bottom = `${below + 6}px`;
    const factor = Math.min(MINIMAP_WIDTH / view.columns, MINIMAP_HEIGHT / view.rows);
    const width = Math.max(24, Math.round(view.columns * factor));
    const height = Math.max(24, Math.round(view.rows * factor));
    this.pitchX = width / view.columns;
    this.pitchY = height / view.rows;
    const context = sizeCanvas(canvas, width, height, view.scale);
    context.imageSmoothingEnabled = this.pitchX * view.scale < 1;
    context.drawImage(this.overview.canvas, 0, 0, width, height);
    const across = Math.min(width, (view.width / view.pitch) * this.pitchX);
    const down = Math.min(height, (view.height / view.pitch) * this.pitchY);
    const frame = [view.left * this.pitchX, view.top * this.pitchY, across, down];
    context.strokeStyle = theme.panel;
    context.lineWidth = 4;
    context.strokeRect(...frame);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(...frame);
  }
}

/** Make a canvas empty, of that size in CSS pixels and sharp on this screen. Returns its context, in CSS pixels too. */
function sizeCanvas(canvas, width, height, scale) {
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
