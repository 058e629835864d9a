// A hostile preview against the dashboard: real Chromium, a real `sandbar up`, a person who is signed in. Each attempt is made
// from a page of the preview and must be refused; its control, the same where it is allowed, must go through.
// All names resolve to the loopback. Usage: node web/e2e/attack.mjs [path of the program]
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";
import { Server } from "./server.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const program = resolve(process.argv[2] ?? join(root, "target/debug/sandbar"));
const logs = join(root, "target/studio-attack");
const TIMEOUT_MS = 60_000;
/** For what must not happen, where no event tells that it did not. */
const QUIET_MS = 1_000;

/** Servers with the names under which each has a dashboard and previews. */
const SERVERS = [
  {
    // Without --dashboard-host every name that leads to the server shows the dashboard.
    flags: [],
    setups: [
      { name: "localhost", scheme: "http", dashboard: "localhost", domain: "localhost" },
      // The weakest: SameSite does not help, a preview can set cookies for the dashboard, and browsers ignore the opener policy of
      // plain http outside of localhost.
      { name: "one domain", scheme: "http", dashboard: "sandbox.test", domain: "sandbox.test", weak: true },
    ],
  },
  {
    flags: ["--domain", "sandbox.test", "--dashboard-host", "dash.example"],
    setups: [{ name: "a host of its own", scheme: "https", dashboard: "dash.example", domain: "sandbox.test" }],
  },
];

// --- Attempts. Each says `through` or why not; a page-side error is a refusal. ---

/** Calls `work` in the page with the facts and `more`; what it throws there is a refusal. */
const inPage = (work, more = {}) => (page, facts) =>
  page.evaluate(work, { ...facts, ...more }).catch((error) => `refused: ${error.message.split("\n")[0]}`);

const reads = (path, headers = {}) =>
  inPage(async ({ target, job, path, headers }) => {
    const answer = await fetch(target + path.replace("JOB", job), { credentials: "include", headers });
    return answer.ok ? `through: ${(await answer.text()).slice(0, 80)}` : `refused: ${answer.status}`;
  }, { path, headers });

/** Of an attempt that is refused everywhere: another one of the table is its control. */
const NO_CONTROL = Symbol();

const READS = [
  ["fetch with credentials", reads("/api/me")],
  ["fetch of the job", reads("/api/jobs/JOB")],
  ["fetch with a preflight", reads("/api/me", { "x-sandbar-csrf": "1" })],
  ["fetch with a bearer token and a preflight", reads("/api/me", { authorization: "Bearer x" }), NO_CONTROL],
  ["fetch without CORS, read", inPage(async ({ target }) => {
    const answer = await fetch(`${target}/api/me`, { mode: "no-cors", credentials: "include" });
    return answer.type === "opaque" ? "refused: opaque" : `through: ${await answer.text()}`;
  })],
  ["XMLHttpRequest with credentials", inPage(({ target }) => new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", `${target}/api/me`);
    request.withCredentials = true;
    request.onload = () => done(`through: ${request.responseText}`);
    request.onerror = () => done("refused: error");
    request.send();
  }))],
  ["EventSource on the timeline", inPage(({ target, job }) => new Promise((done) => {
    const source = new EventSource(`${target}/api/jobs/${job}/events`, { withCredentials: true });
    source.onopen = () => done("through: open");
    source.onmessage = (event) => done(`through: ${event.data}`);
    source.onerror = () => done("refused: error");
  }))],
  ["WebSocket to the terminal", inPage(({ target, job }) => new Promise((done) => {
    const socket = new WebSocket(`${target.replace("http", "ws")}/api/jobs/${job}/terminal`);
    socket.onopen = () => (done("through: open"), socket.close());
    socket.onerror = () => done("refused: error");
  }))],
  ["storage of the dashboard", inPage(async ({ secret }) => {
    const values = [...Object.values(localStorage), ...((await globalThis.caches?.keys()) ?? []), document.cookie];
    return values.some((value) => value.includes(secret)) ? "through" : "refused: not there";
  })],
];

