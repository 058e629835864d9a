// A job's events as they happen. Read with `fetch` and not with `EventSource`, because a silent
// connection must be detected (heartbeats are comments, which `EventSource` hides) and because a
// refused reconnect must be retried.
//
// Invariant: an event with a `seq` is delivered once and in order. After any disconnect the stream
// continues after the last event seen, by `Last-Event-ID`; no event is repeated or lost.

import { untilVisible, onHidden } from "./presence";
import type { TimelineEvent } from "./wire";

export interface Watcher {
  onEvents(events: TimelineEvent[]): void;
  onConnection(state: "live" | "reconnecting"): void;
  onSignedOut(): void;
  onGone(): void;
}

/** The server sends a heartbeat every 15 s: three missed ones mean a dead connection. */
const SILENCE_MS = 45_000;
const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 5_000;

/** One message of an event stream. Comments yield nothing. */
export interface Message {
  id: string | null;
  data: string;
}

/** Splits a stream of text into messages, across chunk boundaries. */
export class MessageParser {
  private rest = "";
  private id: string | null = null;
  private data: string[] = [];

  push(piece: string): Message[] {
    this.rest += piece;
    const lines = this.rest.split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    const messages: Message[] = [];
    for (const line of lines) {
      if (line === "") {
        if (this.data.length) messages.push({ id: this.id, data: this.data.join("\n") });
        this.data = [];
        this.id = null;
        continue;
      }
      if (line.startsWith(":")) continue;
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") this.data.push(value);
      else if (field === "id") this.id = value;
    }
    return messages;
  }
}

/** Watches until the returned function is called. */
export function watch(path: string, watcher: Watcher): () => void {
  const stop = new AbortController();
  void run(path, watcher, stop.signal);
  return () => stop.abort();
}

async function run(path: string, watcher: Watcher, stop: AbortSignal): Promise<void> {
  let last = 0;
  let wait = FIRST_WAIT_MS;
  while (!stop.aborted) {
    const connection = new AbortController();
    const end = () => connection.abort();
    stop.addEventListener("abort", end);
    let away = false;
    const stay = onHidden(() => {
      away = true;
      end();
    });
    let silence = setTimeout(end, SILENCE_MS);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last > 0) headers["last-event-id"] = String(last);
      const answer = await fetch(path, { headers, credentials: "same-origin", cache: "no-store", signal: connection.signal });
      if (answer.status === 401) return watcher.onSignedOut();
      if (answer.status === 404) return watcher.onGone();
      if (answer.ok && answer.body) {
        watcher.onConnection("live");
        wait = FIRST_WAIT_MS;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        const parser = new MessageParser();
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          clearTimeout(silence);
          silence = setTimeout(end, SILENCE_MS);
          const events: TimelineEvent[] = [];
          for (const message of parser.push(value)) {
            const event = JSON.parse(message.data) as TimelineEvent;
            if (event.seq !== undefined) {
              if (event.seq <= last) continue;
              last = event.seq;
            }
            events.push(event);
          }
          if (events.length && !stop.aborted) watcher.onEvents(events);
        }
      }
    } catch {
      // Refused, cut off or silent for too long: retry in all cases.
    } finally {
      clearTimeout(silence);
      stay();
      connection.abort();
      stop.removeEventListener("abort", end);
    }
    if (stop.aborted) return;
    if (away) {
      await pause(FIRST_WAIT_MS, stop);
      await untilVisible(stop);
      continue;
    }
    watcher.onConnection("reconnecting");
    await pause(wait, stop);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      stop.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    stop.addEventListener("abort", done);
  });
}
