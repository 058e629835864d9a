//! Debian's docker-registry on loopback, which requires a password.

use super::image::{Image, digest};
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testing::{Tied, eventually};

pub(super) const USER: &str = "ci";
pub(super) const PASSWORD: &str = "secret";
/// The bcrypt hash of [`PASSWORD`].
const HASH: &str = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";

pub(super) struct Registry {
    pub(super) address: String,
    _process: Tied,
    directory: TempDir,
}

impl Registry {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").to_string();
        let place = directory.path().display();
        fs::write(directory.path().join("htpasswd"), format!("{USER}:{HASH}\n")).expect("written");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n\
             http: {{addr: \"{address}\"}}\nauth: {{htpasswd: {{realm: test, path: {place}/htpasswd}}}}\n"
        );
        fs::write(directory.path().join("config.yml"), config).expect("written");
        let mut command = Tied::command("KILL", "docker-registry");
        command.arg("serve").arg(directory.path().join("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        let (process, _) = Tied::start(command, "KILL");
        let registry = Self { address, _process: process, directory };
        eventually("docker-registry answers", Duration::from_secs(60), || registry.curl(&["/v2/"]));
        registry
    }

    /// Sends a request and returns the headers and the body. `None` unless the request succeeds.
    fn curl(&self, arguments: &[&str]) -> Option<String> {
        let (path, more) = arguments.split_last()?;
        let url = if path.starts_with("http") { (*path).to_owned() } else { format!("http://{}{path}", self.address) };
        let mut command = Command::new("curl");
        command.args(["-sSfi", "-u", &format!("{USER}:{PASSWORD}")]).args(more).arg(url);
        let done = command.output().expect("curl is installed");
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Uploads `image` as `name:tag`.
    pub(super) fn push(&self, image: &Image, name: &str, tag: &str) {
        let blobs = image.layers.iter().map(Vec::as_slice).chain([image.config.as_bytes()]);
        let file = self.directory.path().join("blob");
        let data = format!("@{}", file.display());
        for blob in blobs {
            fs::write(&file, blob).expect("written");
            let started = self.curl(&["-X", "POST", &format!("/v2/{name}/blobs/uploads/")]).expect("an upload");
            let location = started.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a place").trim();
            let url = format!("{location}&digest={}", digest(blob));
            self.curl(&["-X", "PUT", "-H", "Content-Type: application/octet-stream", "--data-binary", &data, &url])
                .expect("the blob is taken");
        }
        fs::write(&file, image.manifest()).expect("written");
        let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        let path = format!("/v2/{name}/manifests/{tag}");
        self.curl(&["-X", "PUT", "-H", kind, "--data-binary", &data, &path]).expect("the manifest is taken");
    }

    /// Flips a bit of a stored blob, as a broken disk or a hostile registry would.
    pub(super) fn damage(&self, blob: &[u8]) {
        let hash = &digest(blob)[7..];
        let path = format!("data/docker/registry/v2/blobs/sha256/{}/{hash}/data", &hash[..2]);
        let path = self.directory.path().join(path);
        let mut bytes = fs::read(&path).expect("the blob");
        bytes[100] ^= 1;
        fs::write(&path, bytes).expect("written");
    }
}
