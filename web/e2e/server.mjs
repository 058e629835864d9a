// A real `sandbar up` in a directory of its own, for the tests to kill and start again.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { freePort, Wire } from "./wire.mjs";

const START_MS = 60_000;
/** Where the models' parts stand. */
const SCRIPTS = dirname(fileURLToPath(import.meta.url));
/** A key for one test: nothing that anybody keeps. */
const FAR_KEY = `e2b_${"0123456789".repeat(4)}`;

/** Without anything of the machine's own settings. */
function environment(home) {
  const kept = Object.entries(process.env).filter(([name]) => !/^(E2B_|SANDBAR_|XDG_|ANTHROPIC_|OPENAI_)/.test(name));
  return { ...Object.fromEntries(kept), HOME: home, XDG_CONFIG_HOME: join(home, "config"), XDG_DATA_HOME: join(home, "share"), FAR_API_KEY: FAR_KEY };
}

export class Server {
  #program;
  #log;
  #process = null;
  #listen = "127.0.0.1:0";
  #ended = false;
  /** What `sandbar env` tells. */
  exported = {};
  url = "";

  constructor(program, logFile) {
    this.#program = program;
    this.#log = createWriteStream(logFile);
    this.home = mkdtempSync(join(tmpdir(), "sandbar-e2e-"));
    this.data = join(this.home, "data");
  }

  /** A server that reaches its own sandboxes over a wire that can be cut, as if they were another's. */
  static async overWire(program, logFile) {
    const server = new Server(program, logFile);
    const port = await freePort();
    server.#listen = `127.0.0.1:${port}`;
    server.wire = new Wire({ host: "127.0.0.1", port });
    await server.wire.mend();
    const provider = { name: "far", kind: "e2b", deployment_mode: "self_hosted", api_key_env: "FAR_API_KEY", api_url: server.wire.url, domain: `localhost:${port}` };
    mkdirSync(join(server.home, "config/sandbar"), { recursive: true });
    const lines = Object.entries(provider).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
    // It has a price and a plan, as others' have, and there is a budget.
    const money = "[providers.plan]\nminutes_per_month = 60\n[providers.price]\nusd_per_hour = 3.6\n[[budgets]]\nusd = 5\n";
    writeFileSync(join(server.home, "config/sandbar/config.toml"), `api_key = "${FAR_KEY}"\n[[providers]]\n${lines.join("\n")}\n${money}`);
    return server;
  }

  get token() {
    return this.exported.SANDBAR_TOKEN;
  }

  get key() {
    return this.exported.E2B_API_KEY;
  }

  /** Starts it, on the address it had before if there was one, and returns when it serves. */
  async start() {
    // Tied to this process: a test that is killed leaves no server behind.
    const command = [this.#program, "up", "--listen", this.#listen, "--data", this.data, "--scripts", SCRIPTS];
    const child = spawn("setpriv", ["--pdeathsig", "KILL", ...command], {
      env: environment(this.home),
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#process = child;
    child.stderr.pipe(this.#log, { end: false });
    await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error("the server did not start in time")), START_MS);
      child.once("exit", (code, signal) => reject(new Error(`the server ended with ${code ?? signal} before it served`)));
      createInterface(child.stdout).on("line", (line) => {
        const ready = /^ready: (\S+)/.exec(line);
        if (!ready) return;
        clearTimeout(late);
        this.url = ready[1];
        this.#listen = new URL(this.url).host;
        resolve();
      });
    });
    const { status, stdout, stderr } = spawnSync(this.#program, ["env", "--json", "--data", this.data], {
      env: environment(this.home), encoding: "utf8", timeout: START_MS,
    });
    if (status !== 0) throw new Error(`sandbar env ended with ${status}: ${stderr}`);
    this.exported = JSON.parse(stdout);
  }

  /** Without any warning, as a power cut would. Its sandboxes go on. */
  async kill() {
    const ended = once(this.#process, "exit");
    this.#process.kill("SIGKILL");
    await ended;
  }

  /** Ends a sandbox behind the studio's back, as its provider might. */
  async endSandbox(id) {
    const answer = await fetch(`${this.url}/sandboxes/${id}`, { method: "DELETE", headers: { "x-api-key": this.key } });
    if (!answer.ok) throw new Error(`the sandbox ${id} could not be ended: ${answer.status}`);
  }

  async status(path) {
    return (await fetch(`${this.url}${path}`, { headers: { authorization: `Bearer ${this.token}` } })).status;
  }

  async api(path) {
    const answer = await fetch(`${this.url}${path}`, { headers: { authorization: `Bearer ${this.token}` } });
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    return answer.json();
  }

  /** The job, once it is as `wanted`. */
  async until(job, what, wanted) {
    const deadline = Date.now() + 2 * START_MS;
    for (;;) {
      const seen = await this.api(`/api/jobs/${job}`);
      if (wanted(seen)) return seen;
      if (Date.now() > deadline) throw new Error(`${job} is not ${what}: ${JSON.stringify(seen)}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  /** What a job's timeline has, from its beginning to the first event that is `last`. */
  async events(job, last) {
    const stop = new AbortController();
    const late = setTimeout(() => stop.abort(new Error(`the timeline of ${job} did not end as it should`)), START_MS);
    const headers = { authorization: `Bearer ${this.token}` };
    const answer = await fetch(`${this.url}/api/jobs/${job}/events`, { headers, signal: stop.signal });
    const [events, decoder] = [[], new TextDecoder()];
    let text = "";
    for await (const piece of answer.body) {
      text += decoder.decode(piece, { stream: true });
      const lines = text.split("\n");
      text = lines.pop();
      events.push(...lines.filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6))));
      const end = events.findIndex(last);
      if (end < 0) continue;
      clearTimeout(late);
      return events.slice(0, end + 1);
    }
    throw new Error(`the timeline of ${job} broke off`);
  }

  /** As somebody ends it who wants to lose nothing; what it told. */
  down() {
    const { status, stdout, stderr } = spawnSync(this.#program, ["down", "--json", "--data", this.data], {
      env: environment(this.home), encoding: "utf8", timeout: START_MS,
    });
    if (status !== 0) throw new Error(`sandbar down ended with ${status}: ${stderr}`);
    return JSON.parse(stdout);
  }

  /** Ends it and its sandboxes, and removes all it has written. */
  end() {
    if (this.#ended) return;
    this.#ended = true;
    spawnSync(this.#program, ["down", "--yes", "--data", this.data], { env: environment(this.home), stdio: "ignore", timeout: 60_000 });
    this.#process?.kill("SIGKILL");
    this.wire?.cut();
    rmSync(this.home, { recursive: true, force: true });
  }
}
