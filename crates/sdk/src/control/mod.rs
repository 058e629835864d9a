//! The control plane: sandboxes as objects of the service, by id.

mod create;
mod life;
mod request;

pub use create::{Create, CreateError};
pub use life::{Connect, SandboxError};
pub(crate) use request::Request;
