//! Names of headers exchanged between clients, the edge and the guest, in lower case as `http`
//! requires.

/// The sandbox a request is for.
pub const SANDBOX_ID: &str = "e2b-sandbox-id";
/// The port of that sandbox; [`crate::guest::ENVD_PORT`] is the guest itself.
pub const SANDBOX_PORT: &str = "e2b-sandbox-port";
/// Authorizes requests to ports of a sandbox whose traffic is private.
pub const TRAFFIC_ACCESS_TOKEN: &str = "e2b-traffic-access-token";
/// Authorizes requests to the guest of one sandbox.
pub const ACCESS_TOKEN: &str = "x-access-token";
/// Set by the edge, never by a client: the client's address has already presented a credential of
/// the server or of the sandbox. Interpreter packages send no token with their context calls.
pub const KNOWN_PEER: &str = "sandbar-known-peer";
/// Authorizes requests to the control plane.
pub const API_KEY: &str = "x-api-key";
/// Timeout of a Connect call in milliseconds; on `Start` it limits the process.
pub const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Idle seconds after which a stream sends a keepalive event.
pub const KEEPALIVE_PING_INTERVAL: &str = "keepalive-ping-interval";
/// `x-metadata-<key>: <value>` on an upload becomes metadata of the file.
pub const METADATA_PREFIX: &str = "x-metadata-";
/// The envd version that the guest implements.
pub const ENVD_VERSION: &str = "x-envd-version";
/// Token of the next page of a list.
pub const NEXT_TOKEN: &str = "x-next-token";
/// Number of running sandboxes, on list responses.
pub const TOTAL_RUNNING: &str = "x-total-running";
/// `false` stops the retries of newer SDKs.
pub const SHOULD_RETRY: &str = "should-retry";
/// Deduplicates retried creates.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
