// Addresses of frames.

/**
 * The URL that a page of `protocol` can show in a frame. A page over https can embed nothing over
 * http, except from this machine; the server of a preview speaks both on one port.
 */
export function framed(url: string, protocol: string): string {
  if (protocol !== "https:" || !url.startsWith("http://")) return url;
  const { hostname } = new URL(url);
  return hostname.endsWith(".localhost") ? url : url.replace("http://", "https://");
}
