// What a viewer can ask for: a prompt, eight mixed ones, halt, run, one step, speed. What the server refuses is said
// under the prompt.

const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32, null];

class Controls {
  constructor(root, parts) {
    this.parts = parts;
    this.buttons = Object.fromEntries([...root.querySelectorAll("[data-command]")].map(b => [b.dataset.command, b]));
    for (const [command, button] of Object.entries(this.buttons)) {
      button.addEventListener("click", () => this.send({ command }));
    }
    parts.composer.addEventListener("submit", event => {
      event.preventDefault();
      this.submit();
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

  /** Send a command, or what a function makes of the form; show what went wrong, if anything did. */
  async send(command) {
    try {
      await sendCommand(typeof command === "function" ? command() : command);
      this.parts.error.hidden = true;
    } catch (error) {
      setText(this.parts.error, error.message);
      this.parts.error.hidden = false;
    }
  }

  /** Show what the engine does now. */
  paint(state) {
    const halted = state.map.halted_after !== "";
    const { StepCommitted = 0, StepFailed = 0 } = state.map.totals;
    const done = count(StepCommitted + StepFailed, "step");
    const { running, waiting, preempted } = countStatuses(state.map);
    const doing = halted ? "halted" : running + waiting + preempted > 0 ? "running" : "idle";
    const { steps_per_second, failure } = state.loop;
    setText(this.parts["engine-state"], failure === null ? `${doing} · ${done}` : `broken down: ${failure}`);
    this.buttons.run.disabled = !halted;
    this.buttons.halt.disabled = halted;
    this.buttons.step.disabled = !halted;
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
