//! The server through its protocol: real clients and raw lines, on streams and over HTTP. The sandbox is the tools' double, except
//! where a loop works in it too; the program with real sandboxes is tested in `crates/sandbar/tests/system`.

mod calls;
mod http;
mod life;
mod protocol;
mod shared;
mod support;
