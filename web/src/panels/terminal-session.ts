// One terminal over one WebSocket: bytes as binary frames in both directions, its size as text
// frames. Loaded on demand.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { api } from "../api";

export interface Session {
  close(): void;
}

interface Handlers {
  onOpen(): void;
  onClosed(reason: string): void;
}

export function openSession(place: HTMLElement, job: string, handlers: Handlers): Session {
  const terminal = new Terminal({
    fontSize: 13,
    fontFamily: getComputedStyle(place).getPropertyValue("--mono") || "monospace",
    cursorBlink: true,
    scrollback: 5_000,
    screenReaderMode: true,
    theme: { background: "#101416", foreground: "#dfe4e6", cursor: "#5cbcc4", selectionBackground: "#2b4a4e" },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  place.replaceChildren();
  terminal.open(place);
  // The shell gets Tab; Shift and Tab lets the keyboard leave the terminal.
  terminal.attachCustomKeyEventHandler((event) => !(event.key === "Tab" && event.shiftKey));
  fit.fit();

  const socket = new WebSocket(`${api.terminalUrl(job)}?cols=${terminal.cols}&rows=${terminal.rows}`);
  socket.binaryType = "arraybuffer";
  const encoder = new TextEncoder();
  const send = (message: Uint8Array<ArrayBuffer> | string) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(message);
  };
  const resize = () => send(JSON.stringify({ resize: { cols: terminal.cols, rows: terminal.rows } }));
  const observer = new ResizeObserver(() => {
    // A hidden panel has no size; fitting to it would leave a terminal of one column.
    if (place.clientWidth > 0) fit.fit();
  });

  let opened = false;
  let closed = false;
  socket.onopen = () => {
    opened = true;
    resize();
    terminal.focus();
    handlers.onOpen();
  };
  socket.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
    terminal.write(typeof event.data === "string" ? event.data : new Uint8Array(event.data));
  };
  socket.onclose = (event) => {
    if (!closed) end(event.reason || (opened ? "The terminal was closed." : "The terminal could not be opened. The sandbox may be asleep."));
  };
  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
  terminal.onResize(resize);
  observer.observe(place);

  function end(reason: string | null) {
    closed = true;
    observer.disconnect();
    socket.close();
    terminal.dispose();
    if (reason !== null) handlers.onClosed(reason);
  }
  return {
    close: () => {
      if (!closed) end(null);
    },
  };
}
