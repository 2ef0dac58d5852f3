// What a viewer can ask of the engine, for everyone: a prompt, eight mixed ones, run, halt, one step, one phase, run to
// the next such event, speed. What the server refuses is said under the prompt.

const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32, null];

class Controls {
  constructor(root, parts, view) {
    this.parts = parts;
    this.view = view;
    this.buttons = Object.fromEntries([...root.querySelectorAll("[data-command]")].map(b => [b.dataset.command, b]));
    for (const [command, button] of Object.entries(this.buttons)) {
      button.addEventListener("click", () => this.send({ command }));
    }
    parts.composer.addEventListener("submit", event => {
      event.preventDefault();
      this.submit();
    });
    parts.until.append(...Object.keys(LANDMARKS).filter(words => words !== "halt").map(words =>
      make("option", "", { value: words }, words)));
    parts.until.append(make("option", "", { value: "token" }, "token of the chosen sequence"));
    parts.until.append(make("option", "", { value: "condition" }, "event that matches…"));
    parts.until.addEventListener("change", () => { parts.condition.hidden = parts.until.value !== "condition"; });
    parts["run-until"].addEventListener("click", () => this.send(() => this.untilCommand()));
    parts.condition.addEventListener("keydown", event => {
      if (event.key === "Enter") this.send(() => this.untilCommand());
    });
    parts.speed.addEventListener("input", () => setText(parts["speed-text"], speedWords(SPEEDS[parts.speed.value])));
    parts.speed.addEventListener("change", () =>
      this.send({ command: "speed", steps_per_second: SPEEDS[parts.speed.value] }));
  }

  submit() {
    const { prompt, max_tokens, temperature, top_p, n } = this.parts.composer.elements;
    this.send(() => ({
      command: "submit",
      prompt: prompt.value,
      max_tokens: numberIn(max_tokens, "max tokens"),
      temperature: numberIn(temperature, "temperature"),
      top_p: numberIn(top_p, "top p"),
      n: numberIn(n, "samples"),
    }));
  }

  /** The command of "run to next": a breakpoint for one halt. */
  untilCommand() {
    const { until, condition } = this.parts;
    if (until.value === "condition") return { command: "run_until", condition: condition.value };
    if (until.value !== "token") return { command: "run_until", condition: LANDMARKS[until.value].join(" or ") };
    const { selection, map } = this.view.viewer;
    const running = Object.values(map.sequences).filter(view => view.status === "running");
    const sequence = selection.chosen ?? running[0]?.sequence;
    if (!sequence) throw new Error("no sequence runs whose next token could be waited for: send a prompt first");
    return { command: "run_to_token", sequence };
  }

  /** Send a command, or what a function makes of the form; show what went wrong, if anything did. */
  async send(command) {
    try {
      const answer = await sendCommand(typeof command === "function" ? command() : command);
      this.parts.error.hidden = true;
      return answer;
    } catch (error) {
      setText(this.parts.error, error.message);
      this.parts.error.hidden = false;
      return null;
    }
  }

  /** Show what the engine does now, wherever the viewer looks. */
  paint({ history, loop }) {
    const { map } = history;
    const halted = map.halted_after !== "";
    const { StepCommitted = 0, StepFailed = 0 } = map.totals;
    const { running, waiting, preempted } = countStatuses(map);
    const doing = halted ? `halted ${haltPlace(map.halted_after, map)}` : running + waiting + preempted > 0 ? "running" : "idle";
    const done = halted ? "" : ` · ${count(StepCommitted + StepFailed, "step")}`;
    const queued = loop.queued?.length ? ` · ${loop.queued.length} queued` : "";
    const { steps_per_second, failure } = loop;
    setText(this.parts["engine-state"], failure === null ? `${doing}${done}${queued}` : `broken down: ${failure}`);
    this.buttons.run.disabled = !halted;
    this.buttons.halt.disabled = halted;
    this.buttons.step.disabled = this.buttons.next_phase.disabled = !halted;
    if (document.activeElement !== this.parts.speed) {
      this.parts.speed.value = nearestSpeed(steps_per_second);
      setText(this.parts["speed-text"], speedWords(steps_per_second));
    }
  }
}

function numberIn(input, name) {
  if (Number.isNaN(input.valueAsNumber)) throw new Error(`${name} is no number: type one`);
  return input.valueAsNumber;
}

function nearestSpeed(stepsPerSecond) {
  const index = SPEEDS.findIndex(speed => speed !== null && stepsPerSecond !== null && speed >= stepsPerSecond);
  return index < 0 ? SPEEDS.length - 1 : index;
}

function speedWords(stepsPerSecond) {
  return stepsPerSecond === null ? "unlimited" : `≤ ${stepsPerSecond} steps/s`;
}
