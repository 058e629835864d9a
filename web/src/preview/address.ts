// Where a frame looks.

/**
 * What a page of `protocol` can show in a frame. One that came over https may show nothing that comes without, except from this machine
 * itself; the server of a preview speaks both at the same port.
 */
export function framed(url: string, protocol: string): string {
  if (protocol !== "https:" || !url.startsWith("http://")) return url;
  const { hostname } = new URL(url);
  return hostname.endsWith(".localhost") ? url : url.replace("http://", "https://");
}