const includes = (tag, attribute, more = {}) =>
  inPage(({ target, file, tag, attribute, more }) => new Promise((done) => {
    const element = Object.assign(document.createElement(tag), more);
    element.onload = () => done("through: loaded");
    element.onerror = () => done("refused: error");
    element[attribute] = target + file;
    document.head.append(element);
  }), { tag, attribute, more });

/** Of files that the dashboard serves and of those of the preview's own, which is the control. */
const INCLUSIONS = [
  ["JSON as a script", includes("script", "src"), "/api/me", "/x.js"],
  ["the dashboard's program as a script", includes("script", "src"), "ASSET.js", "/x.js"],
  ["the dashboard's style", includes("link", "href", { rel: "stylesheet" }), "ASSET.css", "/x.css"],
  ["JSON as an image", includes("img", "src"), "/api/jobs", "/x.svg"],
];

/** The elements that frame a page, all at once. What the person's browser then shows is seen from outside the page. */
async function frames(page, facts) {
  await page.evaluate(({ target, quiet }) => Promise.all(["iframe", "object", "embed"].map((tag) => new Promise((done) => {
    const frame = document.createElement(tag);
    frame.onload = frame.onerror = done;
    frame[tag === "object" ? "data" : "src"] = `${target}/`;
    document.body.append(frame);
    // The others may tell nothing of a page that is refused.
    if (tag !== "iframe") setTimeout(done, quiet);
  }))), { ...facts, quiet: QUIET_MS });
  const shown = page.frames().filter((frame) => frame !== page.mainFrame()).map((frame) => frame.url());
  return shown.some((url) => url.startsWith(facts.target)) ? `through: ${shown}` : `refused: ${shown}`;
}

/** Opens a window on the target. A page that keeps its handle can navigate it, message it and count its frames. */
async function opens(page, facts) {
  const opened = new Promise((done) => page.once("popup", done));
  const kept = page.evaluate(async ({ target, quiet }) => {
    const other = window.open(`${target}/`);
    const pause = (time) => new Promise((next) => setTimeout(next, time));
    // It shows an empty page of our own origin until the answer comes.
    const waits = () => !other.closed && (other.document.URL === "about:blank" || other.document.readyState !== "complete");
    try {
      while (waits()) await pause(20);
    } catch {
      // Another origin's page is there: severed, or not.
      for (let time = 0; !other.closed && time < quiet; time += 20) await pause(20);
    }
    return other.closed ? "refused: severed" : `through: ${other.document.title}`;
  }, { ...facts, quiet: QUIET_MS }).catch((error) => `refused: ${error.message.split("\n")[0]}`);
  const popup = await opened;
  const outcome = await kept;
  const opener = await popup.evaluate(() => window.opener !== null);
  await popup.close();
  return opener && !facts.weak && outcome.startsWith("refused") ? `through: the page has an opener; ${outcome}` : outcome;
}

const EMBEDDINGS = [
  ["the dashboard in a frame", frames],
  ["a window with a handle", opens],
];

/** Requests that a page may always send; only their effect is judged. */
const WRITES = [
  ["a beacon", ({ target, path, body }) => navigator.sendBeacon(target + path, new Blob([body], { type: "text/plain" })), { beacon: true }],
  ["fetch without CORS", async ({ target, path, body }) => {
    await fetch(target + path, { method: "POST", mode: "no-cors", credentials: "include", keepalive: true, body }).catch(() => {});
  }],
  ["fetch of JSON with the header", async ({ target, path, body }) => {
    const headers = { "content-type": "application/json", "x-sandbar-csrf": "1" };
    await fetch(target + path, { method: "POST", credentials: "include", headers, body }).catch(() => {});
  }],
  ...[["a form in a frame", false, ""], ["a form in a window", true, ""], ["a form without an origin", true, "noreferrer"]].map(
    ([what, top, rel]) => [what, async ({ target, path, body, top, rel }) => {
      const [form, field, frame] = ["form", "input", "iframe"].map((tag) => document.createElement(tag));
      Object.assign(form, { method: "POST", action: target + path, target: top ? "_blank" : "held", rel });
      const [name, value] = body.startsWith("{") ? [`${body.slice(0, -1)},"x":"`, '"}'] : body.split("=");
      if (body.startsWith("{")) form.enctype = "text/plain";
      Object.assign(field, { name, value });
      frame.name = "held";
      form.append(field);
      document.body.append(frame, form);
      const loaded = new Promise((done) => { frame.onload = done; });
      form.submit();
      if (!top) await loaded;
    }, { top, rel }]),
];

