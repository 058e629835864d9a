//! The two Connect services of a sandbox, generated from `proto/`. Each package contains the
//! messages, the server trait and, with the feature `client`, the client.

#![allow(unsafe_code, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
#![allow(refining_impl_trait)]

connectrpc::include_generated!();
