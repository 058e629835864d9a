// A tool call: one line with what it did, and the details behind it.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { DiffLines } from "../parts/diff-lines";
import { duration } from "../format";
import { Icon, type IconName } from "../parts/icon";
import { Spinner } from "../parts/spinner";
import { Images } from "./images";
import type { Row } from "./fold";

export type ToolRow = Extract<Row, { kind: "tool" }>;

type Args = Record<string, unknown>;

const TOOL_LABELS: Record<string, { icon: IconName; verb: string; subject: string }> = {
  bash: { icon: "terminal", verb: "Run", subject: "command" },
  read_file: { icon: "file", verb: "Read", subject: "path" },
  write_file: { icon: "file", verb: "Write", subject: "path" },
  edit_file: { icon: "pencil", verb: "Edit", subject: "path" },
  grep: { icon: "search", verb: "Search for", subject: "pattern" },
  glob: { icon: "search", verb: "Find", subject: "pattern" },
  take_screenshot: { icon: "camera", verb: "Take screenshots", subject: "path" },
};

const text = (value: unknown) => (typeof value === "string" ? value : "");
const args = (value: unknown): Args => (typeof value === "object" && value !== null ? (value as Args) : {});

/** A call in a few words: its verb, and what it acts on. */
export function describe(tool: string, given: unknown): { icon: IconName; verb: string; subject: string } {
  const label = TOOL_LABELS[tool];
  if (!label) return { icon: "dot", verb: tool, subject: "" };
  const subject = text(args(given)[label.subject]).replace(/^\/home\/user\/(project\/)?/, "");
  return { ...label, subject: subject.split("\n")[0] ?? "" };
}

export function ToolCall({ row }: { row: ToolRow }) {
  // Open by default when it has images, until the user opens or closes it.
  const [chosen, setChosen] = useState<boolean | null>(null);
  const open = chosen ?? row.images.length > 0;
  const { icon, verb, subject } = describe(row.tool, row.args);
  return (
    <details class={`tool ${row.state}`} open={open} data-tool={row.tool} data-state={row.state}>
      <summary onClick={(event) => {
        event.preventDefault();
        setChosen(!open);
      }}>
        <span class="tool-icon">{row.state === "running" ? <Spinner size={14} /> : <Icon name={row.state === "failed" ? "cross" : icon} size={15} />}</span>
        <span class="tool-title">
          <span class="tool-verb">{verb}</span> <code>{subject}</code>
          {row.state === "failed" && <span class="visually-hidden"> failed</span>}
        </span>
        {row.duration !== null && row.duration > 0 && <span class="soft small figure">{duration(row.duration)}</span>}
        <Icon name="chevron" size={13} />
      </summary>
      {open && <Inside row={row} />}
    </details>
  );
}

function Inside({ row }: { row: ToolRow }) {
  const given = args(row.args);
  // The text about the images' paths adds nothing beside the images.
  const output = row.tool === "take_screenshot" && row.images.length > 0 ? "" : row.output;
  return (
    <div class="tool-inside">
      <Asked tool={row.tool} given={given} />
      {row.images.length > 0 && <Images images={row.images} />}
      {output && (
        <Block title={row.state === "running" ? "Output so far" : "Output"}>
          <pre class={`output ${row.state === "failed" ? "bad" : ""}`} tabIndex={0}>{output}</pre>
        </Block>
      )}
      {!output && row.summary && !row.images.length && <p class="soft small">{row.summary}</p>}
      {row.truncated && <p class="soft small">The output was longer; this is what the model saw of it.</p>}
    </div>
  );
}

/** The input of the call, where the one line does not show all of it. */
export function Asked({ tool, given }: { tool: string; given: Args }) {
  switch (tool) {
    case "bash":
      return <pre class="command">{text(given["command"])}</pre>;
    case "write_file":
      return <Block title={text(given["path"])}><pre class="output" tabIndex={0}>{text(given["content"])}</pre></Block>;
    case "edit_file":
      return (
        <Block title={text(given["path"])}>
          <DiffLines before={text(given["old_string"])} after={text(given["new_string"])} numbers={false} />
        </Block>
      );
    default:
      return Object.keys(given).length ? <pre class="command">{JSON.stringify(given, null, 2)}</pre> : null;
  }
}

function Block({ title, children }: { title: string; children: ComponentChildren }) {
  return <div class="block"><p class="block-title">{title}</p>{children}</div>;
}
