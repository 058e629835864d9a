// The dashboard end to end: real Chromium, a real `sandbar up`, real sandboxes; only the model is
// scripted. Leaves screenshots of every state in target/studio-e2e. Usage: node web/e2e/run.mjs
// [path of the program]
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { launch } from "./browser.mjs";
import { VISITS } from "./scenes.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../..");
const screenshots = join(root, "target/studio-e2e");
const program = resolve(process.argv[2] ?? join(root, "target/debug/sandbar"));

rmSync(screenshots, { recursive: true, force: true });
const view = await launch(screenshots);
const began = Date.now();
const servers = [];
let title = "start";
let failed = false;
try {
  for (const { make, scenes } of VISITS) {
    const server = await make(program, join(screenshots, `server-${servers.length + 1}.log`));
    servers.push(server);
    await server.start();
    // Each scene starts where the previous one ended: it is one person's visit.
    const visit = { view, server };
    for (const [name, scene] of scenes) {
      const begun = Date.now();
      title = name;
      await scene(visit);
      console.log(`ok  ${((Date.now() - begun) / 1000).toFixed(1).padStart(5)} s  ${title}`);
    }
    server.end();
  }
  assert.deepEqual(view.complaints, [], "the page complained");
} catch (error) {
  failed = true;
  console.error(`FAILED  ${title}\n`, error, "\n", view.complaints);
  await view.screenshot("failure").catch(() => {});
  console.error(`screenshots and the server's log: ${screenshots}`);
} finally {
  await view.close();
  for (const server of servers) server.end();
}
console.log(`the dashboard in Chromium: ${failed ? "failed" : "passed"} in ${((Date.now() - began) / 1000).toFixed(0)} s`);
process.exit(failed ? 1 : 0);
