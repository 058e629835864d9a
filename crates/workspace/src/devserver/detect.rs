//! Detects the dev server of a project from its files when none is declared.
//!
//! ```text
//! package.json with next, vite, or a script `dev` or `start`  →  that script
//! package.json without one                                    →  node with its entry file
//! FastAPI( or Flask( in the usual files                       →  uvicorn, flask
//! a Python file that uses http.server                         →  python3 with it
//! index.html                                                  →  python3 -m http.server
//! ```

use std::collections::BTreeMap;

use sdk::{FileError, Sandbox};

use super::{DevServer, DevServerError, node, python};

/// The project files whose text is read, if present.
const READ: &[&str] = &[
    "package.json",
    "requirements.txt",
    "pyproject.toml",
    "Pipfile",
    "server.js",
    "server.mjs",
    "index.js",
    "index.mjs",
    "app.js",
    "src/index.js",
    "src/server.js",
    "main.py",
    "app.py",
    "server.py",
    "wsgi.py",
    "asgi.py",
    "api.py",
    "app/main.py",
    "app/__init__.py",
    "src/main.py",
    "src/app.py",
];
/// The project files of which only the presence counts.
const PRESENCE_ONLY: &[&str] = &[
    "index.html",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "bun.lockb",
    "bun.lock",
    "uv.lock",
    "poetry.lock",
];
/// Larger files are generated and are not read.
const LONGEST: u64 = 1024 * 1024;

/// The files that identify a project: names, and the text of those in [`READ`].
#[derive(Debug, Default)]
pub(super) struct ProjectFiles(BTreeMap<String, String>);

impl ProjectFiles {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    #[cfg(test)]
    pub(super) fn from_texts(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }
}

/// Detects the dev server of the project in `root`; [`None`] when the files do not reveal one.
///
/// # Errors
/// [`DevServerError::File`] when the sandbox cannot be read.
pub async fn detect(sandbox: &Sandbox, root: &str) -> Result<Option<DevServer>, DevServerError> {
    Ok(decide(&read(sandbox, root).await?, None))
}

/// Decides from files already read. `at` overrides the port that the server listens on.
pub(super) fn decide(files: &ProjectFiles, at: Option<u16>) -> Option<DevServer> {
    node::decide(files, at).or_else(|| python::decide(files, at))
}

pub(super) async fn read(sandbox: &Sandbox, root: &str) -> Result<ProjectFiles, DevServerError> {
    let root = root.trim_end_matches('/');
    let mut found = ProjectFiles::default();
    for directory in ["", "src", "app"] {
        let listed = match sandbox.files().list(&format!("{root}/{directory}")).await {
            Ok(listed) => listed,
            Err(FileError::NotFound { .. } | FileError::Invalid { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in listed.into_iter().filter(|entry| entry.is_file() && entry.size <= LONGEST) {
            let name = if directory.is_empty() { entry.name.clone() } else { format!("{directory}/{}", entry.name) };
            let text = if READ.contains(&name.as_str()) {
                match sandbox.files().read(&entry.path).await {
                    Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    // Removed since the listing by a process in the sandbox.
                    Err(FileError::NotFound { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
            } else if PRESENCE_ONLY.contains(&name.as_str()) {
                String::new()
            } else {
                continue;
            };
            found.0.insert(name, text);
        }
    }
    Ok(found)
}
