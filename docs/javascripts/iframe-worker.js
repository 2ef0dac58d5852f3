/*
 * A page opened from a folder (file://) may not start a Worker, so the search of this site would not run. This stands in
 * for Worker there: it runs the script in a hidden frame and passes messages to and fro. Over http nothing is changed.
 */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.ready = new Promise(resolve => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        document.body.append(frame);
        this.inner = frame.contentWindow;
        this.inner.postMessage = data => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          this.onmessage?.(event);
        };
        this.inner.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
        this.load(url).then(resolve);
      });
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, { src: new URL(url, location), onload: resolve, onerror: reject });
        this.inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
