// A real `sandbar up` in a directory of its own, for the tests to kill and restart.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { freePort, Wire } from "./wire.mjs";

const START_MS = 60_000;
/** The scripts of the models. */
const SCRIPTS = dirname(fileURLToPath(import.meta.url));
/** A key for one test, which is no secret. */
const FAR_KEY = `e2b_${"0123456789".repeat(4)}`;

/** An environment without settings of this machine. */
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
  #flags;
  /** The variables that `sandbar env` prints. */
  exported = {};
  url = "";

  /** `flags` are further ones for `sandbar up`. */
  constructor(program, logFile, flags = []) {
    this.#program = program;
    this.#flags = flags;
    this.#log = createWriteStream(logFile);
    this.home = mkdtempSync(join(tmpdir(), "sandbar-e2e-"));
    this.data = join(this.home, "data");
  }

  /**
   * A server that reaches its own sandboxes through a proxy that can be cut, as if they were on
   * another server.
   */
  static async overWire(program, logFile) {
    const server = new Server(program, logFile);
    const port = await freePort();
    server.#listen = `127.0.0.1:${port}`;
    server.wire = new Wire({ host: "127.0.0.1", port });
    await server.wire.mend();
    const provider = { name: "far", kind: "e2b", deployment_mode: "self_hosted", api_key_env: "FAR_API_KEY", api_url: server.wire.url, domain: `localhost:${port}` };
    mkdirSync(join(server.home, "config/sandbar"), { recursive: true });
    const lines = Object.entries(provider).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
    // With a price and a plan, as other providers have, and a budget.
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

  /** Starts it, on its previous address if there was one, and returns when it serves. */
  async start() {
    // Tied to this process: a killed test leaves no server behind.
    const command = [this.#program, "up", "--listen", this.#listen, "--data", this.data, "--scripts", SCRIPTS, ...this.#flags];
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

  /** Kills it without warning, like a power cut. Its sandboxes keep running. */
  async kill() {
    const ended = once(this.#process, "exit");
    this.#process.kill("SIGKILL");
    await ended;
  }

  /** Deletes a sandbox without the studio, as its provider might. */
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

  /** Polls the job until `wanted` holds. */
  async until(job, what, wanted) {
    const deadline = Date.now() + 2 * START_MS;
    for (;;) {
      const seen = await this.api(`/api/jobs/${job}`);
      if (wanted(seen)) return seen;
      if (Date.now() > deadline) throw new Error(`${job} is not ${what}: ${JSON.stringify(seen)}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  /** The events of a job's timeline up to the first one that is `last`. */
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

  /** Makes a user of the studio; its token. */
  addUser(name) {
    const { status, stdout, stderr } = spawnSync(this.#program, ["user", "add", name, "--json", "--data", this.data], {
      env: environment(this.home), encoding: "utf8", timeout: START_MS,
    });
    if (status !== 0) throw new Error(`sandbar user add ended with ${status}: ${stderr}`);
    return JSON.parse(stdout).token;
  }

  /** A request to one of the server's host names: its status and the first cookie it sets. */
  post(host, path, headers, body) {
    const { hostname, port } = new URL(this.url);
    return new Promise((resolve, reject) => {
      const sent = request({ hostname, port, path, method: "POST", headers: { ...headers, host: `${host}:${port}` } }, (answer) => {
        answer.resume();
        resolve({ status: answer.statusCode, cookie: answer.headers["set-cookie"]?.[0] });
      });
      sent.once("error", reject).end(body);
    });
  }

  /** Runs `sandbar down`, which loses nothing, and returns its output. */
  down() {
    const { status, stdout, stderr } = spawnSync(this.#program, ["down", "--json", "--data", this.data], {
      env: environment(this.home), encoding: "utf8", timeout: START_MS,
    });
    if (status !== 0) throw new Error(`sandbar down ended with ${status}: ${stderr}`);
    return JSON.parse(stdout);
  }

  /** Ends it and its sandboxes, and removes its files. */
  end() {
    if (this.#ended) return;
    this.#ended = true;
    spawnSync(this.#program, ["down", "--yes", "--data", this.data], { env: environment(this.home), stdio: "ignore", timeout: 60_000 });
    this.#process?.kill("SIGKILL");
    this.wire?.cut();
    rmSync(this.home, { recursive: true, force: true });
  }
}
