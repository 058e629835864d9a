//! An error and its causes in one line, for logs and for those who read only one.

use std::error::Error;

pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        next = error.source();
        // An error that stands for its cause says the same.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