/** What the writes aim at. `{eve}` is another user's token. */
const AIMS = [
  ["/logout", "x=y"],
  ["/login", "token={eve}"],
  ["/api/generation", '{"name":"evil","goal":"Evil."}'],
  ["/api/jobs/JOB/cancel", "{}"],
];

/** From the preview as the dashboard shows it, in a frame. */
const FROM_THE_FRAME = [
  ["read the page around", () => `through: ${parent.document.title}`],
  ["read its address", () => `through: ${top.location.href}`],
  ["lead it elsewhere", () => { top.location.href = `${location.origin}/phish`; return "through"; }],
  ["open a window that leads it elsewhere", () => {
    const other = window.open("", "_top");
    other.location = `${location.origin}/phish`;
    return "through";
  }],
  ["know whence it came", () => document.referrer ? `through: ${document.referrer}` : "refused: no referrer"],
  ["tell it something", () => {
    for (const message of ["logout", { type: "navigate", url: "/logout" }, { resize: { cols: 1, rows: 1 } }]) parent.postMessage(message, "*");
    return "refused: nothing answers";
  }],
];

/** Files of the sandbox that run scripts where they may. The request that the script makes tells that it ran. */
const SCRIPT = "fetch('/api/me?it-ran', {credentials: 'include'})";
const ACTIVE_FILES = {
  "a.html": `<!doctype html><title>a</title><script>${SCRIPT}</script>`,
  "b.htm": `<!doctype html><script src="x.js"></script><img src="none" onerror="${SCRIPT}">`,
  "c.svg": `<svg xmlns="http://www.w3.org/2000/svg"><script>${SCRIPT}</script></svg>`,
  "d.xml": `<html xmlns="http://www.w3.org/1999/xhtml"><head><script>${SCRIPT}</script></head></html>`,
};
/** Files whose content looks like a page and whose type says that they are none: they run nowhere. */
const PLAIN_FILES = { "e.txt": ACTIVE_FILES["a.html"], "f": ACTIVE_FILES["a.html"], "g.json": ACTIVE_FILES["a.html"] };
const OWN_FILES = {
  "x.js": "globalThis.x = 1;", "x.css": "b { color: red }",
  "x.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>',
  "sw.js": "addEventListener('fetch', (event) => event.respondWith(new Response('taken over')));",
};

// --- The stage. ---

async function until(what, ready) {
  const deadline = Date.now() + TIMEOUT_MS;
  while (!ready()) {
    assert.ok(Date.now() < deadline, `not in time: ${what}`);
    await new Promise((next) => setTimeout(next, 10));
  }
}

/** A server with a job whose preview is up, and a second user. */
class Stage {
  static async build(server) {
    const stage = new Stage();
    stage.server = server;
    stage.port = new URL(server.url).port;
    const { job_id: job } = await stage.call("POST", "/api/generation", { name: "hostile", goal: "A page.", model: "scripted:page.yaml" });
    stage.job = job;
    // A build that is done lets its preview sleep; the person comes back to it.
    await server.until(job, "asleep", (seen) => seen.status === "ready" && seen.sandbox_paused);
    stage.sandbox = (await stage.call("POST", `/api/generation/${job}/resume`, {})).sandbox_id;
    stage.eve = server.addUser("eve");
    const connected = await fetch(`${server.url}/v2/sandboxes/${stage.sandbox}/connect`, {
      method: "POST", headers: { "x-api-key": server.key, "content-type": "application/json" }, body: "{}",
    });
    stage.token = (await connected.json()).envdAccessToken;
    for (const [name, content] of Object.entries({ ...OWN_FILES, ...ACTIVE_FILES, ...PLAIN_FILES })) await stage.write(name, content);
    return stage;
  }

