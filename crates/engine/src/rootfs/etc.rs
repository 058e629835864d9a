//! The parts of the host's `/etc` that a sandbox sees: a copy, by allow list.
//!
//! A file must pass three filters: its name is on the list; every user of the host may read it
//! already; and where files of its kind are known to contain credentials, the lines with them are
//! left out.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::fingerprint::Fingerprint;

/// Entries of `/etc`, files or whole directories.
const ALLOWED: &[&str] = &[
    // Package management and what packages configure for others.
    "alternatives",
    "apt/apt.conf.d",
    "apt/keyrings",
    "apt/preferences.d",
    "apt/sources.list",
    "apt/sources.list.d",
    "apt/trusted.gpg",
    "apt/trusted.gpg.d",
    "adduser.conf",
    "debconf.conf",
    "deluser.conf",
    "dpkg",
    "ucf.conf",
    // Identity of the system.
    "debian_version",
    "issue",
    "localtime",
    "locale.alias",
    "locale.conf",
    "locale.gen",
    "lsb-release",
    "os-release",
    "timezone",
    // Loader, names, networks.
    "gai.conf",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "netconfig",
    "networks",
    "nsswitch.conf",
    "protocols",
    "rpc",
    "services",
    // Certificates; private keys are elsewhere, and not every user may read them.
    "ca-certificates",
    "ca-certificates.conf",
    "pki/ca-trust",
    "pki/tls/certs",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    // Sessions.
    "default/locale",
    "default/useradd",
    "inputrc",
    "login.defs",
    "pam.conf",
    "pam.d",
    "security",
    "shells",
    // Languages and tools.
    "bash_completion.d",
    "debuginfod",
    "emacs",
    "fonts",
    "gdb",
    "groff",
    "gtk-2.0",
    "gtk-3.0",
    "ImageMagick-6",
    "ImageMagick-7",
    "java",
    "java-8-openjdk",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "magic",
    "magic.mime",
    "mailcap",
    "manpath.config",
    "maven",
    "mime.types",
    "nanorc",
    "npmrc",
    "perl",
    "php",
    "pip.conf",
    "python3",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "R",
    "rmt",
    "screenrc",
    "sgml",
    "terminfo",
    "texmf",
    "vim",
    "wgetrc",
    "xattr.conf",
    "xdg",
    "xml",
];

/// Never copied, wherever they are.
const FORBIDDEN: &[&str] = &["private", "auth.conf", "auth.conf.d", ".netrc", "settings-security.xml"];

/// Files larger than this are not configuration.
const LARGEST: u64 = 16 << 20;

/// Adds the inputs of [`copy`] to `inputs`.
pub(super) fn describe(etc: &Path, inputs: &mut Fingerprint) {
    for entry in ALLOWED {
        describe_entry(&etc.join(entry), inputs);
    }
}

pub(super) fn describe_entry(path: &Path, inputs: &mut Fingerprint) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    inputs.add(path.as_os_str().as_encoded_bytes());
    // The time of the last status change: it also covers the mode, and no process can set it back.
    inputs.add(format!("{} {} {}", metadata.ctime(), metadata.ctime_nsec(), metadata.ino()).as_bytes());
    if metadata.is_dir() {
        for entry in sorted_entries(path) {
            describe_entry(&path.join(entry), inputs);
        }
    }
}

