//! The template `base`: built from the host, and built again when the host changes.
//!
//! A skeleton is built in a temporary directory and gets its name by an atomic rename, so that an
//! incomplete one is never used. Its name is the fingerprint of its inputs. An outdated one stays
//! until no volume was booted from it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::warn;

use super::{MountPlan, Template, copies, skeleton};
use crate::error::NamespacesError;
use crate::privilege::Privilege;
use crate::removal;

/// How long the last check of the host is valid: a check takes about a millisecond, and every
/// create needs one.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Where the certificates are, by distribution.
const CERTIFICATES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Variables for programs that bring certificates of their own.
const CERTIFICATE_VARIABLES: &[&str] =
    &["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"];
/// Package databases, shown live, or copied for the reason in [`copies`].
pub(super) const PACKAGE_VIEWS: &[&str] = &["/var/lib/dpkg", "/var/lib/apt"];

/// Builds and caches the template.
#[derive(Debug)]
pub(crate) struct BaseTemplate {
    layers: PathBuf,
    privilege: Privilege,
    current: Mutex<Option<(Instant, Template)>>,
}

impl BaseTemplate {
    /// `layers` is the directory of skeletons; removes what an interrupted build left there.
    pub(crate) fn open(layers: PathBuf, privilege: Privilege) -> io::Result<Self> {
        fs::create_dir_all(&layers)?;
        for entry in fs::read_dir(&layers)? {
            let entry = entry?;
            if let Some(name) = entry.file_name().to_str().filter(|name| name.starts_with('.'))
                && let Err(error) = removal::remove_tree(&layers, name)
            {
                warn!(layer = %entry.path().display(), %error, "what an interrupted build left stays");
            }
        }
        Ok(Self { layers, privilege, current: Mutex::new(None) })
    }

    /// The template, if the host was checked a short time ago. Does not block.
    pub(crate) fn checked(&self) -> Option<Template> {
        let current = self.current.try_lock()?;
        current.as_ref().filter(|(seen, _)| seen.elapsed() < CHECK_INTERVAL).map(|(_, template)| template.clone())
    }

    /// The template for the host as it is. `in_use` lists the skeletons that sandboxes were booted
    /// from.
    /// If it fails, no skeleton is removed.
    pub(crate) fn get(
        &self,
        in_use: impl FnOnce() -> Result<HashSet<PathBuf>, NamespacesError>,
    ) -> io::Result<Template> {
        // Locked while building: concurrent callers want the same one.
        let mut current = self.current.lock();
        if let Some((seen, template)) = &*current
            && seen.elapsed() < CHECK_INTERVAL
        {
            return Ok(template.clone());
        }
        let host = Path::new("/");
        let name = format!("base-{:016x}", skeleton::fingerprint(host, self.privilege).value());
        let layer = self.layers.join(&name);
        if !layer.is_dir() {
            let draft = format!(".{name}");
            let unfinished = self.layers.join(&draft);
            // A build that failed may have left a part that could not be removed then.
            removal::remove_tree(&self.layers, &draft)?;
            fs::create_dir(&unfinished)?;
            // Synced before it has its name: a layer with that name is never built again, so it
            // must not have files that a power cut left empty.
            let built = skeleton::build(host, &unfinished, self.privilege).and_then(|()| sync_file_system(&unfinished));
            built.and_then(|()| durable::rename(&unfinished, &layer)).inspect_err(|_| {
                // The error of the build is the one to return.
                let _ = fs::remove_dir_all(&unfinished);
            })?;
            match in_use() {
                Ok(in_use) => self.remove_others(&layer, &in_use),
                Err(error) => warn!(%error, "skeletons of earlier templates stay: which are in use is unknown"),
            }
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
                // Removal is retried at the next change.
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// One `syncfs` instead of an `fsync` per file: there are hundreds.
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
        // With what the layer hides of them, and with copies where programs that change files in
        // place must own them.
        let above = copies::layer_path(layer, Path::new(at));
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
    // Without it programs treat text as bytes.
    env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
    Template { mounts, env }
}
