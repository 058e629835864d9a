//! The launcher: a short-lived, single-threaded process that turns a specification into a running sandbox.
//!
//! ```text
//! server ──spawn──▶ launcher ──clone──▶ first process (new namespaces, no ids yet)
//!    │ specification,   │ ids, "you are somebody" ──▶ │ becomes root of the sandbox, makes /proc, /dev, …
//!    │ descriptors ───▶ │ layers, overlays ────────▶ │ enters the new root, locks itself down
//!    │ ◀── reports ─────┘ ends                        │ ──exec──▶ the guest
//! ```
//!
//! Whoever dies on the way takes the rest along: the first process ends when the launcher's end of their channel closes before
//! the overlays have come, the server notices both by its channel, and the cgroup, in which all of this happens, covers what is
//! left. The server is the parent of the first process, so a machine whose process 1 reaps nothing fills with no zombies.
//!
//! It is an executable of its own, static and small, since a boot copies and tears down its memory twice. The library is what
//! the engine, which carries that executable, shares with it: what travels between them, and the few kernel calls that both make.

mod capabilities;
mod failure;
mod handover;
mod inside;
mod landlock;
mod launch;
mod overlay;
mod pseudo;
mod seccomp;
pub mod spec;
mod stopwatch;
mod sys;
pub mod trial;
pub mod users;

pub use self::launch::launch;
pub use self::stopwatch::Stopwatch;
pub use self::sys::loopback::bring_up_loopback;
pub use self::sys::namespace::unshare_mounts;
pub use self::sys::tun::open as open_tun;

/// The first argument that makes the program act as launcher: [`launch`].
pub const LAUNCH: &str = "launch";
/// The first argument that makes the program keep a user namespace: [`users::hold`].
pub const HOLD: &str = "hold";
/// The first argument that makes the program try what a launch needs: [`trial::child_main`].
pub const TRY: &str = "try";