pub(super) fn sorted_entries(directory: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

/// Copies what is allowed of `etc` into `target`, which exists.
pub(super) fn copy(etc: &Path, target: &Path) -> io::Result<()> {
    for entry in ALLOWED {
        let (from, to) = (etc.join(entry), target.join(entry));
        if from.symlink_metadata().is_ok() {
            fs::create_dir_all(to.parent().expect("an entry lies below its target"))?;
            copy_entry(&from, &to)?;
        }
    }
    Ok(())
}

pub(super) fn copy_entry(from: &Path, to: &Path) -> io::Result<()> {
    let name = from.file_name().unwrap_or_default();
    if FORBIDDEN.iter().any(|forbidden| name == *forbidden) {
        return Ok(());
    }
    // Files that vanish meanwhile belong to a package being changed; the next check of the inputs
    // notices.
    let Ok(metadata) = from.symlink_metadata() else { return Ok(()) };
    if metadata.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    let everybody = if metadata.is_dir() { 0o005 } else { 0o004 };
    if metadata.mode() & everybody != everybody {
        return Ok(());
    }
    if metadata.is_dir() {
        fs::create_dir(to)?;
        for entry in sorted_entries(from) {
            copy_entry(&from.join(&entry), &to.join(&entry))?;
        }
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    } else if metadata.is_file() && metadata.len() <= LARGEST {
        let mut bytes = Vec::new();
        File::open(from)?.take(LARGEST).read_to_end(&mut bytes)?;
        if may_hold_credentials(from) {
            bytes = without_credentials(&bytes);
        }
        fs::write(to, bytes)?;
        fs::set_permissions(to, fs::Permissions::from_mode(metadata.mode() & 0o755))?;
    }
    Ok(())
}

fn may_hold_credentials(path: &Path) -> bool {
    ["npmrc", "pip.conf", "wgetrc", "/apt/sources.list", "/apt/apt.conf.d/", "/maven/", "/usr/local/etc/"]
        .iter()
        .any(|part| path.to_string_lossy().contains(part))
}

/// Leaves out every line with a password in an address (`https://name:secret@host`) or a setting
/// named like a secret. Covers no secret that spans lines; formats with such are not on the list.
fn without_credentials(text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !holds_credential(&String::from_utf8_lossy(line))).collect::<Vec<_>>().concat()
}

fn holds_credential(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let named = ["_auth", "password", "passwd", "token", "secret", "api-key", "apikey", "passphrase"];
    if named.iter().any(|name| lower.contains(name)) {
        return true;
    }
    lower.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', ' ', '"', '\'', '\n', ';']).next().unwrap_or_default();
        authority.contains('@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_credentials_are_left_out() {
        let kept = without_credentials(
            b"[global]\nindex-url = https://me:hunter2@pypi.corp/simple\ncert = /etc/ssl/cert.pem\n//r/:_authToken=abc\n\
              deb https://deb.debian.org/debian a@b main\nAcquire::http::Proxy \"http://u@proxy:3128\";\nhttp_password = x\nend",
        );
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            "[global]\ncert = /etc/ssl/cert.pem\ndeb https://deb.debian.org/debian a@b main\nend"
        );
    }

    #[test]
    fn lines_of_other_encodings_are_filtered_too() {
        let kept = without_credentials(b"# Stra\xdfe\npassword=x\nregistry=https://npm.corp/\n");
        assert_eq!(kept, b"# Stra\xdfe\nregistry=https://npm.corp/\n");
    }

    #[test]
    fn only_listed_files_that_everybody_may_read_are_copied() {
        let host = tempfile::tempdir().unwrap();
        let copied = tempfile::tempdir().unwrap();
        let write = |path: &str, mode: u32| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "text").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("ssl/certs/ca.crt", 0o644);
        write("ssl/certs/host.key", 0o600);
        write("ssl/private/host.key", 0o644);
        write("pam.d/private/x", 0o644);
        write("apt/sources.list.d/a.list", 0o644);
        write("apt/auth.conf", 0o644);
        write("shadow", 0o644);
        write("krb5.keytab", 0o644);
        write("shells", 0o4755);
        symlink("/root/.ssh", host.path().join("localtime")).unwrap();

        copy(host.path(), copied.path()).unwrap();

        let mut found: Vec<_> = files_below(copied.path());
        found.sort();
        assert_eq!(found, ["apt/sources.list.d/a.list", "localtime", "shells", "ssl/certs/ca.crt"]);
        assert_eq!(copied.path().join("shells").metadata().unwrap().mode() & 0o7777, 0o755);
        // A link is copied as a link: inside it leads into the sandbox.
        assert!(copied.path().join("localtime").symlink_metadata().unwrap().is_symlink());
    }

    fn files_below(root: &Path) -> Vec<String> {
        fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), root, found);
                } else {
                    found.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(root, root, &mut found);
        found
    }

    #[test]
    fn a_changed_input_changes_the_description() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir(host.path().join("pam.d")).unwrap();
        let described = || {
            let mut inputs = Fingerprint::new();
            describe(host.path(), &mut inputs);
            inputs
        };
        let before = described();
        assert_eq!(described(), before);
        fs::write(host.path().join("pam.d/sudo"), "x").unwrap();
        assert_ne!(described(), before);
    }
}
