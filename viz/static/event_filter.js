// The filter of the event list: groups of kinds, single kinds, what the viewer has selected, and words.

const SUBJECTS = { "": "about anything", block: "about the selected block", sequence: "about the selected sequence" };

class EventFilter {
  /** `changed()` is called when something else is wanted. */
  constructor(viewer, changed) {
    this.viewer = viewer;
    this.changed = changed;
    this.off = new Set(); // kinds that are not wanted
    this.groups = Object.fromEntries(Object.keys(EVENT_GROUPS).map(group =>
      [group, makeButton(group, () => this.toggle(this.kindsOf(group)), { "aria-pressed": "true" })]));
    this.kinds = make("div", "kinds");
    this.landmark = this.select("only such events",
      ["every kind", ...Object.keys(LANDMARKS)].map(words => [words, words]));
    this.landmark.addEventListener("change", () => this.only(LANDMARKS[this.landmark.value]));
    this.about = this.select("what the events are about", Object.entries(SUBJECTS));
    this.about.addEventListener("change", () => changed());
    this.search = make("input", "", { type: "search", placeholder: "search", "aria-label": "search the events" });
    this.search.addEventListener("input", () => changed());
    this.box = make("div", "event-tools", {},
      make("div", "segments", { role: "group", "aria-label": "groups of events" }, ...Object.values(this.groups)),
      this.landmark, this.about, this.search,
      make("details", "", {}, make("summary", "", {}, "kinds"), this.kinds));
  }

  select(label, options) {
    return make("select", "", { "aria-label": label },
      ...options.map(([value, words]) => make("option", "", { value }, words)));
  }

  /** All kinds that there are: those of the header, and whatever else has come. */
  get known() {
    const { history } = this.viewer;
    return [...new Set([...Object.keys(history.header.kinds ?? {}), ...history.kinds.keys()])];
  }

  kindsOf(group) {
    return this.known.filter(kind => groupOfKind(kind) === group);
  }

  /** Show kinds, or hide them if all of them are shown. */
  toggle(kinds) {
    const hide = kinds.every(kind => !this.off.has(kind));
    for (const kind of kinds) if (hide) this.off.add(kind); else this.off.delete(kind);
    this.landmark.value = "every kind";
    this.changed();
  }

  /** Show these kinds and no others; all if none are given. */
  only(kinds) {
    this.off = new Set(kinds ? this.known.filter(kind => !kinds.includes(kind)) : []);
    this.changed();
  }

  /** What is wanted now, for EventMatches; the subject follows the selection. */
  wanted() {
    const { known, off } = this;
    return {
      kinds: off.size === 0 ? null : new Set(known.filter(kind => !off.has(kind))),
      subject: this.subject(),
      words: this.search.value.toLowerCase().split(/\s+/).filter(Boolean),
    };
  }

  subject() {
    const { selection, map } = this.viewer;
    if (this.about.value === "block" && selection.pinnedBlock !== null) return { block: selection.pinnedBlock };
    const sequence = selection.chosen ?? selection.pinnedToken?.sequence;
    if (this.about.value !== "sequence" || !sequence) return null;
    return { sequence, request: map.sequences[sequence]?.request ?? "" };
  }

  /** What is selected, in words: "block 17". */
  subjectWords() {
    const subject = this.subject();
    if (subject) return subject.block === undefined ? `about ${subject.sequence}` : `about block ${subject.block}`;
    return this.about.value ? `pin a ${this.about.value} to see only its events` : "";
  }

  paint() {
    for (const [group, button] of Object.entries(this.groups)) {
      const kinds = this.kindsOf(group);
      const shown = kinds.filter(kind => !this.off.has(kind)).length;
      button.setAttribute("aria-pressed", shown === 0 ? "false" : shown === kinds.length ? "true" : "mixed");
    }
    const { known } = this;
    const signature = `${known.length} ${[...this.off].join()}`;
    if (signature === this.shown) return;
    this.shown = signature;
    const focused = [...this.kinds.querySelectorAll("input")].indexOf(document.activeElement);
    this.kinds.replaceChildren(...known.map(kind => {
      const box = make("input", "", { type: "checkbox" });
      box.checked = !this.off.has(kind);
      box.addEventListener("change", () => this.toggle([kind]));
      return make("label", "", {}, box, ` ${kind}`);
    }));
    this.kinds.querySelectorAll("input")[focused]?.focus();
  }
}
