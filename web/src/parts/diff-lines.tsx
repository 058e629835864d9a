import { useMemo } from "preact/hooks";
import { diff } from "../diff";

interface Props {
  before: string;
  after: string;
  numbers?: boolean;
}

const SIGN = { same: " ", added: "+", removed: "−" };
const WORD = { same: "", added: "added: ", removed: "removed: " };

export function DiffLines({ before, after, numbers = true }: Props) {
  const result = useMemo(() => diff(before, after), [before, after]);
  if (!result.hunks.length) return <p class="soft small pad">No difference.</p>;
  return (
    <div class="diff" tabIndex={0} role="group" aria-label={`${result.added} lines added, ${result.removed} removed`}>
      {result.hunks.map((hunk, index) => (
        <div key={index}>
          {hunk.skipped > 0 && <Skipped count={hunk.skipped} />}
          {hunk.lines.map((line, place) => (
            <div key={place} class={`diff-line ${line.kind}`}>
              {numbers && <span class="number" aria-hidden="true">{line.after ?? line.before}</span>}
              <span class="sign" aria-hidden="true">{SIGN[line.kind]}</span>
              <span class="visually-hidden">{WORD[line.kind]}</span>
              <span class="diff-text">{line.text || " "}</span>
            </div>
          ))}
        </div>
      ))}
      {result.rest > 0 && <Skipped count={result.rest} />}
    </div>
  );
}

function Skipped({ count }: { count: number }) {
  return <div class="diff-skipped">{count} unchanged {count === 1 ? "line" : "lines"}</div>;
}
