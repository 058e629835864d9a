// Builds the dashboard into dist/: type check, one small bundle, the terminal separately, hashed
// names, compressed variants. Does nothing when nothing changed. Fails when the first page exceeds
// its budget.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { build } from "esbuild";

/**
 * Scripts and styles of the first page together, gzipped. The terminal is loaded on demand and does
 * not count.
 */
const BUDGET = 150_000;

process.chdir(dirname(fileURLToPath(import.meta.url)));

function files(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? files(path) : [path];
  });
}

function digest() {
  const hash = createHash("sha256").update(process.version);
  const inputs = [...files("src"), "index.html", "build.mjs", "package.json", "package-lock.json", "tsconfig.json"];
  for (const path of inputs.sort()) hash.update(path).update("\0").update(readFileSync(path)).update("\0");
  return hash.digest("hex");
}

const stamp = "build/stamp";
const wanted = digest();
if (existsSync("dist/index.html") && existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) process.exit(0);

const types = spawnSync(process.execPath, ["node_modules/typescript/bin/tsc", "--noEmit"], { stdio: "inherit" });
if (types.status !== 0) process.exit(types.status ?? 1);

// Written beside its final path and renamed, so that no build embeds half of it.
const fresh = "build/dist";
rmSync(fresh, { recursive: true, force: true });
const { metafile } = await build({
  entryPoints: ["src/main.tsx"],
  bundle: true, splitting: true, format: "esm", target: "es2022", minify: true, metafile: true, legalComments: "none",
  jsx: "automatic", jsxImportSource: "preact",
  outdir: `${fresh}/assets`, entryNames: "[name]-[hash]", chunkNames: "[name]-[hash]", assetNames: "[name]-[hash]",
  loader: { ".svg": "text" },
  logLevel: "warning",
});

const outputs = Object.entries(metafile.outputs);
const [script, entry] = outputs.find(([, output]) => output.entryPoint === "src/main.tsx");
const name = (path) => `/assets/${path.split("/").at(-1)}`;
// Static imports of the first script are preloaded, so that they are not fetched after it.
const first = entry.imports.filter((each) => each.kind === "import-statement").map((each) => each.path);
const head = [
  `<link rel="stylesheet" href="${name(entry.cssBundle)}">`,
  ...first.map((path) => `<link rel="modulepreload" href="${name(path)}">`),
  `<script type="module" src="${name(script)}"></script>`,
].join("\n    ");
writeFileSync(`${fresh}/index.html`, readFileSync("index.html", "utf8").replace("<!-- assets -->", head));

const gzipped = (path) => gzipSync(readFileSync(path), { level: 9 });
for (const path of files(fresh)) {
  if (statSync(path).size < 512) continue;
  writeFileSync(`${path}.gz`, gzipped(path));
  writeFileSync(`${path}.br`, brotliCompressSync(readFileSync(path), { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }));
}

const total = [script, entry.cssBundle, ...first].reduce((sum, path) => sum + gzipped(path).length, 0);
const kilobytes = (count) => `${(count / 1000).toFixed(1)} kB`;
if (total > BUDGET) {
  console.error(`the dashboard's bundle is ${kilobytes(total)} gzipped, more than the ${kilobytes(BUDGET)} it may be`);
  process.exit(1);
}
rmSync("dist", { recursive: true, force: true });
renameSync(fresh, "dist");
mkdirSync("build", { recursive: true });
writeFileSync(stamp, wanted);
console.log(`dashboard: ${kilobytes(total)} gzipped of ${kilobytes(BUDGET)}; the terminal is loaded on demand`);
