// The strip below the timeline: the tokens of all steps held, and a brush over those that the timeline shows.
//
//     |_.::..:::|#:##::#:##|..::...______|      drag beside the brush: a new one; in it: move it; at an edge: resize it

const STRIP_HEIGHT = 30;
const EDGE = 6; // pixels on either side of the brush's end that take hold of it

class TimelineOverview {
  /** `choose(from, span)` is called as the user brushes. */
  constructor(choose) {
    this.choose = choose;
    this.canvas = make("canvas", "timeline-overview", { title: "drag to choose the steps shown" });
    this.canvas.addEventListener("pointerdown", event => this.begin(event));
    this.canvas.addEventListener("pointermove", event => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(name, () => { this.dragged = null; });
    }
  }

  begin(event) {
    if (event.button !== 0 || !this.all) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    const [from, to] = [this.all.x(this.shown.from), this.all.x(this.shown.to)];
    const x = event.offsetX;
    const near = end => Math.abs(x - end) <= EDGE;
    const step = this.all.stepAt(x);
    const whole = this.shown.from <= this.all.from && this.shown.to >= this.all.to;
    if (near(from) && !whole) this.dragged = { fixed: this.shown.to };
    else if (near(to) && !whole) this.dragged = { fixed: this.shown.from };
    else if (x > from && x < to && !whole) this.dragged = { grip: step - this.shown.from, span: this.shown.span };
    else this.dragged = { fixed: step };
  }

  drag(event) {
    if (!this.dragged) return;
    const { fixed, grip, span } = this.dragged;
    const step = this.all.stepAt(event.offsetX);
    if (fixed === undefined) this.choose(step - grip, span);
    else this.choose(Math.min(fixed, step), Math.abs(step - fixed));
  }

  /** Draw all steps, the brush over those that `shown`, a StepScale, holds, and the cursor. */
  paint(log, shown, cursorStep, theme, scale) {
    this.shown = shown;
    this.all = new StepScale(log.firstStep, Math.max(1, log.lastStep + 1 - log.firstStep), shown.width);
    const context = sizeCanvas(this.canvas, shown.left + shown.width, STRIP_HEIGHT, scale);
    const { steps } = log;
    const full = Math.max(1, steps.at(-1)?.budget || steps.findLast(step => step.budget > 0)?.budget || 1);
    context.fillStyle = theme.blank;
    context.fillRect(shown.left, 0, shown.width, STRIP_HEIGHT);
    context.fillStyle = theme.hatch;
    const width = Math.max(1, this.all.stepWidth);
    tokenColumns(steps, 0, this.all, (x, tokens) => {
      const tall = Math.max(1, Math.min(1, tokens / full) * (STRIP_HEIGHT - 4));
      context.fillRect(x, STRIP_HEIGHT - tall, width, tall);
    });
    const left = Math.max(shown.left, this.all.x(shown.from));
    const right = Math.min(shown.left + shown.width, this.all.x(shown.to));
    context.strokeStyle = theme.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left + 1, 1, Math.max(2, right - left - 2), STRIP_HEIGHT - 2);
    context.fillStyle = theme.accent;
    context.fillRect(this.all.x(cursorStep) - 0.5, 0, 1, STRIP_HEIGHT);
    context.fillStyle = theme.muted;
    context.font = `12px ${theme.font}`;
    context.textBaseline = "middle";
    context.fillText("all steps", 2, STRIP_HEIGHT / 2, NAMES_WIDTH - 6);
  }
}