  async call(method, path, body) {
    const headers = { authorization: `Bearer ${this.server.token}`, "content-type": "application/json" };
    const answer = await fetch(this.server.url + path, { method, headers, body: JSON.stringify(body) });
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`);
    return answer.json();
  }

  async write(name, content) {
    const headers = {
      "e2b-sandbox-id": this.sandbox, "e2b-sandbox-port": "49983", "x-access-token": this.token, "content-type": "application/octet-stream",
    };
    const answer = await fetch(`${this.server.url}/files?path=/home/user/project/${name}`, { method: "POST", headers, body: content });
    assert.equal(answer.status, 200, await answer.text());
  }

  signed(name) {
    const path = `/home/user/project/${name}`;
    const digest = createHash("sha256").update(`${path}:read::${this.token}`).digest("base64").replace(/=+$/, "");
    return `/files?path=${path}&signature=${encodeURIComponent(`v1_${digest}`)}`;
  }
}

class Visit {
  through = [];
  attempts = 0;

  constructor(setup, stage, context) {
    Object.assign(this, setup, { stage, context });
    this.target = `${setup.scheme}://${setup.dashboard}:${stage.port}`;
    this.origin = `${setup.scheme}://3000-${stage.sandbox}.${setup.domain}:${stage.port}`;
    this.facts = { target: this.target, job: stage.job, weak: setup.weak, secret: "kept-by-the-dashboard" };
  }

  async page(url) {
    const page = await this.context.newPage();
    page.setDefaultTimeout(TIMEOUT_MS);
    await page.goto(url, { waitUntil: "load" });
    return page;
  }

  async signIn(token) {
    const { home } = this;
    await home.goto(`${this.target}/login`, { waitUntil: "load" });
    await home.waitForSelector("input[name=token]");
    await home.type("input[name=token]", token);
    await Promise.all([home.waitForNavigation({ waitUntil: "load" }), home.keyboard.press("Enter")]);
    await home.evaluate((secret) => localStorage.setItem("attack", secret), this.facts.secret);
  }

  /** Who the dashboard takes the person for. */
  who() {
    return this.home.evaluate(async () => {
      const answer = await fetch("/api/me");
      return answer.ok ? (await answer.json()).name : answer.status;
    });
  }

  judge(what, outcome) {
    this.attempts += 1;
    if (outcome.startsWith("through")) this.through.push(`${what}: ${outcome}`);
  }

  control(what, outcome) {
    assert.ok(String(outcome).startsWith("through"), `${this.name}: the control of "${what}" failed: ${outcome}`);
  }

  /** The person is who they were, and nothing was begun or ended in their name. */
  async unharmed(what) {
    this.attempts += 1;
    const [who, { jobs }, { status }] = [await this.who(), await this.stage.call("GET", "/api/jobs"), await this.stage.call("GET", `/api/jobs/${this.stage.job}`)];
    if (who !== "owner" || jobs.length !== 1 || status !== "ready") this.through.push(`${what}: ${who}, ${jobs.length} jobs, ${status}`);
  }

  async run() {
    this.home = await this.context.newPage();
    this.home.setDefaultTimeout(TIMEOUT_MS);
    await this.signIn(this.stage.server.token);
    assert.equal(await this.who(), "owner");
    const hostile = await this.page(`${this.origin}/`);
    for (const part of ["reads", "writes", "fromTheFrame", "signedFiles", "serviceWorkers", "cookies", "ownForms"]) {
      await this[part](hostile);
    }
    await this.context.close();
  }

  async reads(hostile) {
    for (const [what, attempt, control] of READS) {
      this.judge(what, await attempt(hostile, this.facts));
      if (control !== NO_CONTROL) this.control(what, await attempt(this.home, this.facts));
    }
    const asset = await this.home.evaluate(() => document.querySelector("script[src]").getAttribute("src"));
    const style = await this.home.evaluate(() => document.querySelector("link[rel=stylesheet]").getAttribute("href"));
    for (const [what, attempt, file, own] of INCLUSIONS) {
      const path = file.replace("ASSET.js", asset).replace("ASSET.css", style);
      this.judge(what, await attempt(hostile, { ...this.facts, file: path }));
      this.control(what, await attempt(hostile, { target: this.origin, file: own }));
    }
    for (const [what, attempt] of EMBEDDINGS) {
      this.judge(what, await attempt(hostile, this.facts));
      const own = await this.page(`${this.origin}/`);
      this.control(what, await attempt(own, { ...this.facts, target: this.origin }));
      await own.close();
      await hostile.goto(`${this.origin}/`, { waitUntil: "load" });
    }
  }

