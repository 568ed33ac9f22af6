// Live: a stream of server-sent events that comes back by itself, and says since when it has been silent.

const RETRY_MS = [250, 500, 1000, 2000];

/** Listens to `path()` until it is closed. `on`: listeners by the name of the event; `state(connected)` tells of changes. */
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
    // The browser's own way of coming back gives up after a refusal; ours does not, and asks where to begin each time.
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
