//! The step that failed and its error number, in the form that is sent to the server.

use std::io;

/// One failed step of a launch.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

impl Failure {
    /// The peer closed its end of the channel during `step`.
    pub(crate) fn closed(step: &str) -> Self {
        Self { step: step.to_owned(), errno: libc::EPIPE }
    }
}

/// Attaches the name of a step to the error of a result.
pub(crate) trait At<T> {
    fn at(self, step: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure { step: step.to_owned(), errno: error.into().raw_os_error().unwrap_or(libc::EIO) })
    }
}
