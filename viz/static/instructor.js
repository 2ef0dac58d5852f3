// Who somebody is to the server: everyone looks and prompts; where an instructor's password is set, only who gives it
// moves the engine. The server decides; the page only hides what it would refuse (forms.css, by data-role).

const OWN_ROUTES = new URL("../", document.currentScript.src);
const SECONDS_BEFORE_ASKING_WHY = 1;

/** Let a form sign in with its password; `done()` is called when it has. */
function signInWith(form, done) {
  const error = form.querySelector(".error");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    try {
      await postJSON(new URL("login", OWN_ROUTES), { password: form.elements.password.value });
      error.hidden = true;
      form.reset();
      done();
    } catch (problem) {
      setText(error, problem.message);
      error.hidden = false;
      form.elements.password.select();
    }
  });
}

/** A strip in the corner of the page: who the user is, how to become the instructor, and why there is no connection. */
class AccessStrip {
  constructor() {
    this.role = make("span");
    this.signIn = makeButton("I am the instructor", () => this.dialog.showModal());
    this.signOut = makeButton("sign out", async () => {
      await postJSON(new URL("logout", OWN_ROUTES), {}).catch(error => setText(this.trouble, error.message));
      this.learn();
    });
    this.trouble = make("span", "trouble", { role: "alert" });
    this.dialog = this.makeDialog();
    this.root = make("div", "pagelens access", {}, this.trouble, this.role, this.signIn, this.signOut, this.dialog);
    document.body.append(this.root);
    this.show({ role: "instructor", instructor_password: false });
    this.learn();
  }

  makeDialog() {
    const cancel = makeButton("cancel", () => dialog.close());
    const password = make("input", "", {
      name: "password", type: "password", autocomplete: "current-password", required: "",
      "aria-label": "instructor's password",
    });
    const form = make("form", "", {},
      make("p", "", {}, "Halting, stepping, the speed and loading a model are the instructor's: they move the engine "
        + "for everyone."),
      password, make("p", "error", { role: "alert", hidden: "" }),
      make("p", "buttons", {}, make("button", "primary", { type: "submit" }, "sign in"), cancel));
    const dialog = make("dialog", "panel", { "aria-label": "sign in as the instructor" }, form);
    signInWith(form, () => {
      dialog.close();
      this.learn();
    });
    return dialog;
  }

  /** Ask the server who this is. */
  async learn() {
    const response = await fetch(new URL("me", OWN_ROUTES)).catch(() => null);
    if (response?.status === 401) location.assign(new URL("login", OWN_ROUTES));
    else if (response?.ok) this.show(await response.json());
  }

  show({ role, instructor_password: guarded }) {
    document.documentElement.dataset.role = role;
    setText(this.role, !guarded ? "" : role === "instructor" ? "you are the instructor" : "you look on");
    this.signIn.hidden = !guarded || role === "instructor";
    this.signOut.hidden = !guarded || role === "viewer";
  }

  /** A view of the LiveSource: after a while without a connection the server is asked for the reason. */
  onConnection() {
    if (Pagelens.source?.connected) {
      setText(this.trouble, "");
      this.learn();
    } else {
      this.timer ??= setTimeout(() => this.askWhy(), SECONDS_BEFORE_ASKING_WHY * 1000);
    }
  }

  async askWhy() {
    this.timer = null;
    if (Pagelens.source.connected) return;
    const asked = new AbortController();
    const response = await fetch(new URL("events", OWN_ROUTES), { signal: asked.signal }).catch(() => null);
    if (response?.status === 401) location.assign(new URL("login", OWN_ROUTES));
    const refusal = response?.status === 503 ? (await response.json()).error : "";
    asked.abort(); // it may be an open stream
    setText(this.trouble, Pagelens.source.connected ? "" : refusal);
  }
}

const loginForm = document.querySelector("form[data-part=login]");
if (loginForm) {
  document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
  signInWith(loginForm, () => location.replace(new URL("../", OWN_ROUTES)));
} else {
  /** Show who the user is, once for all tabs of this page. */
  Pagelens.startAccess = version => { Pagelens.access ??= Pagelens.follow(version, new AccessStrip()); };
}
