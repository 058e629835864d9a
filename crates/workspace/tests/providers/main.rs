//! Placing sandboxes: with servers that fail on demand, and with a real one as the local provider.

mod books;
mod fallback;
mod health;
mod real;
mod support;
