// The terminal's panel. The terminal itself is large and is loaded when it is first opened.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../parts/icon";
import type { Session } from "./terminal-session";

type State = { kind: "idle" } | { kind: "opening" } | { kind: "open" } | { kind: "closed"; reason: string };

interface Props {
  job: string;
  /** Why no terminal can be opened, if so. */
  unavailable: string | null;
  onResume: (() => void) | null;
}

export function TerminalPanel({ job, unavailable, onResume }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const session = useRef<Session | null>(null);
  const [state, setState] = useState<State>({ kind: "idle" });

  const open = async () => {
    setState({ kind: "opening" });
    try {
      const { openSession } = await import("./terminal-session");
      if (!place.current) return;
      session.current?.close();
      session.current = openSession(place.current, job, {
        onOpen: () => setState({ kind: "open" }),
        onClosed: (reason) => setState({ kind: "closed", reason }),
      });
    } catch {
      setState({ kind: "closed", reason: "The terminal could not be loaded." });
    }
  };
  useEffect(() => () => session.current?.close(), []);

  const opened = state.kind === "open" || state.kind === "opening";
  return (
    <div class="terminal">
      <div class={`terminal-place ${opened ? "" : "unused"}`} ref={place} aria-label="Terminal in the sandbox. Shift and Tab leave it." role="group" />
      {!opened && (
        <div class="empty terminal-card">
          <Icon name="terminal" size={26} />
          {unavailable ? (
            <>
              <p>{unavailable}</p>
              {onResume && <button type="button" class="button primary" onClick={onResume}>Resume preview</button>}
            </>
          ) : (
            <>
              <p>{state.kind === "closed" ? state.reason : "A shell in this build's sandbox, beside the model's work."}</p>
              <button type="button" class="button primary" onClick={() => void open()}>{state.kind === "closed" ? "Open again" : "Open terminal"}</button>
            </>
          )}
        </div>
      )}
    </div>
  );
}
