//! Files that a checkpoint must not keep, since they contain values of variables.

use std::fmt;

use crate::manifest::FilePath;

/// A file in an archive that contains values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedFile {
    pub path: FilePath,
    /// The variables whose values it contains.
    pub variables: Vec<String>,
}

impl fmt::Display for ExposedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.text(), self.variables.join(", "))
    }
}
