// How the timeline is drawn: on a scale of steps against pixels, rows of spans, the tokens of each step, the cursor.
//
//     B      ......|14   ||70            |- - - - - - - ...swapped out...         . waits   | | prefill   - decode
//     A.0                |32   |- - - - - - - - - - |                             | at the end: finished
//     A.1                              '- - - - - - |                             ' forked
//     tokens _______|#####|#####|_#_#_#_#_____________ budget

const ROW_HEIGHT = 18;
const NAMES_WIDTH = 104;
const BAR_HEIGHT = 12;
const DECODE_HEIGHT = 5;
const SEEN_APART = 5; // pixels a step must have for its decodes to be seen apart
const RESTING_WORDS = { waiting: "waiting", preempted: "preempted", swapped: "swapped out" };

/** Steps from `from` on, `span` of them, on `width` pixels beside the names. */
class StepScale {
  constructor(from, span, width) {
    Object.assign(this, { from, span, width, left: NAMES_WIDTH, stepWidth: width / span });
  }

  get to() { return this.from + this.span; }

  x(step) {
    return this.left + (step - this.from) * this.stepWidth;
  }

  /** The step at a pixel, with how much of it is over there. */
  stepAt(x) {
    return this.from + (x - this.left) / this.stepWidth;
  }
}

/** `rows` from pixel `top` on, over `height` pixels. `end` is where spans without an end have come to. */
function drawRows(context, rows, { scale, theme, top, height, end, looked, chosen }) {
  const y = index => index * ROW_HEIGHT - top + ROW_HEIGHT / 2;
  const first = Math.max(0, Math.floor(top / ROW_HEIGHT));
  const shown = rows.slice(first, first + Math.ceil(height / ROW_HEIGHT) + 1);
  const places = new Map(rows.map((row, index) => [row.name, index]));
  context.textBaseline = "middle";
  context.font = `12px ${theme.font}`;
  shown.forEach((row, i) => {
    const middle = y(first + i);
    if (row.name === looked || row.name === chosen) {
      context.fillStyle = theme.cell;
      context.fillRect(0, middle - ROW_HEIGHT / 2, scale.left + scale.width, ROW_HEIGHT);
    }
    context.fillStyle = theme.laneColour(row.lane);
    context.fillRect(2, middle - 4, 8, 8);
    context.fillStyle = row.name === chosen ? theme.accent : theme.ink;
    const indent = places.has(row.parent) ? 10 : 0;
    context.fillText(row.name, 16 + indent, middle, NAMES_WIDTH - 20 - indent);
  });
  context.save();
  context.beginPath();
  context.rect(scale.left, 0, scale.width, height);
  context.clip();
  shown.forEach((row, i) => {
    if (row.forkedAt !== null && places.has(row.parent)) {
      drawFork(context, scale.x(row.forkedAt), y(places.get(row.parent)), y(first + i), theme.laneColour(row.lane));
    }
    for (let at = firstSpanFrom(row, Math.floor(scale.from)); row.spans[at]?.from < scale.to;) {
      const span = row.spans[at];
      drawSpan(context, span, y(first + i), scale, end, theme.laneColour(row.lane), theme);
      const next = Math.floor(scale.stepAt(scale.x(span.from) + 2)); // of spans too short to be seen the first is drawn
      at = scale.stepWidth < 1 && span.to < next ? Math.max(at + 1, firstSpanFrom(row, next)) : at + 1;
    }
  });
  context.restore();
}

function drawFork(context, x, parentY, y, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - 4, parentY);
  context.lineTo(x - 4, y - 4);
  context.quadraticCurveTo(x - 4, y, x + 1, y);
  context.stroke();
}

function drawSpan(context, span, y, scale, end, colour, theme) {
  const left = Math.max(scale.left - 10, scale.x(span.from));
  const right = Math.min(scale.left + scale.width + 10, scale.x(Math.min(span.to + 1, end)));
  const width = Math.max(1, right - left);
  context.fillStyle = colour;
  if (span.kind === "prefill" || span.kind === "recompute") {
    context.globalAlpha = span.kind === "prefill" ? 1 : 0.6;
    context.fillRect(left, y - BAR_HEIGHT / 2, width > 3 ? width - 1 : width, BAR_HEIGHT);
    context.globalAlpha = 1;
    const words = span.kind === "prefill" ? String(span.tokens) : `again ${span.tokens}`;
    drawLabel(context, words, left, width, y, "#10141a");
  } else if (span.kind === "decode") {
    context.globalAlpha = 0.7;
    drawDecodes(context, span, y, scale);
    context.globalAlpha = 1;
  } else if (span.kind === "finished") {
    context.fillRect(scale.x(span.at) - 1, y - 7, 3, 14);
  } else if (width < 4) {
    context.fillRect(left, y - 1, width, 1.5);
  } else {
    context.strokeStyle = span.kind === "waiting" ? theme.muted : colour;
    context.lineWidth = 1.5;
    context.setLineDash([2, 4]);
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + width, y);
    context.stroke();
    context.setLineDash([]);
    drawLabel(context, RESTING_WORDS[span.kind], left, width, y - 5, theme.muted);
  }
}

