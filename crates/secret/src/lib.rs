//! Values that stay hidden: a type that carries one without showing it, a mask for texts, and a
//! search for files that must not contain any.
//!
//! Knows nothing of sandboxes, stores or models.
#![forbid(unsafe_code)]

mod mask;
mod plain;
mod search;
mod value;

pub use mask::{HIDDEN, Mask, MaskStream};
pub use search::{EnvValues, ValueSearch};
pub use value::Secret;
