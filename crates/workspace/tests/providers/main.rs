//! Placing sandboxes: with servers that fail on demand, and with a real one as the local provider.

mod fallback;
mod health;
mod real;
mod support;
mod usage;
