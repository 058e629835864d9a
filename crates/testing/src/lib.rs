//! Fixtures that the tests of several crates share: the real server, a real S3 server and a real
//! Postgres, each in a temporary directory and ended together with the test program, also when that
//! is killed; waits with a deadline; simulations from many seeds; what a test needs of its user.
//!
//! Only a dev-dependency. It starts programs, and knows nothing of what the tests check.

mod disk;
mod faulty_disk;
#[cfg(feature = "objects")]
mod faulty_store;
pub mod http;
mod killing;
mod needs;
pub mod postgres;
mod program;
mod s3;
mod server;
pub mod simulation;
mod sys;
mod tied;
#[cfg(feature = "client")]
pub mod trees;
mod user;
mod waiting;

pub use disk::{Disk, PowerCut};
pub use faulty_disk::{DISK_FAULTS, DiskFault, FaultyDisk};
#[cfg(feature = "objects")]
pub use faulty_store::{FaultyStore, ObjectRequest, StoreFault};
pub use killing::{kill_at, wait_to_be_killed};
pub use needs::{is_root, not_run, ran_in_namespaces, test_of, without_namespaces};
pub use program::{program, without_settings};
pub use s3::S3Server;
#[cfg(feature = "client")]
pub use server::client::client;
pub use server::{RunningServer, Server, ServerLaunch, exported};
pub use sys::before_main;
pub use tied::{Tied, signal};
pub use user::{User, as_another_user, remove_directory};
pub use waiting::{SOON, WaitCondition, eventually, eventually_async, repeats};
