// The files of a build, now or in a snapshot, and the changes between two states. Reading resumes
// nothing.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, isMissing } from "../api";
import { bytes, moment } from "../format";
import { useLoaded, useReturns } from "../hooks";
import { DiffLines } from "../parts/diff-lines";
import { Icon } from "../parts/icon";
import { Problem, Waiting } from "../parts/spinner";
import { firstFile, identity, marked, type Mark } from "./listing";
import type { Entry as FileEntry, FileText, Snapshot } from "../wire";

/** The list's value for the current files; a snapshot's key is never empty. */
const NOW = "";
const NOTHING = "-";

interface Props {
  job: string;
  /** Grows when files may have changed, so that they are read again. */
  version: number;
  /**
   * Whether the panel is visible. The timeline has no events of terminal commands, so every return
   * to the panel reads the files again.
   */
  visible: boolean;
  /** Grows when files were restored from a snapshot. */
  restores: number;
  onRestore: (snapshot: Snapshot) => void;
}

export function FilesPanel({ job, version: timelineVersion, visible, restores, onRestore }: Props) {
  const returns = useReturns(visible);
  const [refreshes, setRefreshes] = useState(0);
  // Each of them only grows, so that the sum changes whenever one does.
  const version = timelineVersion + returns + refreshes;
  const [snapshots] = useLoaded(job, () => api.snapshots(job), version);
  const [shown, setShown] = useState(NOW);
  const [against, setAgainst] = useState(NOTHING);
  const [path, setPath] = useSelection(job, restores, version);
  const known = snapshots.state === "loaded" ? [...snapshots.value].sort((a, b) => b.created_at.localeCompare(a.created_at)) : [];
  const chosen = known.find((each) => each.key === shown);
  // Changes are shown from the older to the newer state; the current files are the newest.
  const place = (key: string) => known.findIndex((each) => each.key === key);
  const otherIs = place(against) > place(shown) ? "older" : "newer";
  const [older, newer] = otherIs === "older" ? [against, shown] : [shown, against];
  const compared = against !== NOTHING && against !== shown;
  const other = compared ? { snapshot: against || null, is: otherIs } as const : null;
  return (
    <div class="files">
      <div class="files-head">
        <label class="field inline">
          <span>Show</span>
          <select value={shown} onChange={(event) => setShown(event.currentTarget.value)} data-select="shown">
            <option value={NOW}>Now</option>
            {known.map((each) => <SnapshotOption key={each.key} snapshot={each} />)}
          </select>
        </label>
        <label class="field inline">
          <span>Compare with</span>
          <select value={against} onChange={(event) => setAgainst(event.currentTarget.value)} data-select="against">
            <option value={NOTHING}>Nothing</option>
            {shown !== NOW && <option value={NOW}>Now</option>}
            {known.filter((each) => each.key !== shown).map((each) => <SnapshotOption key={each.key} snapshot={each} />)}
          </select>
        </label>
        {chosen && <button type="button" class="button small" onClick={() => onRestore(chosen)}>Go back to this</button>}
        <button type="button" class="button quiet icon-only" onClick={() => setRefreshes(refreshes + 1)} aria-label="Refresh the files" title="Refresh">
          <Icon name="reload" />
        </button>
      </div>
      <div class="files-body">
        <nav class="tree" aria-label="Files">
          <Folder job={job} path="" snapshot={shown || null} other={other} version={version} current={path} onOpen={setPath} />
        </nav>
        <div class="file">
          {path === null ? (
            <div class="empty"><p>Choose a file to read it. With "Compare with" you see what changed since a snapshot.</p></div>
          ) : !compared ? (
            <Content key={`${path}@${shown}`} job={job} path={path} snapshot={shown || null} version={version} />
          ) : (
            <Comparison key={`${path}@${older}..${newer}`} job={job} path={path} before={older || null} after={newer || null} version={version} />
          )}
        </div>
      </div>
    </div>
  );
}

/**
 * A file that is missing in the shown state stays selected, for the way back; but a restore leaves
 * no such way.
 */
function useSelection(job: string, restores: number, version: number) {
  const [path, setPath] = useState<string | null>(null);
  const settled = useRef(restores);
  useEffect(() => {
    if (path === null) settled.current = restores;
    if (path === null || settled.current === restores) return;
    let outdated = false;
    const settle = (left: string | null) => {
      if (outdated) return;
      settled.current = restores;
      setPath(left);
    };
    // Without a response, the next version asks again.
    selectionAfterRestore(job, path).then(settle, () => {});
    return () => {
      outdated = true;
    };
  }, [job, path, restores, version]);
  return [path, setPath] as const;
}

function SnapshotOption({ snapshot }: { snapshot: Snapshot }) {
  return <option value={snapshot.key}>{moment(snapshot.created_at)} ({snapshot.files} files)</option>;
}

interface FolderProps {
  job: string;
  path: string;
  snapshot: string | null;
  /** The state to compare with, if any. */
  other: { snapshot: string | null; is: "older" | "newer" } | null;
  /** Only the older state has this folder. */
  removed?: boolean;
  version: number;
  current: string | null;
  onOpen: (path: string) => void;
}

