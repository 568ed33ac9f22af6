// Live: a stream of server-sent events that reconnects by itself.

const RETRY_MS = [250, 500, 1000, 2000];

/** Listens to `path()` until it is closed. `on`: listeners by the name of the event; `state(connected)` is called on changes. */
export class Live {
  constructor(path, on, state = () => {}) {
    Object.assign(this, { path, on, state, tries: 0, closed: false });
    this.open();
  }

  open() {
    this.source = new EventSource(this.path());
    this.source.addEventListener("open", () => {
      this.tries = 0;
      this.state(true);
    });
    for (const [name, listener] of Object.entries(this.on)) {
      this.source.addEventListener(name, (event) => listener(JSON.parse(event.data), event));
    }
    // The browser's own reconnect gives up after a refusal; ours does not, and computes the start each time.
    this.source.addEventListener("error", (event) => {
      if (event instanceof MessageEvent) return; // an event that the server calls "error"
      this.again();
    });
  }

  again() {
    this.source.close();
    if (this.closed) return;
    this.state(false);
    const wait = RETRY_MS[Math.min(this.tries, RETRY_MS.length - 1)];
    this.tries += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.closed || this.open(), wait);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.source.close();
  }
}
