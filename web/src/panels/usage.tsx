import { api } from "../api";
import { modelName, money, quantity, sentence, thousands, unit } from "../format";
import { useLoaded } from "../hooks";
import { Meter } from "../parts/meter";
import { Problem, Waiting } from "../parts/spinner";
import type { Timeline } from "../timeline/fold";

export function UsagePanel({ job, version, context }: { job: string; version: number; context: Timeline["context"] }) {
  const [loaded, again] = useLoaded(job, () => api.usage(job), version);
  if (loaded.state === "loading") return <Waiting what="Loading usage…" />;
  if (loaded.state === "failed") return <Problem message={loaded.message} onRetry={() => void again()} />;
  const { lines, total_usd } = loaded.value;
  return (
    <div class="usage">
      {context && <Meter label="Model's memory in use" used={context.used} limit={context.window} format={thousands} />}
      {lines.length === 0 ? (
        <div class="empty"><p>Nothing has been used yet.</p></div>
      ) : (
        <table>
          <caption class="visually-hidden">What this build has used</caption>
          <thead><tr><th scope="col">What</th><th scope="col" class="figure">Quantity</th><th scope="col" class="figure">Cost</th></tr></thead>
          <tbody>
            {lines.map((line, index) => (
              <tr key={index}>
                <th scope="row">{sentence(line.what)}<span class="soft small"> {line.model ? modelName(line.model) : (line.provider ?? "")}</span></th>
                <td class="figure">{quantity(line.quantity)} <span class="soft">{unit(line.quantity, line.unit)}</span></td>
                <td class="figure">{money(line.cost_usd)}</td>
              </tr>
            ))}
          </tbody>
          <tfoot><tr><th scope="row">Together</th><td /><td class="figure">{money(total_usd)}</td></tr></tfoot>
        </table>
      )}
    </div>
  );
}
