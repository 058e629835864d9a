//! The base of a template by `--from`: an image, another template, a directory or an archive on
//! this machine, or a new Debian. Local files are sent as an archive: the server opens no path that
//! a client names.

use anyhow::{Context, bail};
use sdk::Client;
use sdk::templates::{ArchiveFormat, Template};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

/// `SOURCE_DATE_EPOCH`: the same packages give the same bytes, which the server has cached.
const EPOCH: &str = "1700000000";
/// For creating a Debian. Ends a hanging mirror, and leaves time for a slow one.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A base, and the temporary directory that must exist until it was sent.
pub(super) struct Base {
    pub(super) template: Template,
    _place: Option<TempDir>,
}

/// Resolves `from`: `debootstrap:SUITE`, a path, a template of the server, else an image.
pub(super) async fn find(client: &Client, from: &str) -> anyhow::Result<Base> {
    if let Some(suite) = from.strip_prefix("debootstrap:") {
        return bootstrap_debian(suite).await;
    }
    let path = Path::new(from);
    if path.is_dir() {
        return pack_directory(path);
    }
    if path.is_file() {
        let template = Template::from_archive(path, format(path)?);
        return Ok(Base { template, _place: None });
    }
    if from.starts_with(['.', '/']) {
        bail!("--from {from}: there is no such file or directory");
    }
    // A template's name has no dot, so that a name with one is an image's.
    let is_template = !from.contains('.') && client.templates().exists(from).await.unwrap_or(false);
    let template = if is_template { Template::from_template(from) } else { Template::from_image(from) };
    Ok(Base { template, _place: None })
}

/// Packs a directory, which is an OCI layout or a tree of files.
fn pack_directory(path: &Path) -> anyhow::Result<Base> {
    let is_layout = path.join("oci-layout").is_file() && path.join("index.json").is_file();
    let place = tempfile::tempdir()?;
    let archive = place.path().join("files.tar");
    let pack = || -> std::io::Result<()> {
        let mut builder = tar::Builder::new(File::create(&archive)?);
        builder.follow_symlinks(false);
        builder.append_dir_all(".", path)?;
        builder.finish()
    };
    pack().with_context(|| format!("--from {}: it cannot be packed", path.display()))?;
    let format = if is_layout { ArchiveFormat::Image } else { ArchiveFormat::Files };
    Ok(Base { template: Template::from_archive(archive, format), _place: Some(place) })
}

/// Detects the format of an archive: every image has one of these files.
fn format(path: &Path) -> anyhow::Result<ArchiveFormat> {
    let mut archive = tar::Archive::new(File::open(path)?);
    let Ok(entries) = archive.entries_with_seek() else { return Ok(ArchiveFormat::Files) };
    for entry in entries {
        // A compressed archive is a tree of files, since archives of images are not compressed.
        let Ok(entry) = entry else { return Ok(ArchiveFormat::Files) };
        let name = entry.path_bytes();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        if matches!(name, b"manifest.json" | b"index.json" | b"oci-layout") {
            return Ok(ArchiveFormat::Image);
        }
    }
    Ok(ArchiveFormat::Files)
}

/// Creates a Debian on this machine, with the privileges of the caller: the server runs no scripts
/// of packages outside of a sandbox.
async fn bootstrap_debian(suite: &str) -> anyhow::Result<Base> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    if suite.is_empty() || !suite.chars().all(good) {
        bail!("--from debootstrap:{suite}: the name of a suite is missing, such as debootstrap:bookworm");
    }
    let place = tempfile::tempdir()?;
    let archive = place.path().join("debian.tar");
    let include = "--include=bash,sudo,ca-certificates";
    eprintln!("making a Debian {suite}");
    if find_program("mmdebstrap") {
        let mut command = Command::new("mmdebstrap");
        command.args(["--variant=minbase", include, suite]).arg(&archive).env("SOURCE_DATE_EPOCH", EPOCH);
        run(command, "mmdebstrap").await?;
        return Ok(Base { template: Template::from_archive(archive, ArchiveFormat::Files), _place: Some(place) });
    }
    if !find_program("debootstrap") {
        bail!("neither mmdebstrap nor debootstrap is installed; `apt-get install mmdebstrap` brings one");
    }
    let tree = place.path().join("tree");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", include, suite]).arg(&tree);
    run(command, "debootstrap").await?;
    let base = pack_directory(&tree)?;
    Ok(base)
}

async fn run(mut command: Command, name: &str) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).status();
    let Ok(status) = timeout(BOOTSTRAP_TIMEOUT, status).await else {
        bail!("{name} was stopped: it did not end within {} minutes", BOOTSTRAP_TIMEOUT.as_secs() / 60);
    };
    let status = status.with_context(|| format!("{name} cannot be started"))?;
    if !status.success() {
        bail!("{name} failed: {status}");
    }
    Ok(())
}

fn find_program(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]).any(|path| path.join(name).is_file())
}
