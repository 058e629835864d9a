//! What the tests of several crates share: the real server, a real S3 server and a real Postgres, each in a temporary
//! directory and ending with the test program however that ends; and waits with a deadline.
//!
//! Only ever a dev-dependency. It knows how programs are started, and nothing of what the tests are about.

mod disk;
pub mod postgres;
mod program;
mod s3;
mod server;
mod tied;
mod user;
mod waiting;

pub use disk::{Disk, PowerCut};
pub use program::{program, without_settings};
pub use s3::S3Server;
#[cfg(feature = "client")]
pub use server::client::client;
pub use server::{Launch, Running, Server, exported};
pub use tied::{Tied, signal};
pub use user::{User, as_another_user, remove_directory};
pub use waiting::{eventually, eventually_async, repeats};
