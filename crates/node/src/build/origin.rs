//! Origins of stages: a template, an earlier stage, an image from a registry or an archive, or a
//! tree of files.
//!
//! An image is unpacked once, into files that the cache keeps; a build starts from a copy of them.
//! Other templates share what came from a registry, under the digests of the configuration and of
//! the layers as the server downloaded and checked them; what came from an archive is its
//! template's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::{FilesId, Fill, NewRoot, RootError};
use images::{
    ArchiveImage, Credentials, ImageConfig, ImageError, Limits, Mirrors, Owners, RegistryImage, Target, Unpacked,
    cancellation, unpack_files,
};

use super::layers::Layer;
use super::runner::{Failed, Reporter};
use super::uploads::Uploads;
use crate::faults::Point;
use crate::id::new_files_id;
use crate::log::LogLevel;
use crate::owner::chain;
use crate::state::NodeState;
use crate::template::{Defaults, Resolved};

/// Most files of one image; Debian has some hundred thousand.
const MOST_ENTRIES: u64 = 4_000_000;

/// The origin of a stage, as it was requested.
#[derive(Debug, Clone)]
pub enum Origin {
    Template(Resolved),
    /// An earlier stage.
    Stage(usize),
    Image {
        name: String,
        credentials: Option<Credentials>,
    },
    /// The archive that was uploaded under this hash.
    Archive {
        hash: String,
        format: ArchiveFormat,
    },
}

/// The contents of an uploaded archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    Image,
    Files,
}

/// The origin of a stage, resolved.
pub(super) struct ResolvedOrigin {
    pub(super) source: OriginFiles,
    /// Identifies the state of the files.
    pub(super) key: String,
    pub(super) settings: Defaults,
}

/// Where the files of an origin are.
pub(super) enum OriginFiles {
    /// `None` is the base without changes.
    Files(Option<FilesId>),
    Stage(usize),
    Registry(Box<RegistryImage>),
    Archive(ArchiveImage),
    Tree(PathBuf),
}

impl From<ImageError> for Failed {
    fn from(error: ImageError) -> Self {
        Self::new(chain(&error))
    }
}

impl From<RootError> for Failed {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Engine(error) => error.into(),
            RootError::Fill(error) => Self::new(chain(&*error)),
        }
    }
}

/// Resolves `origin` without downloading it. `earlier` are the keys and settings after the stages
/// before.
pub(super) async fn find(
    node_state: &NodeState,
    template: &str,
    origin: &Origin,
    earlier: &[(String, Defaults)],
) -> Result<ResolvedOrigin, Failed> {
    match origin {
        Origin::Template(resolved) => {
            // The start command of a template does not run while another template is built on it.
            let settings = Defaults { start_command: None, ready_command: None, ..resolved.defaults.clone() };
            Ok(ResolvedOrigin {
                source: OriginFiles::Files(resolved.files.clone()),
                key: resolved.build.to_string(),
                settings,
            })
        }
        Origin::Stage(stage) => {
            let (key, settings) = earlier.get(*stage).cloned().ok_or_else(|| Failed::new("there is no such stage"))?;
            Ok(ResolvedOrigin { source: OriginFiles::Stage(*stage), key, settings })
        }
        Origin::Image { name, credentials } => {
            let mirrors = Mirrors(node_state.config.registry_mirrors.clone());
            let image = RegistryImage::find(name, credentials.as_ref(), &mirrors, egress::is_public).await?;
            let key = format!("image {} {}", image.config().digest, image.layers_digest());
            let settings = settings(image.config());
            Ok(ResolvedOrigin { source: OriginFiles::Registry(Box::new(image)), key, settings })
        }
        Origin::Archive { hash, format } => {
            let missing = || Failed::new("the archive to begin with was not uploaded");
            let path =
                node_state.builds.uploads.path(template, hash).filter(|path| path.is_file()).ok_or_else(missing)?;
            // The client chooses the hash, and an archive that took its unpacker over would decide
            // which image the tree is taken for. So both keys are valid for this template only.
            if *format == ArchiveFormat::Files {
                let key = format!("files {template} {hash}");
                return Ok(ResolvedOrigin { source: OriginFiles::Tree(path), key, settings: Defaults::default() });
            }
            let key = format!("archive {template} {hash}");
            let image = blocking(move || ArchiveImage::open(&path)).await?;
            let settings = settings(image.config());
            Ok(ResolvedOrigin { source: OriginFiles::Archive(image), key, settings })
        }
    }
}

