import { api } from "../api";
import { age, money, quantity } from "../format";
import { useLoaded, useNow, usePoll } from "../hooks";
import { Icon } from "../parts/icon";
import { Link } from "../parts/link";
import { Meter } from "../parts/meter";
import { Problem, Waiting } from "../parts/spinner";
import { StatusBadge } from "../parts/status";
import { TopBar } from "../parts/topbar";
import { buildPath, requestResume } from "../route";
import { isFinished } from "../status";
import type { Dashboard, Job, Project } from "../wire";
import { NewBuildForm } from "./new-build";

const BUSY_MS = 2_000;
const IDLE_MS = 12_000;

export function DashboardPage() {
  const [loaded, again] = useLoaded("dashboard", api.dashboard);
  const working = loaded.state === "loaded" && loaded.value.jobs.some((job) => !isFinished(job.status));
  usePoll(again, working || loaded.state === "failed" ? BUSY_MS : IDLE_MS);
  return (
    <>
      <TopBar>
        {loaded.state === "loaded" && (
          <p class="soft account">
            {loaded.value.user.name}
            <span class="credits" aria-label={`${loaded.value.user.credits} build credits left`}>
              <Icon name="coin" size={15} />{loaded.value.user.credits}<span class="wide-only"> {loaded.value.user.credits === 1 ? "credit" : "credits"}</span>
            </span>
          </p>
        )}
      </TopBar>
      <main class="page" id="main">
        {loaded.state === "loading" && <Waiting what="Loading your builds…" />}
        {loaded.state === "failed" && <Problem message={loaded.message} onRetry={() => void again()} />}
        {loaded.state === "loaded" && <Overview dashboard={loaded.value} />}
      </main>
    </>
  );
}

function Overview({ dashboard }: { dashboard: Dashboard }) {
  const { projects, jobs } = dashboard;
  const now = useNow();
  const groups = projects
    .map((project) => ({ project, builds: of(jobs, project) }))
    .sort((a, b) => newest(b.builds, b.project.created_at) - newest(a.builds, a.project.created_at));
  return (
    <div class="overview">
      <section class="overview-start" aria-labelledby="new-build">
        <h1 id="new-build">New build</h1>
        <NewBuildForm dashboard={dashboard} />
      </section>
      <Usage dashboard={dashboard} />
      <div class="overview-projects">
        {groups.length === 0 && (
          <div class="card empty">
            <h2>Nothing built yet</h2>
            <p>Say above what you would like to have, give it a name and press Build. You can watch every step, and the preview is there when the build is ready.</p>
          </div>
        )}
        {groups.map(({ project, builds }) => (
          <section key={project.project_id} class="project" aria-labelledby={project.project_id}>
            <div class="project-head">
              <h2 id={project.project_id}>{project.name}</h2>
              <p class="soft small">
                {builds.length} {builds.length === 1 ? "build" : "builds"} · {money(project.cost_usd)}
              </p>
            </div>
            {builds.length === 0 && <p class="soft">No builds here. Choose this project above to start one.</p>}
            <ul class="cards">
              {builds.map((job) => <li key={job.job_id}><JobCard job={job} now={now} /></li>)}
            </ul>
          </section>
        ))}
      </div>
    </div>
  );
}

function of(jobs: Job[], project: Project): Job[] {
  return jobs.filter((job) => job.project_id === project.project_id).sort((a, b) => b.build_version - a.build_version);
}

function newest(builds: Job[], fallback: string): number {
  return Math.max(Date.parse(fallback), ...builds.map((job) => Date.parse(job.created_at)));
}

function Usage({ dashboard: { usage } }: { dashboard: Dashboard }) {
  return (
    <aside class="card usage-card" aria-labelledby="usage-title">
      <h2 id="usage-title">Usage</h2>
      <Meter label="This month" used={usage.month_usd} limit={usage.budget_usd} format={money} />
      {usage.plans.map((plan) => (
        <Meter key={`${plan.provider}-${plan.what}`} label={`${plan.provider}: ${plan.what}`} used={plan.used} limit={plan.limit} format={quantity} />
      ))}
      <p class="soft small total">Since the beginning: {money(usage.total_usd)}</p>
    </aside>
  );
}

function JobCard({ job, now }: { job: Job; now: number }) {
  const sleeping = job.status === "ready" && job.sandbox_paused;
  return (
    <article class="card job-card" data-job={job.job_id}>
      <Link to={buildPath(job.job_id)} class="job-link">
        <Cover job={job} sleeping={sleeping} />
        <span class="job-goal">{job.goal}</span>
      </Link>
      <div class="job-line">
        <StatusBadge status={job.status} />
        <span class="soft small job-facts">
          v{job.build_version} · {age(job.created_at, now)} · {money(job.cost_usd)}
        </span>
      </div>
      {job.status === "failed" && job.error_message && <p class="small problem-text clamp-2">{job.error_message}</p>}
      {sleeping && (
        <button type="button" class="button wide" onClick={() => requestResume(job.job_id)}>Resume preview</button>
      )}
    </article>
  );
}

/** The screenshot of a running preview; none while its sandbox is paused. */
function Cover({ job, sleeping }: { job: Job; sleeping: boolean }) {
  if (job.screenshot_url && !sleeping) {
    return <img class="cover" src={job.screenshot_url} alt="" loading="lazy" width={1280} height={800} />;
  }
  const working = !isFinished(job.status);
  return (
    <span class={`cover blank ${working ? "working" : ""}`}>
      {sleeping ? <Icon name="moon" size={22} /> : working ? <span class="soft small">{job.stage_label ?? "Working"}</span> : <Icon name="layers" size={22} />}
    </span>
  );
}
