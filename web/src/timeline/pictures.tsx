import type { Picture } from "./fold";

/** Pictures beside each other, wide ones and narrow ones at one height. */
export function Pictures({ pictures }: { pictures: Picture[] }) {
  return (
    <div class="pictures">
      {pictures.map((picture) => (
        <a key={picture.url} href={picture.url} target="_blank" rel="noopener noreferrer">
          <img
            src={picture.url}
            alt={picture.device ? `Screenshot, ${picture.device}` : "Screenshot"}
            loading="lazy"
            {...(picture.width && picture.height ? { width: picture.width, height: picture.height } : {})}
          />
        </a>
      ))}
    </div>
  );
}
