// The official TypeScript client against `sandbar mcp`: node mcp.mjs --sdk DIR PROGRAM, or … URL TOKEN.
// It checks structured content against each tool's output schema by itself.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const [, , flag, packages, where, token] = process.argv;
assert.equal(flag, "--sdk");
const find = createRequire(path.join(packages, "package.json"));
const { Client } = await import(find.resolve("@modelcontextprotocol/sdk/client/index.js"));
const { StdioClientTransport } = await import(find.resolve("@modelcontextprotocol/sdk/client/stdio.js"));
const { StreamableHTTPClientTransport } = await import(find.resolve("@modelcontextprotocol/sdk/client/streamableHttp.js"));

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

function transport(bearer = token) {
  if (!bearer) return new StdioClientTransport({ command: where, stderr: "ignore" });
  return new StreamableHTTPClientTransport(new URL(where), { requestInit: { headers: { Authorization: `Bearer ${bearer}` } } });
}

const client = new Client({ name: "sandbar-conformance", version: "0" });
await client.connect(transport());
// Output schemas are known from here on.
const { tools } = await client.listTools();
assert.equal(tools.length, 7);

const call = (name, input, options) => client.callTool({ name, arguments: input }, undefined, options);
const text = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");

// Each tool, and its failures too: both have to fit the schema.
const first = await call("write_file", { path: "/home/user/p/a.txt", content: "one\ntwo\n" });
assert.match(text(first), /^\[Sandbox i\w+ was created/);
assert.match(text(await call("read_file", { path: "p/a.txt" })), /^1\tone\n2\ttwo/);
assert.equal((await call("edit_file", { path: "p/a.txt", old_string: "two", new_string: "2" })).structuredContent.replacements, 1);
assert.match(text(await call("grep", { pattern: "^2$", path: "/home/user/p" })), /\/home\/user\/p\/a\.txt:2:2/);
assert.match(text(await call("glob", { pattern: "p/*.txt" })), /\/home\/user\/p\/a\.txt/);
assert.equal(text(await call("bash", { command: "cd p; export A=b; cat a.txt" })), "one\n2\n[exit 0]");
assert.equal(text(await call("bash", { command: "pwd; echo $A" })), "/home/user/p\nb\n[exit 0]");
for (const [name, input, code] of [
  ["read_file", { path: "/absent" }, "not_found"],
  ["edit_file", { path: "/home/user/p/a.txt", old_string: "three", new_string: "" }, "no_match"],
  ["grep", { pattern: "(" }, "invalid_regex"],
  ["glob", { pattern: "[" }, "invalid_glob"],
  ["bash", { command: "exit 3" }, "command_failed"],
  ["take_screenshot", { url_path: "http://169.254.169.254/" }, "invalid_input"],
]) {
  const failed = await call(name, input);
  assert.equal(failed.isError, true, name);
  assert.equal(failed.structuredContent.error.code, code);
}
await assert.rejects(call("sudo", {}), { code: -32602 });

// Images.
await call("bash", { command: `echo ${PIXEL} | base64 -d > /home/user/pixel.png` });
const image = await call("read_file", { path: "/home/user/pixel.png" });
assert.equal(image.content.find((block) => block.type === "image").mimeType, "image/png");

// Truncated output.
const long = await call("bash", { command: "seq 1 40000" });
const link = long.content.find((block) => block.type === "resource_link");
const { contents } = await client.readResource({ uri: link.uri });
assert.ok(contents[0].text.startsWith("1\n2\n") && contents[0].text.includes("\n40000\n"));
assert.ok((await client.listResources()).resources.some((resource) => resource.uri === link.uri));

// Progress notifications.
const heard = [];
await call("bash", { command: "echo begun; sleep 2.5" }, { onprogress: (progress) => heard.push(progress) });
assert.ok(heard.length >= 1, "progress");
assert.ok(heard.some((progress) => progress.message === "begun"));

// Cancellation.
const enough = new AbortController();
setTimeout(() => enough.abort("enough"), 500);
await assert.rejects(call("bash", { command: "sleep 987654 & sleep 987654", timeout: 600 }, { signal: enough.signal }));
const deadline = Date.now() + 10_000;
for (;;) {
  const left = text(await call("bash", { command: "pgrep -fxc 'sleep 987654'" }));
  if (left.startsWith("0")) break;
  assert.ok(Date.now() < deadline, `still running: ${left}`);
}

if (token) {
  const stranger = new Client({ name: "stranger", version: "0" });
  await assert.rejects(stranger.connect(transport("wrong-token-of-some-length")), /401|Unauthorized|Bearer/);
  await client.transport.terminateSession();
}
await client.close();
// Kept-alive connections would make it wait.
process.exit(0);
