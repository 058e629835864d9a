//! Takes screenshots of pages that a sandbox serves, with a headless Chromium that can reach only
//! that sandbox.
//!
//! ```text
//! Browser ── capture ──> Chromium: unprivileged user, its own sandbox enabled,
//!    │                   network namespace with loopback only, own PID namespace,
//!    │                   root with system programs, fonts and its profile
//!    │                        │ the only listener in the namespace
//!    └── OriginProxy <────────┘
//!          │ forwards one origin; answers 403 to the rest and lists it
//!          └──> the sandbox's preview, through the edge
//! ```
//!
//! The crate knows nothing of sandboxes, tools or models: only an origin, its upstream, and a store
//! for screenshots.
//!
//! It speaks the DevTools protocol itself, over the browser's pipe; `cdp` gives the reason.

mod breaker;
mod browser;
mod capture;
mod cdp;
mod config;
mod error;
mod image;
pub mod link;
mod origin;
mod page;
mod process;
mod profile;
mod proxy;
pub mod retention;
pub mod store;
mod sys;
mod tab;

pub use browser::Browser;
pub use capture::{BlockReason, BlockedRequest, Capture, CaptureRequest, PageScreenshot, Viewport};
pub use config::{BrowserConfig, Deadlines, RunAs};
pub use error::{BrowserError, CaptureError};
pub use origin::{InvalidOrigin, Origin, Upstream};
pub use process::check_own_root;
