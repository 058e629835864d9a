// The timeline's view, newest last. It scrolls with new rows until the user scrolls up.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { api } from "../api";
import { clock, money } from "../format";
import { useAction } from "../hooks";
import { Icon, type IconName } from "../parts/icon";
import { memo } from "../parts/memo";
import { Prose } from "../parts/prose";
import { Spinner, Waiting } from "../parts/spinner";
import type { Mark, Row, Timeline } from "./fold";
import { Images } from "./images";
import { Asked, describe, ToolCall } from "./tool";
import type { Connection } from "./use-timeline";

interface Props {
  job: string;
  timeline: Timeline;
  connection: Connection;
  working: boolean;
}

/** A distance from the end that counts as the end. */
const NEAR_PX = 80;

export function TimelineView({ job, timeline, connection, working }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  // A ref, not the value of an effect's closure: heights change between a click and the next
  // render.
  const follows = useRef(true);
  const follow = (wanted: boolean) => {
    follows.current = wanted;
    setFollowing(wanted);
  };
  const toEnd = () => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(toEnd, [timeline, following]);
  // Images and opened calls change the height without an event.
  useEffect(() => {
    const inner = box.current?.firstElementChild;
    if (!inner) return;
    const observer = new ResizeObserver(() => {
      const fits = box.current && box.current.scrollHeight <= box.current.clientHeight;
      if (fits) follow(true);
      toEnd();
    });
    observer.observe(inner);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    // The browser may deliver a scroll event after the page was left.
    if (!box.current) return;
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follow(scrollHeight - scrollTop - clientHeight < NEAR_PX);
  };
  // A user who opens a call wants to read it: new rows do not scroll it away.
  const onClick = (event: MouseEvent) => {
    if ((event.target as Element).closest("summary")) follow(false);
  };
  return (
    <div class="timeline">
      <div class="timeline-scroll" ref={box} onScroll={onScroll} onClickCapture={onClick} tabIndex={0} role="region" aria-label="What happened">
        <ol class="rows">
          {timeline.rows.map((row) => <Entry key={row.key} row={row} job={job} />)}
          {working && (
            <li class="row working-row"><span class="mark"><Spinner size={14} /></span><span class="soft">Working…</span></li>
          )}
        </ol>
        {timeline.rows.length === 0 && connection === "connecting" && <Waiting what="Loading the timeline…" />}
        {timeline.rows.length === 0 && connection === "live" && !working && (
          <div class="empty"><p>Nothing has happened yet. Every step will stand here as it is made.</p></div>
        )}
      </div>
      {!following && (
        <button type="button" class="button small to-newest" onClick={() => follow(true)}>Newest</button>
      )}
    </div>
  );
}

const Entry = memo(function Entry({ row, job }: { row: Row; job: string }) {
  return (
    <li class={`row row-${row.kind}`} data-row={row.kind} {...(row.kind === "note" ? { "data-mark": row.mark } : {})}>
      <Content row={row} job={job} />
      <span class="row-meta">
        {row.cost !== null && row.cost > 0 && <span class="row-cost" title="This turn of the model">{money(row.cost)}</span>}
        <time dateTime={row.ts}>{clock(row.ts)}</time>
      </span>
    </li>
  );
});

const SIGNS: Record<Mark, IconName> = {
  status: "dot", snapshot: "save", rotation: "rotate", move: "move", sleep: "moon", wake: "sun", extend: "clock", commit: "commit",
  limit: "alert", credit: "coin", notice: "dot", retry: "rotate", context: "layers", problem: "alert",
};

function Content({ row, job }: { row: Row; job: string }) {
  switch (row.kind) {
    case "text":
      return <div class={`said ${row.live ? "live" : ""}`}><Prose text={row.text} /></div>;
    case "thinking":
      return (
        <details class="thinking">
          <summary>{row.live ? "Thinking…" : "Thought"}<Icon name="chevron" size={13} /></summary>
          <Prose text={row.text} />
        </details>
      );
    case "tool":
      return <ToolCall row={row} />;
    case "approval":
      return <Approval row={row} job={job} />;
    case "phase":
      return (
        <div class={`phase ${row.state}`}>
          <span class="phase-number">Phase {row.phase} of {row.of}</span>
          <span class="phase-goal">{row.goal}</span>
          {row.state === "done" && <span class="phase-done"><Icon name="check" size={14} /><span class="visually-hidden">done</span></span>}
        </div>
      );
    case "images":
      return (
        <div class="note-block">
          <p class="note"><span class="mark"><Icon name="camera" size={15} /></span><span>Screenshots{row.reason && <span class="soft"> · {row.reason}</span>}</span></p>
          <Images images={row.images} />
        </div>
      );
    case "note":
      return (
        <p class={`note ${row.mark}`}>
          <span class="mark"><Icon name={SIGNS[row.mark]} size={15} /></span>
          <span>{row.text}{row.detail && <span class="soft"> · {row.detail}</span>}</span>
        </p>
      );
    case "end":
      return (
        <div class={`end ${row.outcome}`}>
          <p class="note">
            <span class="mark"><Icon name={row.outcome === "completed" ? "check" : "alert"} size={15} /></span>
            <span>{row.text}{row.detail && <span class="soft"> · {row.detail}</span>}</span>
          </p>
          {row.files.length > 0 && (
            <details class="thinking">
              <summary>{row.files.length} {row.files.length === 1 ? "file" : "files"} changed<Icon name="chevron" size={13} /></summary>
              <ul class="plain small">{row.files.map((file) => <li key={file}><code>{file}</code></li>)}</ul>
            </details>
          )}
        </div>
      );
  }
}

function Approval({ row, job }: { row: Extract<Row, { kind: "approval" }>; job: string }) {
  const { busy, problem, run } = useAction();
  const { verb, subject } = describe(row.tool, row.args);
  const answer = (allow: boolean) => run(async () => void (await api.answer(job, row.id, allow)));
  const given = typeof row.args === "object" && row.args !== null ? (row.args as Record<string, unknown>) : {};
  if (row.answer !== "open") {
    return (
      <p class="note">
        <span class="mark"><Icon name={row.answer === "allowed" ? "check" : "cross"} size={15} /></span>
        <span>{row.answer === "allowed" ? "Allowed" : "Denied"}: {verb} <code>{subject}</code>{row.reason && <span class="soft"> · {row.reason}</span>}</span>
      </p>
    );
  }
  return (
    <div class="approval" role="group" aria-label="The model asks for permission">
      <p class="approval-title"><Icon name="question" />May it do this? <span class="soft">{verb}</span></p>
      <Asked tool={row.tool} given={given} />
      {problem && <p class="problem" role="alert">{problem}</p>}
      <div class="actions start">
        <button type="button" class="button primary" disabled={busy} onClick={() => void answer(true)}>Allow</button>
        <button type="button" class="button" disabled={busy} onClick={() => void answer(false)}>Deny</button>
      </div>
    </div>
  );
}
