// Hands on the block map: the wheel, two fingers, + and - zoom, a drag moves, a double click or 0 shows all of it
// again; arrows walk from block to block, a click or Enter pins one.

const CLICK_SLOP = 4; // px that a click may move
const WHEEL_SPEED = 0.0025;
const PINCH_SPEED = 0.012; // a trackpad's pinch arrives as a wheel with the control key
const KEY_ZOOM = 1.5;

class MapGestures {
  /** `hover(x, y)` tells what the pointer is on; `changed()` is called when the view has moved. */
  constructor(canvas, view, selection, { hover, changed }) {
    Object.assign(this, { canvas, view, selection, hover, changed });
    this.pointers = new Map(); // pointer id -> [x, y]
    this.travelled = 0;
    canvas.addEventListener("wheel", event => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", event => this.onDown(event));
    canvas.addEventListener("pointermove", event => this.onMove(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, event => this.onUp(event));
    canvas.addEventListener("pointerleave", () => selection.hover(null));
    canvas.addEventListener("click", event => this.onClick(event));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", event => this.onKey(event));
  }

  fit() {
    this.view.fit();
    this.changed();
  }

  /** Zoom about a point, in the middle if none is given. */
  zoom(factor, x = this.view.width / 2, y = this.view.height / 2) {
    const moved = this.view.zoom(x, y, factor);
    if (moved) this.changed();
    return moved;
  }

  /** At either end of the zoom the page scrolls on. */
  onWheel(event) {
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const factor = Math.exp(-event.deltaY * lines * (event.ctrlKey ? PINCH_SPEED : WHEEL_SPEED));
    if (this.zoom(factor, event.offsetX, event.offsetY) || event.ctrlKey) event.preventDefault();
  }

  onDown(event) {
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.travelled = this.pointers.size > 1 ? Infinity : 0;
  }

  onMove(event) {
    const from = this.pointers.get(event.pointerId);
    const to = [event.offsetX, event.offsetY];
    if (!from) {
      this.hover(...to);
      return;
    }
    const before = this.spread();
    this.pointers.set(event.pointerId, to);
    this.travelled += Math.hypot(to[0] - from[0], to[1] - from[1]);
    if (this.travelled < CLICK_SLOP) return;
    this.canvas.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) {
      const { x, y, apart } = this.spread();
      this.view.moveBy(before.x - x, before.y - y);
      this.view.zoom(x, y, apart / before.apart);
    } else {
      this.view.moveBy(from[0] - to[0], from[1] - to[1]);
    }
    this.changed();
  }

  /** The middle of the pointers that are down and how far apart they are. */
  spread() {
    const [[x0, y0], [x1, y1] = [x0, y0]] = [...this.pointers.values()];
    return { x: (x0 + x1) / 2, y: (y0 + y1) / 2, apart: Math.max(1, Math.hypot(x1 - x0, y1 - y0)) };
  }

  onUp(event) {
    this.pointers.delete(event.pointerId);
  }

  onClick(event) {
    if (this.travelled < CLICK_SLOP) this.selection.pin(this.view.blockAt(event.offsetX, event.offsetY));
  }

  onKey(event) {
    this.selection.onKey(event);
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const { columns, numBlocks } = this.view;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity,
    };
    const from = this.selection.block;
    if (event.key in steps) {
      const to = from === null ? 0 : Math.max(0, Math.min(numBlocks - 1, from + steps[event.key]));
      this.view.reveal(to);
      this.selection.walk(to);
    } else if (event.key === "Enter" || event.key === " ") {
      this.selection.pin(from);
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      this.zoom(event.key === "-" ? 1 / KEY_ZOOM : KEY_ZOOM, ...this.middleOf(from));
    } else if (event.key === "0") {
      this.fit();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Where the keys zoom: at the block walked to, else in the middle. */
  middleOf(block) {
    if (block === null || !this.view.isVisible(block)) return [];
    return this.view.corner(block).map(value => value + this.view.cell / 2);
  }
}
