// A word that nobody else uses: under it the gateway accepts a submission once, however often it is sent.

/** Works also on a page that did not come over TLS, where the browser has no `randomUUID`. */
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
