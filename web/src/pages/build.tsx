// One build: the timeline on the left, its result on the right; on a phone, everything in tabs.

import { useCallback, useEffect, useState } from "preact/hooks";
import { api } from "../api";
import { age, modelName, money } from "../format";
import { useAction, useLoaded, useMedia, useNow } from "../hooks";
import { FilesPanel } from "../panels/files";
import { ScreenshotsPanel } from "../panels/screenshots";
import { TerminalPanel } from "../panels/terminal";
import { UsagePanel } from "../panels/usage";
import { Confirm, type Question } from "../parts/confirm";
import { Icon } from "../parts/icon";
import { Link } from "../parts/link";
import { Menu, type MenuItem } from "../parts/menu";
import { Problem, Waiting } from "../parts/spinner";
import { StatusBadge } from "../parts/status";
import { Tabs, type Tab } from "../parts/tabs";
import { TopBar } from "../parts/topbar";
import { TEXT } from "../preview/machine";
import { PreviewPane } from "../preview/pane";
import { usePreview } from "../preview/use-preview";
import { buildPath, go, hasResumeRequest } from "../route";
import { TimelineView } from "../timeline/view";
import { useTimeline } from "../timeline/use-timeline";
import { isFinished } from "../status";
import type { Job, Snapshot } from "../wire";

type TabName = "timeline" | "preview" | "files" | "screenshots" | "terminal" | "usage";

export function BuildPage({ id }: { id: string }) {
  const [loaded, again] = useLoaded(id, () => api.job(id));
  const job = loaded.state === "loaded" ? loaded.value : null;
  const preview = usePreview(id, job?.status ?? null);
  const [version, setVersion] = useState(0);
  const [restores, setRestores] = useState(0);
  const { timeline, connection } = useTimeline(id, (types) => {
    setVersion((before) => before + 1);
    void again();
    if (types.has("restored")) {
      setRestores((before) => before + 1);
      preview.changed();
    }
    void preview.check();
  });
  const wide = useMedia("(min-width: 900px)");
  // A phone starts with the timeline, unless a resume was requested; a wide screen always shows it.
  const [chosen, setTab] = useState<TabName>(() => (wide || hasResumeRequest(id) ? "preview" : "timeline"));
  const tab = wide && chosen === "timeline" ? "preview" : chosen;
  const pause = useAction();
  const [question, setQuestion] = useState<Question | null>(null);
  const [announced, setAnnounced] = useState("");
  const announce = useCallback((text: string) => setAnnounced(text), []);
  const now = useNow();

  useEffect(() => {
    document.title = job ? `${job.project_name}: ${job.goal}` : "Sandbar";
    return () => {
      document.title = "Sandbar";
    };
  }, [job?.project_name, job?.goal]);

  if (connection === "gone" || (loaded.state === "failed" && loaded.missing)) return <NotHere />;
  if (loaded.state === "failed") return <><TopBar /><main class="page"><Problem message={loaded.message} onRetry={() => void again()} /></main></>;
  if (!job) return <><TopBar /><main class="page"><Waiting what="Loading the build…" /></main></>;

  const working = !isFinished(job.status);
  const open = timeline.rows.filter((row) => row.kind === "approval" && row.answer === "open").length;
  const rebuild = () => setQuestion({
    title: "Rebuild",
    text: TEXT.question,
    yes: "Rebuild",
    action: async () => go(buildPath((await api.rebuild(id)).job_id)),
  });
  const pausePreview = () => void pause.run(async () => {
    try {
      await api.pause(id);
      await preview.check();
      preview.touched();
    } finally {
      // Also after a failure: the sandbox may be gone, or paused by now.
      void again();
      void preview.check();
    }
  });
  const restore = (snapshot: Snapshot) => setQuestion({
    title: "Go back to this snapshot",
    text: `The ${snapshot.files} files of this snapshot take the place of what is there now. What is there now is saved first.`,
    yes: "Go back",
    action: async () => {
      await api.restore(id, snapshot.key);
      void again();
    },
  });

  const view = <TimelineView job={id} timeline={timeline} connection={connection} working={working && open === 0} />;
  const tabs: Tab<TabName>[] = [
    ...(wide ? [] : [{ name: "timeline", title: "Timeline", panel: view } as const]),
    { name: "preview", title: "Preview", panel: <PreviewPane control={preview} status={job.status} onRebuild={rebuild} onAnnounce={announce} /> },
    { name: "files", title: "Files", panel: <FilesPanel job={id} version={version} visible={tab === "files"} restores={restores} onRestore={restore} /> },
    { name: "screenshots", title: "Screenshots", panel: <ScreenshotsPanel job={id} version={version} /> },
    { name: "terminal", title: "Terminal", panel: <TerminalPanel job={id} {...terminal(job, preview.state.kind, () => { setTab("preview"); preview.resume(); })} /> },
    { name: "usage", title: "Usage", panel: <UsagePanel job={id} version={version} context={timeline.context} /> },
  ];
  return (
    <div class="build">
      <TopBar><Link to="/" class="crumb"><Icon name="back" size={15} />All builds</Link></TopBar>
      <section class="build-head" aria-label="This build">
        <div class="build-title">
          <p class="soft small build-where">{job.project_name} · build {job.build_version}{job.model ? ` · ${modelName(job.model)}` : ""}</p>
          <h1 title={job.goal}>{job.goal}</h1>
        </div>
        <div class="build-facts">
          <StatusBadge status={job.status} />
          {job.stage_label && job.stage_label.toLowerCase() !== job.status && <span class="soft small stage">{job.stage_label}</span>}
          <span class="soft small">{age(job.created_at, now)}</span>
          <span class="figure" aria-label="Cost so far" title="Cost so far">{money(Math.max(timeline.totalCost ?? 0, job.cost_usd ?? 0))}</span>
          <Menu label="Actions for this build" items={actions(job, { rebuild, pausePreview, ask: setQuestion, again })} />
        </div>
        {job.status === "failed" && (
          <p class="build-problem" role="alert">
            <Icon name="alert" />
            <span>{job.error_message ?? "This build has failed."}{job.debug_id && <span class="soft small"> ({job.debug_id})</span>}</span>
            <button type="button" class="button small" onClick={rebuild}>Rebuild</button>
          </p>
        )}
        {pause.problem && !job.sandbox_paused && preview.state.kind !== "expired" && (
          <p class="build-problem" role="alert">
            <Icon name="alert" />
            <span>The preview could not be put to sleep. {pause.problem}</span>
            <button type="button" class="button small" onClick={pausePreview}>Try again</button>
            <button type="button" class="button quiet icon-only" onClick={pause.dismiss} aria-label="Dismiss" title="Dismiss"><Icon name="cross" /></button>
          </p>
        )}
      </section>
      {connection === "reconnecting" && <p class="offline" role="status">Connection lost. Trying to reach Sandbar again…</p>}
      <main class="build-main" id="main">
        {wide && <section class="build-timeline" aria-label="Timeline">{view}</section>}
        <section class="build-result" aria-label="Result">
          <Tabs label="Views of this build" tabs={tabs} current={tab} onChange={setTab} />
        </section>
      </main>
      <div class="visually-hidden" role="status" aria-live="polite" data-live>
        {`Build: ${job.status}. ${open ? "The model asks for permission. " : ""}${announced}`}
      </div>
      {question && <Confirm question={question} onClose={() => setQuestion(null)} />}
    </div>
  );
}

