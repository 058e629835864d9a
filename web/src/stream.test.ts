import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { MessageParser, watch } from "./stream";

test("messages are parsed across chunk boundaries", () => {
  const stream = ': hello\n\nid: 1\ndata: {"a":1}\n\ndata: x\r\ndata: y\r\n\r\nid: 3\n\n';
  for (let cut = 1; cut < stream.length; cut++) {
    const parser = new MessageParser();
    assert.deepEqual(
      [...parser.push(stream.slice(0, cut)), ...parser.push(stream.slice(cut))],
      [{ id: "1", data: '{"a":1}' }, { id: null, data: "x\ny" }],
      `cut at ${cut}`,
    );
  }
});

test("a reconnect continues after the last event without repeats", async () => {
  const asked: (string | undefined)[] = [];
  // Each connection is cut after two events; one of the connections is refused.
  const server = createServer((request: IncomingMessage, answer: ServerResponse) => {
    const after = request.headers["last-event-id"] as string | undefined;
    asked.push(after);
    if (asked.length === 2) {
      answer.writeHead(503).end();
      return;
    }
    answer.writeHead(200, { "content-type": "text/event-stream" });
    const from = Number(after ?? 0);
    // Repeats the last event seen, as a careless server might.
    for (const seq of [from, from + 1, from + 2]) {
      if (seq > 0) answer.write(`id: ${seq}\ndata: {"seq":${seq},"ts":"","type":"turn_started"}\n\n`);
    }
    answer.end();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const seen: number[] = [];
  await new Promise<void>((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`only ${seen} came`)), 30_000);
    const stop = watch(`http://127.0.0.1:${port}/`, {
      onEvents(events) {
        seen.push(...events.map((event) => event.seq ?? 0));
        if (seen.length >= 6) {
          stop();
          clearTimeout(late);
          resolve();
        }
      },
      onConnection() {},
      onSignedOut: () => reject(new Error("signed out")),
      onGone: () => reject(new Error("gone")),
    });
  });
  server.closeAllConnections();
  server.close();
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(asked, [undefined, "2", "2", "4"]);
});
