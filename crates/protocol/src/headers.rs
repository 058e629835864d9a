//! Names of headers that carry meaning between clients, the edge and the guest, in the lower case that `http` wants.

/// Which sandbox a request is for.
pub const SANDBOX_ID: &str = "e2b-sandbox-id";
/// Which port of that sandbox; [`crate::guest::ENVD_PORT`] is the guest itself.
pub const SANDBOX_PORT: &str = "e2b-sandbox-port";
/// Opens ports of a sandbox whose traffic is private.
pub const TRAFFIC_ACCESS_TOKEN: &str = "e2b-traffic-access-token";
/// Opens the guest of one sandbox.
pub const ACCESS_TOKEN: &str = "x-access-token";
/// Set by the edge, never by a client: the client's address has shown a credential of the server or of
/// the sandbox before. Interpreter packages send no token with the calls about contexts.
pub const KNOWN_PEER: &str = "sandbar-known-peer";
/// Opens the control plane.
pub const API_KEY: &str = "x-api-key";
/// Milliseconds a Connect call may take; on `Start` it bounds the process.
pub const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Seconds of silence after which a stream sends a keepalive event.
pub const KEEPALIVE_PING_INTERVAL: &str = "keepalive-ping-interval";
/// `x-metadata-<key>: <value>` on uploads becomes metadata of the file.
pub const METADATA_PREFIX: &str = "x-metadata-";
/// The envd version that the guest stands for.
pub const ENVD_VERSION: &str = "x-envd-version";
/// Where the next page of a list begins.
pub const NEXT_TOKEN: &str = "x-next-token";
/// How many sandboxes run, on lists.
pub const TOTAL_RUNNING: &str = "x-total-running";
/// `false` stops the retries of newer SDKs.
pub const SHOULD_RETRY: &str = "should-retry";
/// Makes repeated creates one create.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
