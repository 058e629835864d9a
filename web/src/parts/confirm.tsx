// A confirmation before an irreversible action. Uses the browser's dialog, which traps the focus
// and closes on Escape.

import { useEffect, useId, useRef } from "preact/hooks";
import { useAction } from "../hooks";

export interface Question {
  title: string;
  text: string;
  yes: string;
  /** The title of the button that changes nothing; "Cancel" unless that is ambiguous. */
  no?: string;
  danger?: boolean;
  action: () => Promise<void>;
}

export function Confirm({ question, onClose }: { question: Question; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const { busy, problem, run } = useAction();
  const text = useId();
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="confirm" onClose={onClose} aria-labelledby={`${text}-title`} aria-describedby={text}>
      <h2 id={`${text}-title`}>{question.title}</h2>
      <p id={text}>{question.text}</p>
      {problem && <p class="problem" role="alert">{problem}</p>}
      <div class="actions">
        <button type="button" class="button" onClick={() => dialog.current?.close()}>{question.no ?? "Cancel"}</button>
        <button
          type="button"
          class={`button ${question.danger ? "danger" : "primary"}`}
          disabled={busy}
          onClick={() => run(async () => {
            await question.action();
            dialog.current?.close();
          })}
        >
          {busy ? "One moment…" : question.yes}
        </button>
      </div>
    </dialog>
  );
}
