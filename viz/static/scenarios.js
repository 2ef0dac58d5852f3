// The tab of the scenarios: which there are, and the one that plays. #scenario=parallel_sampling opens one,
// #scenario=preemption_storm&variant=swap&seq=135 at a moment.

class Scenarios {
  constructor(root) {
    this.root = root;
    this.player = null;
    this.list = make("div", "scenario-list");
    this.stage = make("div", "scenario-stage", { hidden: "" });
    root.append(this.list, this.stage);
    root.addEventListener("keydown", event => this.onKey(event));
    addEventListener("hashchange", () => this.openAddress());
    this.load();
  }

  async load() {
    const response = await fetch(new URL("pagelens/scenarios", document.baseURI)).catch(() => null);
    if (!response?.ok) {
      const words = "The scenarios could not be fetched: is the server still there? Load the page again once it is.";
      this.list.replaceChildren(make("p", "hint", {}, words));
      return;
    }
    const { scenarios, problems } = await response.json();
    this.scenarios = scenarios;
    const cards = scenarios.map(scenario => {
      const button = make("button", "scenario", { type: "button", "data-scenario": scenario.name },
        make("b", "", {}, scenario.title), make("span", "", {}, scenario.summary));
      button.addEventListener("click", () => this.open(scenario));
      return button;
    });
    const none = make("p", "hint", {}, "There are no scenarios here: they are files of tutorials/scenarios.");
    this.list.replaceChildren(...(cards.length ? cards : [none]),
      ...problems.map(problem => make("p", "error", { role: "alert" }, problem)));
    this.openAddress();
  }

  openAddress() {
    const named = scenarioInAddress();
    const scenario = this.scenarios?.find(each => each.name === named);
    if (scenario) this.openLinked(scenario);
    else if (named && this.scenarios && !scenario) {
      this.list.prepend(make("p", "error", { role: "alert" }, `there is no scenario ${named}: choose one below`));
    }
  }

  /** Open what the address names, unless it plays already and no moment in it is named. */
  openLinked(scenario) {
    const { seq, block } = momentOfLink(location.hash);
    if (scenario === this.scenario && seq === null) return;
    const variant = new URLSearchParams(location.hash.slice(1)).get("variant");
    const names = namesOf(scenario);
    if (scenario.variants.some(each => each.name === variant) && !names.includes(variant)) names[0] = variant;
    const index = Math.max(0, names.indexOf(variant));
    this.open(scenario, names, seq === null ? null : { index, seq, block });
  }

  /** Play a scenario: one variant, or two side by side; or stand at a `moment` of one of them. */
  open(scenario, names = namesOf(scenario), moment = null) {
    this.close();
    this.scenario = scenario;
    history.replaceState(null, "", `#scenario=${encodeURIComponent(scenario.name)}`);
    this.list.hidden = true;
    this.stage.hidden = false;
    const tracks = make("div", `tracks of-${Math.max(1, names.length)}`);
    const side = make("div", "scenario-side");
    this.stage.className = `scenario-stage of-${Math.max(1, names.length)}${scenario.tables ? " with-tables" : ""}`;
    const chosen = names.length ? names.map(name => scenario.variants.find(variant => variant.name === name)) : [null];
    const made = chosen.map(variant => new Track(tracks, scenario, variant, () => this.player?.onGrown()));
    side.append(this.heading(scenario, names, made[0]));
    this.stage.replaceChildren(side, tracks);
    this.player = new Player(side, scenario, made, {
      moment: moment && { ...moment, track: made[moment.index] }, onward: this.onward(scenario),
    });
    for (const track of made) track.load();
    scrollTo(0, 0);
    side.querySelector("h2").focus({ preventScroll: true });
  }

  heading(scenario, names, first) {
    const back = makeButton("‹ all scenarios", () => this.leave());
    const choices = names.map((name, i) => {
      const select = make("select", "", { "aria-label": i ? "shown on the right" : "shown on the left" },
        ...scenario.variants.map(variant => make("option", "", { value: variant.name }, variant.title)));
      select.value = name;
      select.addEventListener("change", () => this.open(scenario, names.with(i, select.value)));
      return select;
    });
    const tables = makeButton("block tables", () => {
      tables.setAttribute("aria-pressed", this.stage.classList.toggle("with-tables"));
    }, { "aria-pressed": String(scenario.tables) });
    const versus = choices.flatMap((select, i) => (i ? [" beside ", select] : [select]));
    return make("header", "", {}, back, make("h2", "", { tabindex: "-1" }, scenario.title),
      ...(versus.length ? [make("span", "versus", {}, ...versus), tables] : [first.recording]));
  }

  /** The button that leads to the next scenario, or from the last one back to the list. */
  onward(scenario) {
    const next = this.scenarios[this.scenarios.indexOf(scenario) + 1];
    return next ? makeButton(`next scenario: ${next.title}`, () => this.open(next), { class: "primary" })
      : makeButton("back to all scenarios", () => this.leave(), { class: "primary" });
  }

  close() {
    this.player?.close();
    this.player = this.scenario = null;
  }

  leave() {
    this.close();
    history.replaceState(null, "", location.pathname + location.search);
    this.stage.hidden = true;
    this.stage.replaceChildren();
    this.list.hidden = false;
  }

  /** Space plays and pauses, wherever in the tab it is not typed or pressed on a button. */
  onKey(event) {
    const presses = event.target.closest("input, select, button, a, [role=button]");
    if (event.key !== " " || event.defaultPrevented || presses) return;
    if (!this.player || this.player.card) return;
    event.preventDefault();
    this.player.bar.toggle.click();
  }
}

/** The variants that stand side by side at first. */
function namesOf(scenario) {
  return scenario.variants.slice(0, 2).map(variant => variant.name);
}

/** The scenario that the address names, or null. */
function scenarioInAddress() {
  return new URLSearchParams(location.hash.slice(1)).get("scenario");
}

/** Choose one of the page's tabs. */
function openTab(title) {
  [...document.querySelectorAll("[role=tab]")].find(tab => tab.textContent.trim() === title)?.click();
}
