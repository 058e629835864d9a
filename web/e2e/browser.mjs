// Debian's Chromium, and helpers that wait for conditions on a page, with a deadline.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import axe from "axe-core";
import puppeteer from "puppeteer-core";

export const TIMEOUT_MS = 60_000;
/** Colours change at once, so that no screenshot shows a transition. */
const STILL = { name: "prefers-reduced-motion", value: "reduce" };
const WIDE = { width: 1360, height: 860 };
const PHONE = { width: 390, height: 844, isMobile: true, hasTouch: true };

export async function launch(screenshots) {
  mkdirSync(screenshots, { recursive: true });
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    // Only our own pages on loopback are opened, and the tests run as root, where Chromium's
    // sandbox does not start.
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
    defaultViewport: WIDE,
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(TIMEOUT_MS);
  await page.emulateMediaFeatures([STILL]);
  return new View(browser, page, screenshots);
}

class View {
  /** Errors of the page itself: failed scripts, violated policies. */
  complaints = [];
  /** Requests without a response yet. */
  #asked = new Set();
  #number = 0;

  constructor(browser, page, screenshots) {
    Object.assign(this, { browser, page, screenshots });
    page.on("request", (request) => this.#asked.add(request));
    page.on("requestfinished", (request) => this.#asked.delete(request));
    page.on("requestfailed", (request) => this.#asked.delete(request));
    // Requests of a previous page get no response.
    page.on("framenavigated", (frame) => frame === page.mainFrame() && this.#asked.clear());
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    page.on("console", (message) => {
      // Some of the tests are about refused or failed requests.
      if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) this.complaints.push(message.text());
    });
  }

  open(url) {
    return this.page.goto(url, { waitUntil: "domcontentloaded" });
  }

  reload() {
    return this.page.reload({ waitUntil: "domcontentloaded" });
  }

  /** Waits until `selector` is there and visible, with `text` in it if given. */
  async see(selector, text = "", timeout = TIMEOUT_MS) {
    try {
      return await this.page.waitForFunction(
        (wanted, words) =>
          [...document.querySelectorAll(wanted)].find((found) => found.checkVisibility() && found.textContent.includes(words)) ?? null,
        { timeout, polling: 50 },
        selector,
        text,
      );
    } catch (error) {
      throw new Error(`never seen: ${selector} with ${JSON.stringify(text)} (${error.message})`);
    }
  }

  async missing(selector) {
    const found = await this.page.$$(selector);
    if (found.length) throw new Error(`should not be there: ${selector}`);
  }

  text(selector) {
    return this.page.$eval(selector, (found) => found.textContent.trim());
  }

  /** Presses the visible button or link with exactly this text. */
  async press(title) {
    const found = await this.page.waitForFunction(
      (words) =>
        [...document.querySelectorAll("button, a, summary")].find(
          (each) => (each.textContent.trim() === words || each.ariaLabel === words) && each.checkVisibility() && !each.disabled,
        ) ?? null,
      { timeout: TIMEOUT_MS, polling: 50 },
      title,
    );
    await found.asElement().click();
  }

  /** Waits until the control of this name has the focus. */
  async seesFocus(title) {
    await this.page.waitForFunction((words) => document.activeElement?.textContent.trim() === words, { timeout: TIMEOUT_MS, polling: 50 }, title);
  }

  async tab(name) {
    await this.see(`#tab-${name}`);
    await this.page.click(`#tab-${name}`);
  }

  preview(state, timeout) {
    return this.see(`[data-preview="${state}"]`, "", timeout);
  }

  /** The preview's page, once it has been loaded and says `text`. */
  async frameSays(text) {
    const handle = await this.see("iframe");
    const frame = await handle.asElement().contentFrame();
    await frame.waitForFunction((words) => document.body?.textContent.includes(words), { timeout: TIMEOUT_MS }, text);
  }

  async inFrame(what) {
    const handle = await this.page.waitForSelector("iframe");
    return (await handle.contentFrame()).evaluate(what);
  }

  /**
   * While `work` runs, matching requests are held; they continue afterwards. Earlier requests are
   * answered before `work` starts, so that no held response reaches the page late.
   */
  async hold(pattern, work) {
    const client = await this.page.createCDPSession();
    const held = new Set();
    client.on("Fetch.requestPaused", ({ networkId }) => held.add(networkId));
    await client.send("Fetch.enable", { patterns: [{ urlPattern: pattern }] });
    const matches = new RegExp(`^${pattern.split("*").map((part) => part.replace(/[.?+^$|()[\]{}\\]/g, "\\$&")).join(".*")}$`);
    try {
      const asked = () => [...this.#asked].filter((request) => matches.test(request.url()) && !held.has(request.id));
      const deadline = Date.now() + TIMEOUT_MS;
      while (asked().length) {
        assert.ok(Date.now() < deadline, `never answered: ${pattern}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      await work();
    } finally {
      await client.send("Fetch.disable");
      await client.detach();
    }
  }

  async screenshot(name) {
    this.#number += 1;
    await this.page.screenshot({ path: join(this.screenshots, `${String(this.#number).padStart(2, "0")}-${name}.png`) });
  }

  /** Checks the page in the light and in the dark theme, and its accessibility. */
  async everyTheme(name) {
    for (const [scheme, suffix] of [["light", ""], ["dark", "-dark"]]) {
      await this.page.emulateMediaFeatures([STILL, { name: "prefers-color-scheme", value: scheme }]);
      await this.screenshot(name + suffix);
      // The dark theme differs in colours only.
      await this.#accessible(name + suffix, suffix ? { runOnly: ["color-contrast"] } : {});
    }
    await this.page.emulateMediaFeatures([STILL]);
  }

  /** The app in the preview is not ours: only the page around it is checked. */
  async #accessible(name, rules) {
    await this.page.evaluate(axe.source);
    const found = await this.page.evaluate((options) => globalThis.axe.run(document, { iframes: false, ...options }), rules);
    const barriers = found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).join(" ")}`);
    assert.deepEqual(barriers, [], `not everybody can use ${name}`);
  }

  async onPhone(work) {
    await this.page.setViewport(PHONE);
    await work();
    await this.page.setViewport(WIDE);
  }

  close() {
    return this.browser.close();
  }
}