  async writes(hostile) {
    const answered = [];
    for (const event of ["requestfinished", "requestfailed"])
      hostile.on(event, (request) => request.method() === "POST" && answered.push(new URL(request.url()).pathname));
    for (const [aim, content] of AIMS) {
      const [path, body] = [aim.replace("JOB", this.stage.job), content.replace("{eve}", this.stage.eve)];
      for (const [what, attempt, more = {}] of WRITES) {
        answered.length = 0;
        const popup = more.top && new Promise((done) => hostile.once("popup", done));
        await hostile.evaluate(attempt, { ...this.facts, path, body, ...more });
        if (popup) {
          const page = await popup;
          await page.waitForFunction(() => location.href !== "about:blank" && document.readyState === "complete");
          await page.close();
        } else if (more.beacon) {
          await until(`a beacon to ${aim} was answered`, () => answered.includes(path));
        }
        await this.unharmed(`${what} to ${aim}`);
      }
      await hostile.goto(`${this.origin}/`, { waitUntil: "load" });
    }
  }

  /** Only where the dashboard frames what is served here: previews of a domain have its default port. */
  async fromTheFrame() {
    if (this.name !== "localhost") return;
    const page = await this.page(`${this.target}/jobs/${this.stage.job}`);
    const handle = await page.waitForSelector("iframe");
    const frame = await handle.contentFrame();
    await frame.waitForFunction((origin) => location.origin === origin && document.body, {}, this.origin);
    const before = page.url();
    for (const [what, attempt] of FROM_THE_FRAME) {
      this.judge(`in a frame, ${what}`, await frame.evaluate(attempt).catch((error) => `refused: ${error.message.split("\n")[0]}`));
    }
    assert.equal(page.url(), before, "the dashboard was led elsewhere");
    await this.unharmed("from a frame");
    await page.close();
    // The control: in a page of its own, a frame reaches what is around it.
    const own = await this.page(`${this.origin}/`);
    await own.evaluate(() => new Promise((done) => {
      document.body.append(Object.assign(document.createElement("iframe"), { src: "/", onload: done }));
    }));
    this.control("in a frame", await own.frames()[1].evaluate(FROM_THE_FRAME[0][1]));
    await own.close();
  }

  /** Whether a script of the page at this address made its request. */
  async runs(url) {
    const page = await this.context.newPage();
    let ran = false;
    page.on("request", (request) => { ran ||= request.url().includes("it-ran"); });
    // A file that is no page may become a download, which ends the navigation.
    await page.goto(url, { waitUntil: "load", timeout: TIMEOUT_MS }).catch(() => {});
    await page.close();
    return ran ? "through: a script ran" : "refused: none ran";
  }

  async signedFiles() {
    const all = { ...ACTIVE_FILES, ...PLAIN_FILES };
    const outcomes = await Promise.all(Object.keys(all).map((name) => this.runs(this.target + this.stage.signed(name))));
    outcomes.forEach((outcome, at) => this.judge(`the signed file ${Object.keys(all)[at]}`, outcome));
    const controls = await Promise.all(Object.keys(ACTIVE_FILES).map((name) => this.runs(`${this.origin}/${name}`)));
    controls.forEach((outcome, at) => this.control(`the signed file ${Object.keys(ACTIVE_FILES)[at]}`, outcome));
    const answer = await fetch(this.stage.server.url + this.stage.signed("x.js"), { headers: { host: this.dashboard } });
    assert.equal(await answer.text(), OWN_FILES["x.js"], "the control: a signed file can be read");
  }

  async serviceWorkers(hostile) {
    const register = inPage(async ({ target, scope }) => {
      const { active, installing } = await navigator.serviceWorker.register(`${target}/sw.js`, scope && { scope });
      return `through: ${(active ?? installing).scriptURL}`;
    });
    this.judge("a service worker of the dashboard's", await register(hostile, this.facts));
    this.judge("a service worker for the dashboard's pages", await register(hostile, { target: this.origin, scope: `${this.target}/` }));
    // Browsers have service workers on https and on localhost alone.
    if (await hostile.evaluate(() => isSecureContext)) {
      this.control("a service worker", await register(hostile, { target: this.origin }));
    }
    await this.unharmed("a service worker");
  }

