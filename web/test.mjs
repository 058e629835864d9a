// The unit tests: bundled by esbuild, run by Node's own runner.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);

function tests(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? tests(path) : entry.name.endsWith(".test.ts") ? [path] : [];
  });
}

rmSync("build/tests", { recursive: true, force: true });
await build({
  entryPoints: tests("src"), outdir: "build/tests", outbase: "src", outExtension: { ".js": ".mjs" },
  bundle: true, platform: "node", format: "esm", target: "node18", sourcemap: "inline", logLevel: "warning",
});
const files = readdirSync("build/tests", { recursive: true }).filter((name) => String(name).endsWith(".test.mjs"));
const { status } = spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-reporter=spec", ...files.map((name) => join("build/tests", String(name)))], {
  stdio: "inherit",
});
process.exit(status ?? 1);
