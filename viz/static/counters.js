// The counters: charts over the run, drawn by plotly at most twice a second while they are open. Plotly is large, so it
// is loaded when they are first opened; where there is none, as in an exported file, the table of the figures does.

const PLOTLY_URL = document.currentScript?.src ? new URL("../plotly.min.js", document.currentScript.src).href : null;
const REDRAW_MS = 500;
const MOST_POINTS = 600;

/** Charts: lines of {figure, name, colour(theme)}; `stacked` ones add up, `dots` have values in some steps only. */
const CHARTS = [
  { title: "Blocks", unit: "", stacked: true, lines: [
    { figure: "used", name: "used", colour: theme => theme.lanes[0] },
    { figure: "cached", name: "cached", colour: theme => theme.hatch },
    { figure: "blank", name: "blank", colour: theme => theme.slot }] },
  { title: "Held slots without a token", unit: "%", lines: [
    { figure: "paged", name: "paged", colour: theme => theme.lanes[0] },
    ...Object.keys(RESERVATIONS).map((name, i) => (
      { figure: name, name: `contiguous, ${name}`, colour: theme => theme.lanes[[5, 1, 3][i]] }))] },
  { title: "Prefix hits so far", unit: "%", lines: [
    { figure: "hits", name: "of the tokens looked up", colour: theme => theme.lanes[6] }] },
  { title: "Tokens in the last second", unit: "", lines: [
    { figure: "tokens", name: "generated", colour: theme => theme.lanes[0] }] },
  { title: "Time to a token, halts left out", unit: "ms", dots: true, lines: [
    { figure: "first", name: "first token, from arrival", colour: theme => theme.lanes[5] },
    { figure: "gap", name: "next token", colour: theme => theme.lanes[0] }] },
  { title: "Sequences", unit: "", lines: [
    { figure: "running", name: "running", colour: theme => theme.lanes[0] },
    { figure: "waiting", name: "waiting", colour: theme => theme.lanes[1] }] },
];

class Counters {
  constructor(box, viewer) {
    this.viewer = viewer;
    this.axis = make("select", "", { "aria-label": "counters over" },
      make("option", "", { value: "steps" }, "over steps"), make("option", "", { value: "seconds" }, "over seconds"));
    this.axis.addEventListener("change", () => this.paint());
    this.note = make("span");
    this.plots = CHARTS.map(({ title }) => make("div", "plot", { role: "img", "aria-label": `chart: ${title}` }));
    this.charts = make("div", "charts", { hidden: "" }, ...this.plots);
    this.cells = {};
    this.sheet = make("details", "", {}, make("summary", "", {}, "as a table"), this.table());
    box.append(make("div", "timeline-head hint", {}, this.axis, this.note), this.charts, this.sheet);
    this.drawn = "";
    this.drawnAt = -Infinity;
    loadPlotly().then(loaded => this.begin(loaded));
  }

  table() {
    const rows = CHARTS.flatMap(({ title, unit, lines }) => lines.map(({ figure, name }) => {
      this.cells[figure] = { now: make("td"), peak: make("td") };
      const { now, peak } = this.cells[figure];
      const words = `${title}${unit ? ` (${unit})` : ""}: ${name}`;
      return make("tr", "", { "data-figure": figure }, make("th", "", { scope: "row" }, words), now, peak);
    }));
    const head = ["", "now", "peak"].map(word => make("th", "", { scope: "col" }, word));
    const top = make("thead", "", {}, make("tr", "", {}, ...head));
    return make("table", "sheet", {}, top, make("tbody", "", {}, ...rows));
  }

  begin(loaded) {
    if (this.closed) return;
    this.charts.hidden = !loaded;
    this.sheet.open ||= !loaded;
    if (loaded) {
      for (const plot of this.plots) plot.addEventListener("click", event => this.click(plot, event));
      this.observer = new ResizeObserver(() => {
        this.drawn = "";
        this.paint();
      });
      this.observer.observe(this.charts);
    }
    this.drawn = "";
    this.paint();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.observer?.disconnect();
    if (!this.charts.hidden) this.plots.forEach(plot => Plotly.purge(plot));
  }

