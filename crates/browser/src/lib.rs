//! Pictures of a sandbox's pages, taken by a headless Chromium that can reach nothing else.
//!
//! ```text
//! Browser ── capture ──> Chromium, as a user without rights, its own sandbox on,
//!    │                   in a network namespace that has loopback only, and in a root
//!    │                   with the system's programs, its profile and no other process
//!    │                        │ the only listener there
//!    └── Gate (proxy) <───────┘
//!          │ one origin, else 403 and a line in the list
//!          └──> the sandbox's preview, through the edge
//! ```
//!
//! Knows nothing of sandboxes, tools or models: an origin, where its traffic goes, and what to do with the pictures.
//!
//! The DevTools protocol is spoken by two hundred lines of our own over the browser's pipe; see `cdp` for why.

mod bound;
mod breaker;
mod browser;
mod capture;
mod cdp;
mod config;
mod error;
pub mod link;
mod origin;
mod page;
mod picture;
mod process;
mod profile;
mod proxy;
pub mod retention;
pub mod store;
mod sys;
mod visit;

pub use browser::Browser;
pub use capture::{BlockReason, BlockedRequest, Capture, CaptureRequest, Shot, Viewport};
pub use config::{BrowserConfig, Deadlines, RunAs};
pub use error::{BrowserError, CaptureError};
pub use origin::{InvalidOrigin, Origin, Upstream};
pub use process::try_own_root;
