//! Programs and certificates that the `base` template takes from the host.

use std::path::{Path, PathBuf};

/// Programs of a `base` sandbox, and the Debian package that installs each on the host.
const PROGRAMS: [(&str, &str); 7] = [
    ("bash", "bash"),
    ("sudo", "sudo"),
    ("git", "git"),
    ("python3", "python3"),
    ("node", "nodejs"),
    ("curl", "curl"),
    ("tput", "ncurses-bin"),
];
/// The search path inside a sandbox.
const SEARCH_PATH: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];
/// What sandboxes see of the host. A link that leads elsewhere is broken inside.
const VISIBLE: [&str; 5] = ["usr", "bin", "sbin", "lib", "etc/alternatives"];
/// Where distributions keep the bundle of certificate authorities.
const TLS_ROOTS: [&str; 4] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
];

/// A program that is missing, and its package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|(program, _)| *program)
}

/// The programs that a sandbox would not find, on the host whose root directory is `root`.
pub(super) fn missing(root: &Path) -> Vec<Missing> {
    let lacks =
        |program: &&(&str, &str)| !SEARCH_PATH.iter().any(|path| is_visible(root, &root.join(path).join(program.0)));
    PROGRAMS.iter().filter(lacks).map(|&(program, package)| Missing { program, package }).collect()
}

fn is_visible(root: &Path, file: &Path) -> bool {
    let (Ok(file), Ok(root)) = (file.canonicalize(), root.canonicalize()) else { return false };
    file.is_file() && VISIBLE.iter().any(|directory| file.starts_with(root.join(directory)))
}

/// The certificate bundle of the host whose root directory is `root`.
pub(super) fn tls_roots(root: &Path) -> Option<PathBuf> {
    let filled = |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0);
    TLS_ROOTS.iter().map(|path| root.join(path)).find(filled)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_program_counts_if_a_sandbox_would_find_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for directory in ["usr/bin", "usr/local/bin", "opt/node/bin"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        symlink("usr/bin", root.join("bin")).unwrap();
        for file in ["usr/bin/bash", "usr/bin/python3.11", "usr/local/bin/git", "opt/node/bin/node"] {
            fs::write(root.join(file), "").unwrap();
        }
        symlink("python3.11", root.join("usr/bin/python3")).unwrap();
        symlink(root.join("opt/node/bin/node"), root.join("usr/bin/node")).unwrap();
        let missing: Vec<_> = missing(root).iter().map(|missing| missing.program).collect();
        assert_eq!(missing, ["sudo", "node", "curl", "tput"], "a link out of the view does not count");
    }

    #[test]
    fn an_empty_bundle_is_none() {
        let root = tempfile::tempdir().unwrap();
        let certs = root.path().join("etc/ssl/certs");
        fs::create_dir_all(&certs).unwrap();
        fs::write(certs.join("ca-certificates.crt"), "").unwrap();
        assert_eq!(tls_roots(root.path()), None);
        fs::write(certs.join("ca-certificates.crt"), "-----BEGIN").unwrap();
        assert_eq!(tls_roots(root.path()), Some(certs.join("ca-certificates.crt")));
    }
}