/**
 * One page for deleted builds, builds of other users and builds that never existed, so that it does
 * not reveal which it is.
 */
function NotHere() {
  return (
    <>
      <TopBar />
      <main class="page" id="main">
        <div class="empty">
          <h1>This build is not here</h1>
          <p>It was deleted, or it belongs to somebody else.</p>
          <Link to="/" class="button primary">All builds</Link>
        </div>
      </main>
    </>
  );
}

function terminal(job: Job, preview: string, resume: () => void): { unavailable: string | null; onResume: (() => void) | null } {
  if (preview === "expired" || preview === "resume_failed") return { unavailable: "The sandbox of this build is gone.", onResume: null };
  if (job.sandbox_paused) return { unavailable: "The terminal works while the preview is awake.", onResume: resume };
  if (!job.sandbox_id) {
    const text = isFinished(job.status) ? "This build has no sandbox any more." : "The sandbox is being prepared.";
    return { unavailable: text, onResume: null };
  }
  return { unavailable: null, onResume: null };
}

interface BuildActions {
  rebuild: () => void;
  pausePreview: () => void;
  ask: (question: Question) => void;
  again: () => Promise<void>;
}

function actions(job: Job, { rebuild, pausePreview, ask, again }: BuildActions): MenuItem[] {
  const items: MenuItem[] = [];
  if (job.status === "ready" && !job.sandbox_paused && job.sandbox_id) {
    items.push({ title: "Let the preview sleep", action: pausePreview });
  }
  if (!isFinished(job.status)) {
    return [{
      title: "Cancel build",
      action: () => ask({
        title: "Cancel this build?",
        text: "The model stops. The files it has written so far are saved.",
        yes: "Cancel build",
        no: "Keep building",
        danger: true,
        action: async () => {
          await api.cancel(job.job_id);
          await again();
        },
      }),
    }];
  }
  items.push({ title: "Rebuild", action: rebuild });
  items.push({
    title: "Delete build",
    danger: true,
    action: () => ask({
      title: "Delete this build?",
      text: "Its preview, its files with all snapshots, its timeline and its screenshots go with it. This can't be undone. What it cost stays in your usage.",
      yes: "Delete",
      danger: true,
      action: async () => {
        await api.remove(job.job_id);
        go("/");
      },
    }),
  });
  return items;
}
