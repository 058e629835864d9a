//! The server through its protocol: real clients and raw lines, on streams and over HTTP. The sandbox is the tools' double; the
//! program with real sandboxes is tested in `crates/sandbar/tests/system`.

mod calls;
mod http;
mod life;
mod protocol;
mod support;