function Folder(props: FolderProps) {
  const { job, path, snapshot, other, removed = false, version } = props;
  const [loaded, again] = useLoaded(`${job}/${path}@${snapshot}`, () => entriesOrNothing(job, path, snapshot), version);
  // Loaded separately, so that the list is shown before the other state is loaded, or without it.
  const [compared] = useLoaded(
    `${job}/${path}@${other ? other.snapshot : NOTHING}`,
    async () => (other ? entriesOrNothing(job, path, other.snapshot) : null),
    version,
  );
  if (loaded.state === "loading") return <p class="soft small pad">Loading…</p>;
  if (loaded.state === "failed") return <Problem message={loaded.message} onRetry={() => void again()} />;
  const others = compared.state === "loaded" ? (compared.value ?? (removed ? [] : null)) : null;
  const entries = marked(loaded.value ?? [], others, other?.is ?? "older");
  if (!entries.length) return <p class="soft small pad">{path ? "Empty" : "No files yet. They appear when the build writes its first one."}</p>;
  return <ul>{entries.map(({ entry, mark }) => <li key={identity(entry)}><Entry {...props} entry={entry} mark={mark} /></li>)}</ul>;
}

function Entry({ entry, mark, ...props }: FolderProps & { entry: FileEntry; mark: Mark | null }) {
  const [open, setOpen] = useState(false);
  if (entry.kind !== "directory") {
    return (
      <button type="button" class={`entry ${mark ?? ""}`} aria-current={props.current === entry.path ? "true" : undefined} onClick={() => props.onOpen(entry.path)}>
        <Icon name="file" size={14} /><span class="entry-name">{entry.name}</span>
        {mark && <span class="entry-mark">{mark}</span>}
        <span class="soft small figure">{bytes(entry.bytes)}</span>
      </button>
    );
  }
  return (
    <>
      <button type="button" class={`entry ${mark ?? ""}`} aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class={`turn ${open ? "open" : ""}`}><Icon name="chevron" size={12} /></span>
        <Icon name="folder" size={14} /><span class="entry-name">{entry.name}</span>
        {mark && <span class="entry-mark">{mark}</span>}
      </button>
      {open && <Folder {...props} path={entry.path} removed={mark === "removed"} />}
    </>
  );
}

interface ContentProps {
  job: string;
  path: string;
  snapshot: string | null;
  version: number;
}

function Content({ job, path, snapshot, version }: ContentProps) {
  const [loaded, again] = useLoaded(`${job}/${path}@${snapshot}`, () => textOrNothing(job, path, snapshot), version);
  if (loaded.state === "loading") return <Waiting what="Reading…" />;
  if (loaded.state === "failed") return <Problem message={loaded.message} onRetry={() => void again()} />;
  const { value } = loaded;
  if (!value) return <Absent path={path} text={snapshot ? "This file is not in that snapshot." : "This file is not there now."} />;
  return (
    <>
      <p class="file-head"><code>{value.path}</code><span class="soft small">{bytes(value.bytes)}</span></p>
      {value.text === null ? (
        <div class="empty"><p>{value.binary ? "This file is not text." : "This file can't be shown."}</p></div>
      ) : (
        <pre class="source" tabIndex={0}>{value.text.split("\n").map((line, index) => <span key={index} class="source-line">{line}{"\n"}</span>)}</pre>
      )}
      {value.truncated && <p class="soft small pad">Only the beginning is shown.</p>}
    </>
  );
}

function Comparison({ job, path, before, after, version }: { job: string; path: string; before: string | null; after: string | null; version: number }) {
  const [loaded, again] = useLoaded(
    `${job}/${path}@${before}..${after}`,
    async () => {
      const [old, fresh] = await Promise.all([textOrNothing(job, path, before), textOrNothing(job, path, after)]);
      return { old, fresh };
    },
    version,
  );
  if (loaded.state === "loading") return <Waiting what="Comparing…" />;
  if (loaded.state === "failed") return <Problem message={loaded.message} onRetry={() => void again()} />;
  const { old, fresh } = loaded.value;
  if (!old && !fresh) return <Absent path={path} text="This file is in neither of the two." />;
  const binary = old?.text === null || fresh?.text === null;
  return (
    <>
      <p class="file-head"><code>{path}</code><span class="soft small">{!old ? "New file" : !fresh ? "Removed" : "Changes"}</span></p>
      {binary ? <div class="empty"><p>This file is not text.</p></div> : <DiffLines before={old?.text ?? ""} after={fresh?.text ?? ""} />}
    </>
  );
}

function Absent({ path, text }: { path: string; text: string }) {
  return (
    <>
      <p class="file-head"><code>{path}</code></p>
      <div class="empty" role="status"><p>{text}</p></div>
    </>
  );
}

/** The same file if it still exists, else the first one. */
async function selectionAfterRestore(job: string, path: string): Promise<string | null> {
  if (await textOrNothing(job, path, null)) return path;
  return firstFile((await api.files(job, "", null)).entries);
}

/** A file that one side does not have is a difference, not a failure. */
function textOrNothing(job: string, path: string, snapshot: string | null): Promise<FileText | null> {
  return orNothing(api.file(job, path, snapshot));
}

/** Neither is a folder; but without a project there is nothing to list. */
async function entriesOrNothing(job: string, path: string, snapshot: string | null): Promise<FileEntry[] | null> {
  const list = api.files(job, path, snapshot);
  return (await (path ? orNothing(list) : list))?.entries ?? null;
}

async function orNothing<T>(answer: Promise<T>): Promise<T | null> {
  try {
    return await answer;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}
