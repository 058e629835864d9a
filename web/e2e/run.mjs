// The dashboard end to end: real Chromium, a real `sandbar up`, real sandboxes; only the model follows a script.
// Leaves a picture of everything it saw in target/studio-e2e. Usage: node web/e2e/run.mjs [path of the program]
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { launch } from "./browser.mjs";
import { Server } from "./server.mjs";
import * as scenes from "./scenes.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../..");
const pictures = join(root, "target/studio-e2e");
const program = resolve(process.argv[2] ?? join(root, "target/debug/sandbar"));

rmSync(pictures, { recursive: true, force: true });
const view = await launch(pictures);
const server = new Server(program, join(pictures, "server.log"));
const started = Date.now();
// Each scene begins where the one before ended: it is one person's visit.
const visit = { view, server, script: (name) => `scripted:${join(here, name)}` };
let failed = null;
try {
  await server.start();
  for (const [title, scene] of scenes.ALL) {
    const begun = Date.now();
    try {
      await scene(visit);
    } catch (error) {
      failed = error;
      console.error(`FAILED  ${title}`);
      throw error;
    }
    console.log(`ok  ${((Date.now() - begun) / 1000).toFixed(1).padStart(5)} s  ${title}`);
  }
  assert.deepEqual(view.complaints, [], "the page complained");
} catch (error) {
  failed ??= error;
  console.error(error);
  await view.picture("failure").catch(() => {});
  console.error(`pictures and the server's log: ${pictures}`);
} finally {
  await view.close();
  server.end();
}
console.log(`the dashboard in Chromium: ${failed ? "failed" : "passed"} in ${((Date.now() - started) / 1000).toFixed(0)} s`);
process.exit(failed ? 1 : 0);
