// A proxy between the studio and its provider, for tests that cut the connection.
import { connect, createServer } from "node:net";

export class Wire {
  #server = null;
  #sockets = new Set();
  #port = 0;

  constructor(target) {
    this.target = target;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Forwards traffic; after a cut, on the same port. */
  mend() {
    this.#server = createServer((near) => {
      const far = connect(this.target);
      this.#keep(near, far);
      this.#keep(far, near);
      near.pipe(far);
      far.pipe(near);
    });
    return new Promise((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen(this.#port, "127.0.0.1", () => {
        this.#port = this.#server.address().port;
        resolve();
      });
    });
  }

  #keep(socket, other) {
    this.#sockets.add(socket);
    socket.on("error", () => other.destroy());
    socket.on("close", () => {
      this.#sockets.delete(socket);
      other.destroy();
    });
  }

  /** Refuses all traffic from here on. */
  cut() {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

/** A port that is free right now. */
export function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}
