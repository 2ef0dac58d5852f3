// The panels below the map, opened on demand: a row of switches above it, and a box for each open one. Which are open
// is remembered by the browser.

/** Name -> {title, make(box, viewer)}; a panel has paint(), called after the map has changed while it is open. */
const PANELS = {};

class Panels {
  constructor(box, viewer) {
    this.viewer = viewer;
    this.boxes = {};
    this.open = {};
    const switches = make("div", "switches", { role: "group", "aria-label": "panels" });
    const grid = make("div", "panel-grid");
    for (const [name, { title }] of Object.entries(PANELS)) {
      const button = makeButton(title, () => this.toggle(name), { "aria-pressed": "false", "data-panel": name });
      const content = make("div", `content ${name}`);
      const section = make("section", `panel ${name}`, { "aria-label": title, hidden: "" },
        make("h2", "", {}, title), content);
      switches.append(button);
      grid.append(section);
      this.boxes[name] = { button, section, content };
    }
    viewer.parts.tools.append(switches);
    box.append(grid);
    for (const name of remembered()) if (name in PANELS) this.show(name);
  }

  toggle(name) {
    if (this.open[name]) this.hide(name);
    else this.show(name);
    if (this.open[name]) this.boxes[name].section.scrollIntoView({ block: "start" });
    remember(Object.keys(this.open));
  }

  /** Open a panel, as a tour does, without remembering it. */
  show(name) {
    const { button, section, content } = this.boxes[name];
    section.hidden = false;
    button.setAttribute("aria-pressed", "true");
    if (!this.open[name]) {
      content.replaceChildren();
      this.open[name] = PANELS[name].make(content, this.viewer);
    }
    this.viewer.redraw?.();
  }

  hide(name) {
    const { button, section } = this.boxes[name];
    section.hidden = true;
    button.setAttribute("aria-pressed", "false");
    this.open[name].close?.();
    delete this.open[name];
  }

  paint() {
    for (const panel of Object.values(this.open)) panel.paint();
  }
}

function remembered() {
  try {
    return JSON.parse(localStorage.getItem("pagelens-panels")) ?? [];
  } catch {
    return []; // a browser that keeps nothing, or something else under this name
  }
}

function remember(names) {
  try {
    localStorage.setItem("pagelens-panels", JSON.stringify(names));
  } catch {
    // then it is forgotten
  }
}
