//! A small container image with what a build needs: a static busybox, and a layer with a whiteout.

use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use tar::{Builder, EntryType, Header};

const BUSYBOX: &str = "/usr/bin/busybox";
const APPLETS: &[&str] = &[
    "sh", "id", "mkdir", "chown", "chmod", "tar", "find", "cp", "dirname", "rm", "cat", "grep", "echo", "test", "[",
    "sleep", "env", "ls",
];

pub(crate) struct Image {
    pub(super) layers: Vec<Vec<u8>>,
    pub(super) config: String,
}

pub(super) fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn append(archive: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, content: &[u8]) {
    append_owned(0, archive, kind, path, content);
}

fn append_owned(owner: u64, archive: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    if kind == EntryType::Symlink {
        header.set_size(0);
        return archive.append_link(&mut header, path, String::from_utf8_lossy(content).as_ref()).expect("a link");
    }
    archive.append_data(&mut header, path, content).expect("an entry");
}

impl Image {
    /// Images with different markers have different digests.
    pub(crate) fn new(marker: &str) -> Self {
        Self::with_layer(marker, Vec::new())
    }

    /// Adds `third` as a third layer unless it is empty. It is a tar archive, used unchanged.
    pub(crate) fn with_layer(marker: &str, third: Vec<u8>) -> Self {
        let busybox = fs::read(BUSYBOX).unwrap_or_else(|error| panic!("{BUSYBOX}: {error}"));
        let (mut first, mut second) = (Builder::new(Vec::new()), Builder::new(Vec::new()));
        append(&mut first, EntryType::Regular, "bin/busybox", &busybox);
        for applet in APPLETS {
            append(&mut first, EntryType::Symlink, &format!("bin/{applet}"), b"busybox");
        }
        append(&mut first, EntryType::Regular, "etc/gone", b"x");
        append(&mut second, EntryType::Regular, "etc/.wh.gone", b"");
        append(&mut second, EntryType::Regular, "etc/marker", marker.as_bytes());
        append_owned(1000, &mut second, EntryType::Regular, "srv/own", b"");
        let mut layers = vec![first.into_inner().expect("an archive"), second.into_inner().expect("an archive")];
        layers.extend((!third.is_empty()).then_some(third));
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "os": "linux", "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": diff_ids },
            "config": { "Env": ["PATH=/bin", "FROM_IMAGE=yes"] },
        });
        Self { layers, config: config.to_string() }
    }

    /// The same image with its layers as gzip, as most registries have them.
    pub(super) fn with_compressed_layers(&self) -> Self {
        let compress = |layer: &Vec<u8>| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            fs::write(file.path(), layer).expect("written");
            let done =
                Command::new("gzip").args(["--no-name", "--stdout"]).arg(file.path()).output().expect("gzip runs");
            assert!(done.status.success(), "{done:?}");
            done.stdout
        };
        Self { layers: self.layers.iter().map(compress).collect(), config: self.config.clone() }
    }

    pub(super) fn manifest(&self) -> String {
        let of = |kind: &str, bytes: &[u8]| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() });
        let layer = |layer: &Vec<u8>| {
            let is_gzip = layer.starts_with(&[0x1f, 0x8b]);
            of(&format!("application/vnd.oci.image.layer.v1.tar{}", if is_gzip { "+gzip" } else { "" }), layer)
        };
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": of("application/vnd.oci.image.config.v1+json", self.config.as_bytes()),
            "layers": self.layers.iter().map(layer).collect::<Vec<_>>(),
        })
        .to_string()
    }

    fn blobs(&self) -> Vec<Vec<u8>> {
        let texts = [self.config.clone().into_bytes(), self.manifest().into_bytes()];
        self.layers.iter().cloned().chain(texts).collect()
    }

    /// Writes the archive that `docker save` writes.
    pub(crate) fn save(&self, path: &Path) {
        let mut archive = Builder::new(Vec::new());
        let name = |bytes: &[u8]| format!("blobs/sha256/{}", &digest(bytes)[7..]);
        for blob in self.blobs() {
            append(&mut archive, EntryType::Regular, &name(&blob), &blob);
        }
        let layers: Vec<String> = self.layers.iter().map(|layer| name(layer)).collect();
        let manifest = json!([{ "Config": name(self.config.as_bytes()), "RepoTags": ["x:1"], "Layers": layers }]);
        append(&mut archive, EntryType::Regular, "manifest.json", manifest.to_string().as_bytes());
        fs::write(path, archive.into_inner().expect("an archive")).expect("written");
    }

    /// Writes an OCI layout.
    pub(super) fn write_layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("a directory");
        for blob in self.blobs() {
            fs::write(blobs.join(&digest(&blob)[7..]), &blob).expect("a blob");
        }
        let manifest = self.manifest();
        let index = json!({ "schemaVersion": 2, "manifests": [{ "digest": digest(manifest.as_bytes()), "size": manifest.len() }] });
        fs::write(directory.join("index.json"), index.to_string()).expect("an index");
        fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a mark");
    }
}
