import type { TimelineImage } from "./fold";

/** Images side by side, wide and narrow ones at one height. */
export function Images({ images }: { images: TimelineImage[] }) {
  return (
    <div class="images">
      {images.map((image) => (
        <a key={image.url} href={image.url} target="_blank" rel="noopener noreferrer">
          <img
            src={image.url}
            alt={image.device ? `Screenshot, ${image.device}` : "Screenshot"}
            loading="lazy"
            {...(image.width && image.height ? { width: image.width, height: image.height } : {})}
          />
        </a>
      ))}
    </div>
  );
}
