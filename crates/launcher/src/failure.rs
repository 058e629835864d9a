//! The step that failed and why, in the form in which it travels to the server.

use std::io;

/// One failed step of a launch.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

impl Failure {
    /// The other end went away during `step`.
    pub(crate) fn closed(step: &str) -> Self {
        Self { step: step.to_owned(), errno: libc::EPIPE }
    }
}

/// Names the step that a result belongs to.
pub(crate) trait At<T> {
    fn at(self, step: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure { step: step.to_owned(), errno: error.into().raw_os_error().unwrap_or(libc::EIO) })
    }
}
