//! The template `base`: made from the host, made anew when the host changes.
//!
//! A skeleton is built in a temporary directory and takes its place by a rename, so that a half-built one is never seen.
//! Its name is the fingerprint of what it was made from. One that is no longer current stays until no volume was booted from it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::{MountPlan, Template, copies, skeleton};
use crate::removal;
use crate::standing::Standing;

/// How long the host is taken to be as it was last seen: looking takes about a millisecond, and every create asks.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Where the certificates are, by distribution.
const CERTIFICATES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Programs that bring certificates of their own unless one of these names others.
const CERTIFICATE_VARIABLES: &[&str] =
    &["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"];
/// Package databases, shown live, or copied where [`copies`] says why.
pub(super) const PACKAGE_VIEWS: &[&str] = &["/var/lib/dpkg", "/var/lib/apt"];

/// Makes and remembers the template.
#[derive(Debug)]
pub(crate) struct BaseTemplate {
    layers: PathBuf,
    standing: Standing,
    current: Mutex<Option<(Instant, Template)>>,
}

impl BaseTemplate {
    /// `layers` is the directory for skeletons; what an interrupted build left there goes.
    pub(crate) fn open(layers: PathBuf, standing: Standing) -> io::Result<Self> {
        fs::create_dir_all(&layers)?;
        for entry in fs::read_dir(&layers)? {
            let entry = entry?;
            if let Some(name) = entry.file_name().to_str().filter(|name| name.starts_with('.'))
                && let Err(error) = removal::remove_tree(&layers, name)
            {
                warn!(layer = %entry.path().display(), %error, "what an interrupted build left stays");
            }
        }
        Ok(Self { layers, standing, current: Mutex::new(None) })
    }

    /// The template for the host as it is. `in_use` lists the skeletons that sandboxes were booted from.
    pub(crate) fn get(&self, in_use: impl FnOnce() -> HashSet<PathBuf>) -> io::Result<Template> {
        // Held while building: the second who asks wants the same one.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, template)) = &*current
            && seen.elapsed() < LOOK_AGAIN
        {
            return Ok(template.clone());
        }
        let host = Path::new("/");
        let name = format!("base-{:016x}", skeleton::fingerprint(host, self.standing).value());
        let layer = self.layers.join(&name);
        if !layer.is_dir() {
            let unfinished = self.layers.join(format!(".{name}"));
            fs::create_dir(&unfinished)?;
            // Synced before it has its name: a layer with that name is never built again, so it must not have files
            // that a power cut left empty.
            let built = skeleton::build(host, &unfinished, self.standing).and_then(|()| sync_file_system(&unfinished));
            built.and_then(|()| durable::rename(&unfinished, &layer)).inspect_err(|_| {
                // The error of the build is the one to tell.
                let _ = fs::remove_dir_all(&unfinished);
            })?;
            self.remove_others(&layer, &in_use());
        }
        let template = template(host, &layer);
        *current = Some((Instant::now(), template.clone()));
        Ok(template)
    }

    fn remove_others(&self, current: &Path, in_use: &HashSet<PathBuf>) {
        for entry in fs::read_dir(&self.layers).into_iter().flatten().flatten() {
            let path = entry.path();
            let ours = entry.file_name().to_string_lossy().starts_with("base-");
            if ours && path != current && !in_use.iter().any(|used| used.starts_with(&path)) {
                // What cannot be removed now is tried again at the next change.
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// One `syncfs` in place of an `fsync` per file: there are hundreds.
fn sync_file_system(of: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(of)?)?)
}

fn template(host: &Path, layer: &Path) -> Template {
    let view = |at: &str, lowers| MountPlan { at: at.into(), lowers, of_host: true };
    let root = MountPlan { at: "/".into(), lowers: vec![layer.join("root")], of_host: false };
    let mut mounts = vec![root, view("/usr", vec![layer.join("usr"), host.join("usr")])];
    for name in skeleton::SYSTEM_DIRECTORIES {
        let path = host.join(name);
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            mounts.push(view(&format!("/{name}"), vec![path]));
        }
    }
    for at in PACKAGE_VIEWS {
        // With what the layer hides of them, and copies where programs that change them must own what they change.
        let above = copies::of(layer, Path::new(at));
        if above.is_dir() {
            mounts.push(view(at, vec![above, at.into()]));
        } else if Path::new(at).is_dir() {
            mounts.push(view(at, vec![at.into()]));
        }
    }
    let certificates = CERTIFICATES.iter().find(|path| Path::new(path).exists());
    let env = certificates.into_iter().flat_map(|path| {
        CERTIFICATE_VARIABLES.iter().map(move |variable| ((*variable).to_owned(), (*path).to_owned()))
    });
    let mut env: BTreeMap<_, _> = env.collect();
    // Text is UTF-8 everywhere now; without it programs take it for bytes.
    env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
    Template { mounts, env }
}
