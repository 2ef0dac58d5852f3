// A few words for building DOM. Text goes through textContent, so nothing a user or a model wrote is ever markup.

/** An element with a class, attributes and children (elements or text). */
function make(tag, className = "", attributes = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A button that does something: `attributes` are its title, its class and the like. */
function makeButton(words, act, attributes = {}) {
  const button = make("button", "", { type: "button", ...attributes }, words);
  button.addEventListener("click", act);
  return button;
}

/** Set the text of an element, touching the document only if it changes. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** {name: element} of all `data-part` elements below `root`. */
function partsOf(root) {
  return Object.fromEntries([...root.querySelectorAll("[data-part]")].map(element => [element.dataset.part, element]));
}

/** Text with what cannot be seen made visible. */
function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
