//! Tests the server through its protocol, with real clients and raw lines, on streams and over
//! HTTP. The sandbox is the in-memory double, except where an agent loop works in it too;
//! `crates/sandbar/tests/system` tests the program with real sandboxes.

mod calls;
mod http;
mod lifecycle;
mod protocol;
mod shared;
mod support;
