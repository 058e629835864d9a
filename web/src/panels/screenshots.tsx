// The screenshots of the app: desktop and mobile of one moment side by side, the newest first.

import { useState } from "preact/hooks";
import { api } from "../api";
import { moment } from "../format";
import { useLoaded } from "../hooks";
import { Problem, Waiting } from "../parts/spinner";
import { moments } from "./moments";

export function ScreenshotsPanel({ job, version }: { job: string; version: number }) {
  const [loaded, again] = useLoaded(job, () => api.screenshots(job), version);
  const [chosen, setChosen] = useState(0);
  if (loaded.state === "loading") return <Waiting what="Loading screenshots…" />;
  if (loaded.state === "failed") return <Problem message={loaded.message} onRetry={() => void again()} />;
  const groups = moments(loaded.value);
  const group = groups[Math.min(chosen, groups.length - 1)];
  if (!group) return <div class="empty"><p>No screenshots yet. They are taken after each phase, when the model looks at the app, and when it is ready.</p></div>;
  return (
    <div class="shots">
      <label class="field inline">
        <span>Taken</span>
        <select value={String(chosen)} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
          {groups.map((each, index) => (
            <option key={each[0]!.id} value={String(index)}>{moment(each[0]!.taken_at)}{each[0]!.reason ? `, ${each[0]!.reason}` : ""}</option>
          ))}
        </select>
      </label>
      <div class="shots-pair">
        {(["desktop", "mobile"] as const).map((device) => {
          const shot = group.find((each) => each.device === device);
          return (
            <figure key={device} class={device}>
              {shot ? (
                <a href={shot.url} target="_blank" rel="noopener noreferrer">
                  <img src={shot.url} width={shot.width} height={shot.height} alt={`The app on ${device === "desktop" ? "a wide screen" : "a phone"}`} />
                </a>
              ) : <span class="blank">Not taken</span>}
              <figcaption class="soft small">{device === "desktop" ? "Desktop" : "Mobile"}{shot ? `, ${shot.width} × ${shot.height}` : ""}</figcaption>
            </figure>
          );
        })}
      </div>
    </div>
  );
}