fn settings(config: &ImageConfig) -> Defaults {
    // These describe the user that the image was made for; sandboxes have users of their own.
    let own = |name: &String| !["HOME", "USER", "LOGNAME"].contains(&name.as_str());
    let env: BTreeMap<String, String> = config.env.clone().into_iter().filter(|(name, _)| own(name)).collect();
    Defaults { env, ..Defaults::default() }
}

/// Returns the files that a stage starts from and downloads them if necessary. `stages` are the
/// files of the stages before.
pub(super) async fn provide(
    node_state: &NodeState,
    template: &str,
    found: ResolvedOrigin,
    stages: &[Option<FilesId>],
    reporter: &Reporter<'_>,
) -> Result<Option<FilesId>, Failed> {
    match found.source {
        OriginFiles::Files(files) => return Ok(files),
        OriginFiles::Stage(stage) => return Ok(stages.get(stage).cloned().flatten()),
        _ => {}
    }
    let pull_lock = node_state.builds.pull_lock(&found.key);
    let _guard = pull_lock.lock().await;
    if let Some(files) = node_state.builds.layers.find(&found.key) {
        node_state.builds.layers.touch(&found.key, node_state.clock.now()).await?;
        return Ok(Some(files));
    }
    let limit = u64::from(node_state.config.max_image_mb) << 20;
    let limits = Limits { bytes: limit, entries: MOST_ENTRIES };
    let files = new_files_id();
    let (sender, receiver) = std::sync::mpsc::channel::<Unpacked>();
    let mut done = move |unpacked: Unpacked| sender.send(unpacked).unwrap_or_default();
    // Dropped with this future: a cancelled build ends the process that unpacks for it.
    let (cancelled, _alive) = cancellation()?;
    let mut unpack_to = move |root: &NewRoot, unpack: &dyn Fn(&Target<'_>) -> Result<Unpacked, ImageError>| {
        let owners = root.first_id.map_or(Owners::Ours, Owners::From);
        let target = Target { root: &root.path, owners, limits, cancelled: Some(&cancelled), cgroup: &root.cgroup };
        Ok(unpack(&target).map(&mut done)?)
    };
    let draft = node_state.builds.uploads.draft(template).await.map_err(|error| no_place(&error))?;
    let fill: Fill = match found.source {
        OriginFiles::Registry(image) => {
            std::fs::create_dir(draft.path()).map_err(|error| no_place(&error))?;
            let place = draft.path().to_owned();
            let log_line = |line: String| reporter.write(LogLevel::Info, &line);
            Uploads::check_free_space(&place, image.bytes()).map_err(|error| Failed::new(chain(&error)))?;
            image.download(&place, limit, &log_line).await?;
            Box::new(move |root| unpack_to(root, &|target| image.unpack(&place, target)))
        }
        OriginFiles::Archive(image) => Box::new(move |root| unpack_to(root, &|target| image.unpack(target))),
        OriginFiles::Tree(path) => Box::new(move |root| unpack_to(root, &|target| unpack_files(&path, target))),
        OriginFiles::Files(_) | OriginFiles::Stage(_) => return Err(Failed::new("these files are here already")),
    };
    reporter.write(LogLevel::Info, "unpacking the image");
    let lacks = node_state.engine.make_root(&files, limit, fill).await?;
    drop(draft);
    node_state.faults.pass(Point::BuildRootMade);
    if let Ok(unpacked) = receiver.try_recv() {
        report(&unpacked, reporter);
    }
    for what in lacks {
        reporter.write(LogLevel::Warn, &format!("the image has no {what}"));
    }
    let layer = Layer { key: found.key, files: files.clone(), used_at: node_state.clock.now() };
    let unused = node_state.builds.layers.put(layer, false).await;
    node_state.remove_unused(unused.as_deref().unwrap_or(std::slice::from_ref(&files))).await;
    unused?;
    node_state.faults.pass(Point::BuildRootRecorded);
    Ok(Some(files))
}

fn report(unpacked: &Unpacked, reporter: &Reporter<'_>) {
    let Unpacked { entries, devices, strangers } = unpacked;
    reporter.write(LogLevel::Info, &format!("{entries} files and directories"));
    if *devices > 0 {
        reporter.write(LogLevel::Warn, &format!("{devices} devices were left out: a sandbox has its own /dev"));
    }
    if *strangers > 0 {
        reporter.write(LogLevel::Warn, &format!("{strangers} files have owners above 65535 and now belong to 65534"));
    }
}

fn no_place(error: &std::io::Error) -> Failed {
    Failed::new(format!("there is no place for the image: {error}"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, Failed> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(Failed::new(format!("the archive could not be read: {error}"))),
    }
}