/** A decode of many steps: a tick for each, or one bar where ticks could not be seen apart. */
function drawDecodes(context, span, y, scale) {
  const from = Math.max(span.from, Math.floor(scale.from));
  const to = Math.min(span.to + 1, Math.ceil(scale.to));
  const top = y - DECODE_HEIGHT / 2;
  if (scale.stepWidth < SEEN_APART) {
    context.fillRect(scale.x(from), top, Math.max(1, (to - from) * scale.stepWidth), DECODE_HEIGHT);
  } else {
    context.beginPath();
    for (let step = from; step < to; step++) context.rect(scale.x(step) + 0.5, top, scale.stepWidth - 2, DECODE_HEIGHT);
    context.fill();
  }
}

function drawLabel(context, text, left, width, y, colour) {
  if (width < 8 || context.measureText(text).width + 4 > width) return;
  context.fillStyle = colour;
  context.fillText(text, left + 3, y);
}

/** Bars of the tokens of each step against the budget; in a column of many steps the fullest one shows. */
function drawTokens(context, log, { scale, theme, height }) {
  const { steps } = log;
  const begin = Math.max(0, lastUpTo(steps, step => step.step, Math.floor(scale.from)));
  const budget = log.at(Math.ceil(scale.to))?.budget || steps.findLast(step => step.budget > 0)?.budget || 0;
  const baseline = height - 1;
  const top = 20;
  const full = Math.max(budget, 1);
  context.save();
  context.beginPath();
  context.rect(scale.left, 0, scale.width, height);
  context.clip();
  context.fillStyle = theme.hatch;
  const width = Math.max(1, scale.stepWidth - (scale.stepWidth >= SEEN_APART ? 2 : 0));
  tokenColumns(steps, begin, scale, (x, tokens) => {
    const tall = Math.max(2, Math.min(1, tokens / full) * (baseline - top));
    context.fillRect(x, baseline - tall, width, tall);
  });
  context.strokeStyle = theme.accent;
  context.setLineDash([2, 3]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(scale.left, top - 0.5);
  context.lineTo(scale.left + scale.width, top - 0.5);
  context.stroke();
  context.setLineDash([]);
  context.restore();
  context.fillStyle = theme.muted;
  context.font = `12px ${theme.font}`;
  context.textBaseline = "middle";
  const middle = (top + baseline) / 2;
  context.fillText("budget", 2, top);
  context.fillText("tokens", 2, middle - 7);
  context.fillText("a step", 2, middle + 7);
  context.textAlign = "right";
  for (const [number, y] of [[full, top], [Math.round(full / 2), middle], [0, baseline - 5]]) {
    context.fillText(number.toLocaleString("en"), NAMES_WIDTH - 4, y);
  }
  context.textAlign = "left";
}

/** Calls `draw(x, tokens)` for the steps from index `begin` on, once for all that fall on one pixel. */
function tokenColumns(steps, begin, scale, draw) {
  let column = -1;
  let most = 0;
  for (let index = begin; index < steps.length && steps[index].step < scale.to; index++) {
    const x = scale.stepWidth >= 1 ? scale.x(steps[index].step) : Math.floor(scale.x(steps[index].step));
    if (x !== column) {
      if (most > 0) draw(column, most);
      most = 0;
      column = x;
    }
    most = Math.max(most, steps[index].tokens);
  }
  if (most > 0) draw(column, most);
}

/** The line at the moment that the viewer shows; what is later is paler. `label` only where there is one. */
function drawCursor(context, x, { scale, theme, height, label, dim }) {
  const right = scale.left + scale.width;
  if (dim && x < right) {
    context.globalAlpha = 0.55;
    context.fillStyle = theme.panel;
    context.fillRect(Math.max(scale.left, x), 0, right - Math.max(scale.left, x), height);
    context.globalAlpha = 1;
  }
  if (x < scale.left || x > right + 1) return;
  context.fillStyle = theme.accent;
  context.fillRect(x - 1, 0, 2, height);
  if (!label) return;
  context.font = `12px ${theme.font}`;
  context.textBaseline = "middle";
  const wide = context.measureText(label).width;
  const from = x - wide - 6 > scale.left ? x - wide - 6 : x + 6;
  context.fillStyle = theme.panel;
  context.fillRect(from - 2, 0, wide + 4, 15);
  context.fillStyle = theme.accent;
  context.fillText(label, from, 8);
}
