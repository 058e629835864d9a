//! The launcher: a short-lived, single-threaded process that boots one sandbox, in two parts: a
//! preparation, which a spare launcher has done before it is needed, and a specification.
//!
//! ```text
//! server ──spawn──▶ launcher: makes the namespaces, with ids, /dev and /sys, and the mounter
//!    │ specification,   │ files ───────────▶ mounter: layers, overlays ─────┐
//!    │ descriptors ───▶ │ cgroup, clone ───▶ first process, makes /proc ◀───┘
//!    │ ◀── reports ─────┘ ends                │ enters the new root, locks itself down
//!    │                                        │ ──exec──▶ the guest
//! ```
//!
//! When one of the processes dies, the others end: the mounter and the first process exit when
//! their channels to the launcher and to each other close, the server notices each by its channel,
//! and the cgroup contains the first process, which begins in it. The server is the parent of all
//! but the process that makes `/dev` and `/sys`, for which the launcher waits, and reaps them: no
//! zombies accumulate on a machine whose process 1 reaps nothing.
//!
//! It is a separate executable, static and small, because a boot copies and tears down its memory
//! twice. The library contains what the engine, which embeds that executable, shares with it: the
//! messages between them, and the few kernel calls that both make.

mod capabilities;
pub mod confined;
mod failure;
mod handover;
mod inside;
mod landlock;
mod launch;
mod overlay;
mod pseudo;
mod sealed_file;
mod seccomp;
pub mod spec;
mod stage;
mod stopwatch;
mod sys;
pub mod trial;
pub mod users;

pub use self::landlock::usable_version as landlock_version;
pub use self::launch::launch;
pub use self::sealed_file::sealed_file;
pub use self::stopwatch::Stopwatch;
pub use self::sys::loopback::bring_up_loopback;
pub use self::sys::namespace::unshare_mounts;
pub use self::sys::tun::open as open_tun;

/// The first argument that makes the program run as launcher: [`launch`].
pub const LAUNCH: &str = "launch";
/// The first argument that makes the program hold a user namespace: [`users::hold`].
pub const HOLD: &str = "hold";
/// The first argument that makes the program try the steps of a launch: [`trial::child_main`].
pub const TRY: &str = "try";
