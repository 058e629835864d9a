//! The system's store of trusted authorities: a directory of certificates, and a program that
//! updates the bundles from it.

use anyhow::{Context, bail};
use ca::Authority;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of the administrator's certificates, with the commands that apply an added or a
/// removed file.
const KNOWN: [Store; 2] = [
    // Debian, Ubuntu.
    Store {
        directory: "/usr/local/share/ca-certificates",
        added: &["update-ca-certificates"],
        // Without `--fresh`, links to removed files stay.
        removed: &["update-ca-certificates", "--fresh"],
    },
    // Fedora, Red Hat.
    Store {
        directory: "/etc/pki/ca-trust/source/anchors",
        added: &["update-ca-trust", "extract"],
        removed: &["update-ca-trust", "extract"],
    },
];

/// Prefix of Sandbar's files in the store.
const PREFIX: &str = "sandbar-";

pub(super) struct Store {
    directory: &'static str,
    added: &'static [&'static str],
    removed: &'static [&'static str],
}

/// What was changed, with a message for the user.
pub(super) struct Change {
    pub message: String,
    pub changed: bool,
}

impl Store {
    pub(super) fn find() -> anyhow::Result<Self> {
        KNOWN.into_iter().find(|store| Path::new(store.directory).is_dir()).context(
            "this system has no store of certificates that Sandbar knows (looked for \
             /usr/local/share/ca-certificates and /etc/pki/ca-trust/source/anchors); install ca-certificates, or import \
             what `sandbar trust` prints by the system's own means",
        )
    }

    /// The path of the authority in the store, if it is installed.
    pub(super) fn installed(&self, authority: &Authority) -> Option<PathBuf> {
        let file = self.file(authority);
        fs::read_to_string(&file).is_ok_and(|found| found == authority.certificate_pem()).then_some(file)
    }

    pub(super) fn install(&self, authority: &Authority) -> anyhow::Result<Change> {
        let file = self.file(authority);
        let already = self.installed(authority).is_some();
        if !already {
            // The draft's name ends in `.new`: the update programs read `.crt` and `.pem` only.
            durable::write(&file, authority.certificate_pem().as_bytes(), 0o644)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        // Also when the file exists: an install that was interrupted before this can be repeated.
        run(self.added)?;
        let how = if already { "was there already" } else { "is new" };
        let message = format!(
            "This machine trusts the server's hosts: {} {how}, and `{}` has run.\n\
             Programs that are running may have to be started again. `sandbar trust --remove` undoes it.",
            file.display(),
            self.added.join(" ")
        );
        Ok(Change { message, changed: !already })
    }

    pub(super) fn remove(&self, authority: &Authority) -> anyhow::Result<Change> {
        let file = self.file(authority);
        let was_there = match fs::remove_file(&file) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", file.display())),
        };
        run(self.removed)?;
        let mut message = if was_there {
            format!("{} is removed, and `{}` has run.", file.display(), self.removed.join(" "))
        } else {
            format!("This machine did not trust it: {} was not there.", file.display())
        };
        for other in self.others(&file) {
            message.push_str(&format!("\n{} is of another server's data directory, and stays.", other.display()));
        }
        Ok(Change { message, changed: was_there })
    }

    /// The file of an authority. Each data directory has another one.
    fn file(&self, authority: &Authority) -> PathBuf {
        Path::new(self.directory).join(format!("{PREFIX}{}.crt", &fingerprint(authority)[..16]))
    }

    fn others(&self, ours: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.directory) else { return Vec::new() };
        let is_ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) && path.as_path() != ours
        };
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect()
    }
}

fn run(line: &[&str]) -> anyhow::Result<()> {
    let [program, arguments @ ..] = line else { bail!("no program makes this store") };
    let line = line.join(" ");
    // The program is in sbin, which is not on every user's PATH.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let done = Command::new(program).args(arguments).env("PATH", path).output();
    let done = done.with_context(|| format!("cannot run `{line}`; install ca-certificates"))?;
    if !done.status.success() {
        bail!("`{line}` failed ({}): {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// The fingerprint that `openssl x509 -fingerprint -sha256` and browsers show, without colons.
pub(super) fn fingerprint(authority: &Authority) -> String {
    hex::encode(Sha256::digest(authority.certificate_der()))
}
