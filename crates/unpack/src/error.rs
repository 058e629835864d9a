//! Why an image cannot be had.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("'{0}' is no name of an image")]
    Name(String),
    /// Absent, or hidden from this client.
    #[error("image '{image}' cannot be pulled: {cause}")]
    Registry { image: String, cause: String },
    /// Another one for this machine may exist.
    #[error("the image is for {found}, and this machine runs {wanted}")]
    Platform { found: String, wanted: String },
    #[error("this is no image: {0}")]
    Malformed(String),
    /// What arrived is not what was announced.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest { what: String, expected: String, found: String },
    /// What an honest image never holds.
    #[error("refused: {0}")]
    Hostile(String),
    #[error("the image is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the image holds more than {0} files")]
    TooMany(u64),
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    /// Nothing of the image was read. `sandbar doctor` tries the same.
    #[error("the process that reads images cannot be confined: cannot {step}")]
    Confinement { step: String, source: io::Error },
    /// Nothing of what it wrote is of use.
    #[error("the process that reads the image {0}")]
    Process(String),
}

impl ImageError {
    /// Turns an error of the kernel into one that says what was attempted.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| match source.downcast::<Self>() {
            // Found out while reading.
            Ok(own) => own,
            Err(source) => Self::Io { what, source },
        }
    }
}
