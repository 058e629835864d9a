// The form that starts a build. A goal is enough; everything else has a default.

import { useState } from "preact/hooks";
import { api, ApiError } from "../api";
import { useAction } from "../hooks";
import { Icon } from "../parts/icon";
import { buildPath, go } from "../route";
import type { ApprovalRule, Dashboard, NewGeneration } from "../wire";

/** Tools that change something, for which a person may want approvals. */
const CHANGING = ["bash", "write_file", "edit_file"];
const NEW = "";

export function NewBuildForm({ dashboard }: { dashboard: Dashboard }) {
  const { busy, problem, run, dismiss } = useAction();
  const [project, setProject] = useState(NEW);
  /** The name that the server refused, because a project has it. */
  const [taken, setTaken] = useState<string | null>(null);
  const credits = dashboard.user.credits;
  const existing = taken === null ? undefined : dashboard.projects.find((each) => each.name === taken);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const build = read(new FormData(event.currentTarget as HTMLFormElement));
    setTaken(null);
    void run(async () => {
      try {
        go(buildPath((await api.start(build)).job_id));
      } catch (error) {
        if (error instanceof ApiError && error.errorType === "project_exists") setTaken(build.name ?? null);
        throw error;
      }
    });
  };
  const choose = (id: string) => {
    setProject(id);
    setTaken(null);
    dismiss();
  };
  return (
    <form class="card new-build" onSubmit={submit} aria-label="New build">
      <label class="field goal">
        <span class="visually-hidden">What should be built?</span>
        <textarea
          name="goal" required rows={3} placeholder="What should be built? For example: a page that shows the time, with a calm background."
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) event.currentTarget.form?.requestSubmit();
          }}
        />
      </label>
      <div class="new-build-row">
        <label class="field inline">
          <span>Project</span>
          <select name="project_id" value={project} onChange={(event) => choose(event.currentTarget.value)}>
            <option value={NEW}>New project</option>
            {dashboard.projects.map((each) => <option key={each.project_id} value={each.project_id}>{each.name}</option>)}
          </select>
        </label>
        {project === NEW && (
          <label class="field inline grow">
            <span class="visually-hidden">Name of the new project</span>
            <input name="name" placeholder="Name of the project" required maxLength={100} autoComplete="off" />
          </label>
        )}
        <span class="spacer" />
        <span class="soft small credits-note">{credits === 0 ? "No build credits left" : "Uses 1 build credit"}</span>
        <button class="button primary" disabled={busy || credits === 0}>{busy ? "Starting…" : "Build"}</button>
      </div>
      {dashboard.models.every((model) => model.startsWith("scripted:")) && (
        <p class="soft small hint">
          No model's key is set, so an example is built, whatever you write. Start Sandbar with ANTHROPIC_API_KEY for your own.
        </p>
      )}
      <details class="more">
        <summary><Icon name="chevron" size={14} />More options</summary>
        <div class="grid-2">
          <label class="field">
            <span>Model</span>
            <input name="model" list="models" placeholder={dashboard.default_model ?? "The server's default"} autoComplete="off" />
            <datalist id="models">{dashboard.models.map((model) => <option key={model} value={model} />)}</datalist>
          </label>
          <label class="field">
            <span>Spend at most, in US dollars</span>
            <input name="budget_usd" type="number" min="0.01" step="0.01" placeholder="No limit" />
          </label>
          <label class="field">
            <span>Start from a repository</span>
            <input name="repo" placeholder="https://…" autoComplete="off" spellcheck={false} />
          </label>
          <label class="field">
            <span>Branch</span>
            <input name="branch" placeholder="Its default" autoComplete="off" spellcheck={false} />
          </label>
          <label class="field full">
            <span>Phases, one a line: files are saved after each</span>
            <textarea name="phases" rows={2} placeholder="One single phase" />
          </label>
          <label class="field">
            <span>Template</span>
            <input name="template" placeholder="base" autoComplete="off" spellcheck={false} />
          </label>
          <label class="choice">
            <input type="checkbox" name="ask" />
            <span>Ask me before it runs commands or changes files</span>
          </label>
        </div>
      </details>
      {problem && (
        <p class="problem" role="alert">
          {problem}
          {existing && (
            <button type="button" class="button small" onClick={() => choose(existing.project_id)}>Build in “{existing.name}”</button>
          )}
        </p>
      )}
    </form>
  );
}

function read(form: FormData): NewGeneration {
  const text = (name: string) => String(form.get(name) ?? "").trim();
  const build: NewGeneration = { goal: text("goal") };
  if (text("name")) build.new_project = true;
  for (const name of ["project_id", "name", "repo", "branch", "model", "template"] as const) {
    if (text(name)) build[name] = text(name);
  }
  const phases = text("phases").split("\n").map((line) => line.trim()).filter(Boolean);
  if (phases.length) build.phases = phases;
  if (text("budget_usd")) build.budget_usd = Number(text("budget_usd"));
  if (form.get("ask")) build.approvals = CHANGING.map((tool): ApprovalRule => ({ tool, decision: "ask" }));
  return build;
}