  async cookies(hostile) {
    const eve = await this.sessionOf(this.stage.eve);
    const names = ["sandbar_session", "__Host-sandbar_session", "__Secure-sandbar_session"];
    const domains = ["", ...new Set([this.dashboard, `.${this.dashboard}`, this.domain, "test", "example", "localhost"])];
    await hostile.evaluate(([names, domains, eve]) => {
      for (const name of names)
        for (const domain of domains)
          for (const path of ["/", "/api", "/api/me"])
            for (const more of ["", "; Secure", "; SameSite=None; Secure"])
              document.cookie = `${name}=${eve}; path=${path}${domain && `; domain=${domain}`}${more}`;
      document.cookie = "own=1";
    }, [names, domains, eve]);
    this.control("a cookie", (await hostile.evaluate(() => document.cookie)).includes("own=1") ? "through" : "refused");
    const who = await this.who();
    this.judge("a planted cookie", who === "owner" || (this.weak && who === 401) ? "refused" : `through: ${who}`);
    if (this.weak) {
      // Two sessions were refused and both removed: the person signs in again, and is the same one.
      assert.equal(who, 401, "the control: here the cookie reaches the dashboard");
      await this.signIn(this.stage.server.token);
      this.judge("a planted cookie, after signing in again", (await this.who()) === "owner" ? "refused" : `through: ${await this.who()}`);
    }
  }

  /** The session of a user, as signing in gives it. */
  async sessionOf(token) {
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    const { status, cookie } = await this.stage.server.post(this.dashboard, "/login", headers, `token=${token}`);
    assert.equal(status, 303);
    return cookie.split(";")[0].split("=")[1];
  }

  /** The control of the writes: the dashboard's own page signs in and out. */
  async ownForms() {
    const submit = async (path, body) => {
      await Promise.all([this.home.waitForNavigation({ waitUntil: "load" }), this.home.evaluate(([path, body]) => {
        const [form, field] = ["form", "input"].map((tag) => document.createElement(tag));
        Object.assign(form, { method: "POST", action: path });
        const [name, value] = body.split("=");
        Object.assign(field, { name, value });
        form.append(field);
        document.body.append(form);
        form.submit();
      }, [path, body])]);
    };
    await submit("/login", `token=${this.stage.eve}`);
    assert.equal(await this.who(), "eve", `${this.name}: the control: the dashboard's own form signs in`);
    await submit("/logout", "x=y");
    assert.equal(await this.who(), 401, `${this.name}: the control: the dashboard's own form signs out`);
  }
}

mkdirSync(logs, { recursive: true });
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  defaultViewport: { width: 1360, height: 860 },
  args: [
    // Only pages of our own scripts on loopback are opened, and the tests run as root, where Chromium's sandbox does not start.
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--host-resolver-rules=MAP * 127.0.0.1", "--ignore-certificate-errors", "--disable-popup-blocking",
  ],
});
const began = Date.now();

/** Whether all of a server's visits were refused everything. */
async function attack({ flags, setups }, at) {
  const server = new Server(program, join(logs, `server-${at + 1}.log`), flags);
  try {
    await server.start();
    const stage = await Stage.build(server);
    const visits = setups.map(async (setup) => {
      const visit = new Visit(setup, stage, await browser.createBrowserContext());
      await visit.run();
      const { attempts, through } = visit;
      console.log(`${through.length ? "FAILED" : "ok"}  ${setup.name}: ${attempts} attempts, ${through.length} through`);
      for (const one of through) console.error(`    ${one}`);
      return through.length === 0;
    });
    return (await Promise.all(visits)).every(Boolean);
  } catch (error) {
    console.error(error, `\nthe server's log: ${logs}`);
    return false;
  } finally {
    server.end();
  }
}

const passed = (await Promise.all(SERVERS.map(attack))).every(Boolean);
await browser.close();
console.log(`attacks on the dashboard in Chromium: ${passed ? "passed" : "failed"} in ${((Date.now() - began) / 1000).toFixed(0)} s`);
process.exit(passed ? 0 : 1);
