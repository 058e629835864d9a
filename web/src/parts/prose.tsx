// A model's text: paragraphs, fenced code, `code` and **strong**. Everything else is shown as text;
// nothing becomes HTML.

import type { ComponentChild } from "preact";
import { memo } from "./memo";

export const Prose = memo(function Prose({ text }: { text: string }) {
  // Odd pieces are between fences; an unclosed fence is code to its end, as it is while it is
  // streamed.
  const pieces = text.split(/^```.*$/m);
  return (
    <div class="prose">
      {pieces.map((piece, index) =>
        index % 2 ? (
          <pre key={index}>{piece.replace(/^\n|\n$/g, "")}</pre>
        ) : (
          piece.split(/\n{2,}/).filter((part) => part.trim()).map((part, place) => <p key={`${index}-${place}`}>{inline(part.trim())}</p>)
        ),
      )}
    </div>
  );
});

function inline(text: string): ComponentChild[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, index) => {
    if (index % 2 === 0) return piece;
    return piece.startsWith("`") ? <code key={index}>{piece.slice(1, -1)}</code> : <strong key={index}>{piece.slice(2, -2)}</strong>;
  });
}
