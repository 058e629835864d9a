//! Errors with their causes.

use std::error::Error;

/// Formats an error and its causes as one line, for logs and one-line outputs.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        next = error.source();
        // A transparent error repeats the text of its cause.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
