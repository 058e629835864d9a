// Icons, drawn on one grid of 24 with one stroke.

const PATHS = {
  back: "M15 5l-7 7 7 7",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  chevron: "M9 6l6 6-6 6",
  terminal: "M5 7l5 5-5 5M12 17h7",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  folder: "M3 6.5h6l2 2.5h10v10.5H3z",
  pencil: "M4 20l1-4L16.5 4.5l3 3L8 19zM14 7l3 3",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5L20 20",
  camera: "M4 8h4l1.5-2.5h5L16 8h4v11H4zM12 10.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  save: "M12 4v10M8 10.5l4 4 4-4M5 19.5h14",
  rotate: "M19 12a7 7 0 1 1-2.3-5.2M19 4v4h-4",
  move: "M4 9h14M14.5 5.5L18 9l-3.5 3.5M20 15H6",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4.5l3 2",
  commit: "M12 8.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM3 12h5.5M15.5 12H21",
  flag: "M6 21V4h11l-2 4 2 4H6",
  alert: "M12 4L2.5 20h19zM12 10v4.5M12 17v.5",
  coin: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM14.5 9.5c-.6-.9-1.5-1.3-2.5-1.3-1.5 0-2.5.700-2.5 1.8 0 2.7 5.2 1.2 5.2 4 0 1.2-1.2 1.9-2.7 1.9-1.2 0-2.2-.5-2.8-1.4M12 6.7v1.5M12 15.9v1.5",
  dot: "M12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  layers: "M12 4l9 4.5-9 4.5-9-4.5zM4 12.5l8 4 8-4M4 16.5l8 4 8-4",
  outside: "M9 5H5v14h14v-4M13 5h6v6M19 5l-9 9",
  reload: "M19 12a7 7 0 1 1-2.3-5.2M19 4v4h-4",
  question: "M9 9.5a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.1-1.5 2.4M12 17.5v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  dots: "M6 12h.01M12 12h.01M18 12h.01",
  plus: "M12 5v14M5 12h14",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class={`icon icon-${name}`} width={size} height={size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo({ size = 26 }: { size?: number }) {
  return (
    <svg class="logo" width={size} height={size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <rect class="logo-tile" width="24" height="24" rx="6.5" />
      <path class="logo-wave" d="M4.5 10.5c2.5-2.8 5-2.8 7.5 0s5 2.8 7.5 0" />
      <path class="logo-bar" d="M6 16.3h12" />
    </svg>
  );
}
