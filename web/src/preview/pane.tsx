// The preview pane: one view per state of its machine. The frame is sandboxed and has another
// origin than this page.

import { useEffect } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Icon } from "../parts/icon";
import { Spinner } from "../parts/spinner";
import type { JobStatus } from "../wire";
import { framed } from "./address";
import { TEXT, type Preview } from "./machine";
import type { PreviewControl } from "./use-preview";

/** An app needs scripts and its own origin to run; it may not navigate the whole page. */
const SANDBOX = "allow-scripts allow-same-origin allow-forms allow-modals allow-popups allow-downloads";

const FRAME_DEADLINE_MS = 30_000;

interface Props {
  control: PreviewControl;
  status: JobStatus | null;
  onRebuild: () => void;
  onAnnounce: (text: string) => void;
}

export function PreviewPane({ control, status, onRebuild, onAnnounce }: Props) {
  const { state } = control;
  const words = announcement(state);
  useEffect(() => onAnnounce(words), [words, onAnnounce]);
  return (
    <div class="preview" data-preview={state.kind}>
      <Bar control={control} />
      <div class="preview-body">
        <Body control={control} status={status} onRebuild={onRebuild} />
      </div>
    </div>
  );
}

function Bar({ control: { state, recheck, resume, touched } }: { control: PreviewControl }) {
  const url = "url" in state ? state.url : null;
  if (!url) return null;
  const paused = state.kind === "active" && state.paused;
  const offered = state.kind === "active" && state.offered;
  // A new tab would find no server.
  const open = (event: MouseEvent) => {
    if (!paused) return;
    event.preventDefault();
    touched();
  };
  return (
    <div class="preview-bar">
      <span class="address" title={url}>{url.replace(/^https?:\/\//, "")}</span>
      {offered && (
        <button type="button" class="button small" onClick={resume}>
          <Icon name="moon" size={13} />Resume preview
        </button>
      )}
      <button type="button" class="button quiet icon-only" onClick={recheck} aria-label="Reload the preview" title="Reload">
        <Icon name="reload" />
      </button>
      {!offered && (
        <a class="button quiet icon-only" href={url} onClick={open} target="_blank" rel="noopener noreferrer" aria-label="Open the preview in a new tab" title="Open in a new tab">
          <Icon name="outside" />
        </a>
      )}
    </div>
  );
}

function Body({ control, status, onRebuild }: Omit<Props, "onAnnounce">) {
  const { state, resume, recheck } = control;
  switch (state.kind) {
    case "checking":
      return (
        <Card waiting>
          <p class="preview-title">{status === null || status === "ready" ? "Looking for the preview…" : "The preview is on its way"}</p>
          {status !== null && status !== "ready" && <p class="soft">It will be here when the build is ready.</p>}
        </Card>
      );
    case "loading":
    case "active":
      return (
        <>
          <Frame key={state.load} frame={state} control={control} />
          {state.kind === "loading" && (
            <div class="preview-veil"><Card waiting><p class="preview-title">Loading preview…</p></Card></div>
          )}
        </>
      );
    case "blocked":
      return (
        <Card icon="outside">
          <p class="preview-title">{TEXT.blocked}</p>
          <p class="soft">It works in a tab of its own.</p>
          <a class="button primary" href={state.url} target="_blank" rel="noopener noreferrer">Open in a new tab</a>
        </Card>
      );
    case "paused":
      return (
        <Card icon="moon">
          <p class="preview-title">{TEXT.paused}</p>
          <button type="button" class="button primary" onClick={resume}>Resume preview</button>
        </Card>
      );
    case "expired":
      return (
        <Card icon="clock">
          <p class="preview-title">{TEXT.expired}</p>
          <p class="soft">Your files are kept. A rebuild starts from them.</p>
          <button type="button" class="button primary" onClick={onRebuild}>Rebuild</button>
        </Card>
      );
    case "resuming":
      return <Card waiting><p class="preview-title">{TEXT.resuming}</p></Card>;
    case "resume_failed":
      return (
        <Card icon="alert">
          <p class="preview-title">{TEXT.resumeFailed}</p>
          <p class="soft">{TEXT[state.failure]}</p>
          <button type="button" class="button primary" onClick={onRebuild}>Rebuild</button>
        </Card>
      );
    case "error":
      return (
        <Card icon={state.next === "nothing" ? "layers" : "alert"}>
          <p class="preview-title">{state.message}</p>
          {state.next === "resume" && state.output && <pre class="output" tabIndex={0} aria-label="Its last output">{state.output}</pre>}
          {state.next === "retry" && <button type="button" class="button" onClick={recheck}>Try again</button>}
          {state.next === "resume" && <button type="button" class="button primary" onClick={resume}>Resume preview</button>}
          {state.next === "rebuild" && <button type="button" class="button primary" onClick={onRebuild}>Rebuild</button>}
          {state.next === "nothing" && <p class="soft">Its files and everything that was done are still here.</p>}
        </Card>
      );
  }
}

/**
 * The timeout starts with the frame: a pane that was not opened yet, as on a phone, loads nothing
 * and is not late.
 */
function Frame({ frame, control }: { frame: Extract<Preview, { kind: "loading" | "active" }>; control: PreviewControl }) {
  const { frameLoaded, frameLate } = control;
  const { url, load } = frame;
  const waiting = frame.kind === "loading";
  useEffect(() => {
    if (!waiting) return;
    const timer = setTimeout(() => frameLate(load), FRAME_DEADLINE_MS);
    return () => clearTimeout(timer);
  }, [waiting, load, frameLate]);
  return (
    <iframe
      src={framed(url, location.protocol)}
      title="Preview of the app"
      sandbox={SANDBOX}
      referrerpolicy="no-referrer"
      onLoad={() => void frameLoaded(load)}
    />
  );
}

function Card({ icon, waiting, children }: { icon?: "moon" | "clock" | "alert" | "outside" | "layers"; waiting?: boolean; children: ComponentChildren }) {
  return (
    <div class="preview-card">
      {waiting && <Spinner size={26} />}
      {icon && <span class="preview-icon"><Icon name={icon} size={24} /></span>}
      {children}
    </div>
  );
}

/** The announcement of a screen reader when the state changes. */
function announcement(state: Preview): string {
  switch (state.kind) {
    case "checking":
    case "loading":
      return "";
    case "active":
      return state.offered ? TEXT.paused : "The preview is shown.";
    case "blocked":
      return TEXT.blocked;
    case "paused":
      return TEXT.paused;
    case "expired":
      return TEXT.expired;
    case "resuming":
      return TEXT.resuming;
    case "resume_failed":
      return `${TEXT.resumeFailed}. ${TEXT[state.failure]}`;
    case "error":
      return state.message;
  }
}