  paint() {
    clearTimeout(this.timer);
    const wait = this.drawnAt + REDRAW_MS - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.paint(), wait);
    else this.draw();
  }

  draw() {
    const { viewer } = this;
    const { history, map, theme } = viewer;
    if (!map || this.closed) return;
    const key = [history.header.run, history.oldest, history.newest, theme.panel, this.axis.value].join(" ");
    if (key === this.drawn && map.seq === this.moment) return;
    const isNew = key !== this.drawn;
    if (isNew) this.points = counterSeries(history.steps, map, MOST_POINTS);
    this.drawn = key;
    this.moment = map.seq;
    this.drawnAt = performance.now();
    this.fillTable();
    this.say(history.steps);
    if (this.charts.hidden) return;
    this.plots.forEach((plot, i) => {
      if (isNew) Plotly.react(plot, this.traces(CHARTS[i]), this.layout(CHARTS[i], plot), { displayModeBar: false });
      else Plotly.relayout(plot, { shapes: this.moments() });
    });
  }

  say({ steps, firstStep, lastStep }) {
    const { perPoint } = this.points;
    const words = [steps.length ? `steps ${firstStep}–${lastStep}` : "no step yet"];
    if (perPoint > 1) words.push(`each point the mean of ${perPoint}`);
    if (!this.charts.hidden) words.push("click to go there");
    setText(this.note, words.join(" · "));
  }

  /** Index of the point that has the viewer's moment. */
  pointNow() {
    const { seqs } = this.points;
    return Math.min(seqs.length - 1, firstAtLeast(seqs, this.viewer.map.seq));
  }

  fillTable() {
    const { series } = this.points;
    const at = this.pointNow();
    for (const [figure, { now, peak }] of Object.entries(this.cells)) {
      const values = series[figure] ?? [];
      setText(now, figureInWords(values.slice(0, at + 1).findLast(value => value !== null)));
      const highest = values.reduce((most, value) => (value === null || most > value ? most : value), undefined);
      setText(peak, figureInWords(highest));
    }
  }

  traces({ lines, stacked, dots }) {
    const x = this.points[this.axis.value];
    return lines.map(({ figure, name, colour }) => {
      const ink = colour(this.viewer.theme);
      return {
        x, y: this.points.series[figure] ?? [], name, type: "scatter", mode: dots ? "lines+markers" : "lines",
        connectgaps: true, line: { color: ink, width: stacked ? 0 : 1.5, shape: stacked ? "hv" : "linear" },
        marker: { color: ink, size: 4 },
        hovertemplate: `%{y:.4~g}<extra>${name}</extra>`, ...(stacked ? { stackgroup: "all", fillcolor: ink } : {}),
      };
    });
  }

  layout({ title, unit }, plot) {
    const { theme } = this.viewer;
    const axis = { gridcolor: theme.blankEdge, linecolor: theme.blankEdge, zeroline: false, tickcolor: theme.muted };
    const x = this.points[this.axis.value];
    return {
      title: { text: unit ? `${title}, ${unit}` : title, font: { size: 13, color: theme.ink }, x: 0, xref: "paper",
        y: 0.97 },
      font: { family: theme.font, size: 11, color: theme.muted },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 44, r: 10, t: 46, b: 28 }, width: plot.clientWidth, height: 190,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 10.5 } }, showlegend: true,
      xaxis: { ...axis, range: x.length > 1 ? [x[0], x.at(-1)] : undefined },
      yaxis: { ...axis, rangemode: "tozero" },
      hovermode: "x unified", hoverlabel: { bgcolor: theme.panel, font: { color: theme.ink } }, dragmode: false,
      shapes: this.moments(),
    };
  }

  /** The line at the viewer's moment. */
  moments() {
    const x = this.points[this.axis.value][this.pointNow()];
    const line = { color: this.viewer.theme.accent, width: 1.5 };
    return x === undefined ? [] : [{ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line }];
  }

  /** Go to the step under the pointer. */
  click(plot, event) {
    const { xaxis, _size: size } = plot._fullLayout;
    const x = xaxis.p2d(event.clientX - plot.getBoundingClientRect().left - size.l);
    const { seqs, [this.axis.value]: all } = this.points;
    if (x < all[0] - (all[1] - all[0]) || x > xaxis.range[1]) return; // beside the plot
    this.viewer.goTo(seqs[Math.min(seqs.length - 1, firstAtLeast(all, x))]);
  }
}

function figureInWords(value) {
  return value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 });
}

let plotlyLoaded = null;

/** Whether plotly is there, or could be loaded. */
function loadPlotly() {
  if (typeof Plotly !== "undefined") return Promise.resolve(true);
  if (!PLOTLY_URL) return Promise.resolve(false);
  return plotlyLoaded ??= new Promise(resolve => {
    const script = make("script", "", { src: PLOTLY_URL });
    script.addEventListener("load", () => resolve(true));
    script.addEventListener("error", () => resolve(false));
    document.head.append(script);
  });
}

PANELS.counters = { title: "Counters", make: (box, viewer) => new Counters(box, viewer) };
