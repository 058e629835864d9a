//! Finds out from a project's files what serves it, when nobody has said so.
//!
//! ```text
//! package.json with next, vite, or a script `dev` or `start`   →  that script, by the package manager of the lock file
//! package.json without one                                     →  node, with the file it names or server.js, index.js, app.js
//! FastAPI( or Flask( in the usual files                         →  uvicorn, flask
//! a Python file that uses http.server                           →  python3 with it
//! index.html                                                    →  python3 -m http.server
//! ```

use std::collections::BTreeMap;

use sdk::{FileError, Sandbox};

use super::{DevServer, DevServerError, node, python};

/// What is read of a project: these, as far as they are there.
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
/// These only need to be there.
const NOTICED: &[&str] = &[
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
/// Whoever has more in one of these files has it from a program.
const LONGEST: u64 = 1024 * 1024;

/// The files of a project that tell what it is: names, and texts of those that are read.
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
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }
}

/// What serves the project in `root`; [`None`] when its files do not tell.
///
/// # Errors
/// When the sandbox could not be asked.
pub async fn detect(sandbox: &Sandbox, root: &str) -> Result<Option<DevServer>, DevServerError> {
    Ok(decide(&read(sandbox, root).await?, None))
}

/// The same from files that were read, as if it were to listen `at` a port, if one is given.
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
                    // Somebody works in the project meanwhile.
                    Err(FileError::NotFound { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
            } else if NOTICED.contains(&name.as_str()) {
                String::new()
            } else {
                continue;
            };
            found.0.insert(name, text);
        }
    }
    Ok(found)
}
