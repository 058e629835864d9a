//! What stages begin with: a template, an earlier stage, an image of a registry or of an archive, a tree of files.
//!
//! An image is unpacked once, into files that the cache keeps under the image's own digest; a build begins with a copy of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::NewRoot;
use images::{
    ArchiveImage, Credentials, ImageConfig, ImageError, Limits, Mirrors, Owners, RegistryImage, Unpacked, unpack_files,
};

use super::layers::Layer;
use super::runner::{Failed, Reporter};
use super::uploads::Uploads;
use crate::faults::Point;
use crate::id::FilesId;
use crate::log::LogLevel;
use crate::owner::chain;
use crate::ports::{Fill, RootError};
use crate::template::{Defaults, Resolved};
use crate::world::World;

/// Files of one image; Debian has some hundred thousand at most.
const MOST_ENTRIES: u64 = 4_000_000;

/// What a stage begins with, as it was asked for.
#[derive(Debug, Clone)]
pub enum Origin {
    Template(Resolved),
    /// An earlier stage.
    Stage(usize),
    Image {
        name: String,
        credentials: Option<Credentials>,
    },
    /// What was uploaded under this hash.
    Archive {
        hash: String,
        format: ArchiveFormat,
    },
}

/// What an uploaded archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    Image,
    Files,
}

/// What a stage begins with, found.
pub(super) struct Found {
    pub(super) source: Source,
    /// Names the state of the files.
    pub(super) key: String,
    pub(super) settings: Defaults,
}

/// Where the files are.
pub(super) enum Source {
    /// None: nothing but the base.
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
            RootError::Image(error) => error.into(),
        }
    }
}

/// Finds out what `origin` is, without bringing it here. `earlier` are the ends of the stages before.
pub(super) async fn find(
    world: &World,
    template: &str,
    origin: &Origin,
    earlier: &[(String, Defaults)],
) -> Result<Found, Failed> {
    match origin {
        Origin::Template(resolved) => {
            // What a template starts is not started while another is built on it.
            let settings = Defaults { start_command: None, ready_command: None, ..resolved.defaults.clone() };
            Ok(Found { source: Source::Files(resolved.files.clone()), key: resolved.build.to_string(), settings })
        }
        Origin::Stage(stage) => {
            let (key, settings) = earlier.get(*stage).cloned().ok_or_else(|| Failed::new("there is no such stage"))?;
            Ok(Found { source: Source::Stage(*stage), key, settings })
        }
        Origin::Image { name, credentials } => {
            let mirrors = Mirrors(world.config.registry_mirrors.clone());
            let image = RegistryImage::find(name, credentials.as_ref(), &mirrors, engine::net::is_public).await?;
            let (key, settings) = described(image.config());
            Ok(Found { source: Source::Registry(Box::new(image)), key, settings })
        }
        Origin::Archive { hash, format } => {
            let missing = || Failed::new("the archive to begin with was not uploaded");
            let path = world.builds.uploads.path(template, hash).filter(|path| path.is_file()).ok_or_else(missing)?;
            if *format == ArchiveFormat::Files {
                // Its client's own hash, which is good for this template only.
                let key = format!("files {template} {hash}");
                return Ok(Found { source: Source::Tree(path), key, settings: Defaults::default() });
            }
            let image = blocking(move || ArchiveImage::open(&path)).await?;
            let (key, settings) = described(image.config());
            Ok(Found { source: Source::Archive(image), key, settings })
        }
    }
}

fn described(config: &ImageConfig) -> (String, Defaults) {
    // Of whoever the image was made for; sandboxes have users of their own.
    let own = |name: &String| !["HOME", "USER", "LOGNAME"].contains(&name.as_str());
    let env: BTreeMap<String, String> = config.env.clone().into_iter().filter(|(name, _)| own(name)).collect();
    (format!("image {}", config.digest), Defaults { env, ..Defaults::default() })
}

/// The files that a stage begins with, brought here if they are not. `stages` are those of the stages before.
pub(super) async fn provide(
    world: &World,
    template: &str,
    found: Found,
    stages: &[Option<FilesId>],
    reporter: &Reporter<'_>,
) -> Result<Option<FilesId>, Failed> {
    match found.source {
        Source::Files(files) => return Ok(files),
        Source::Stage(stage) => return Ok(stages.get(stage).cloned().flatten()),
        _ => {}
    }
    let pulling = world.builds.pulling(&found.key);
    let _turn = pulling.lock().await;
    if let Some(files) = world.builds.layers.find(&found.key) {
        world.builds.layers.touch(&found.key, world.clock.now()).await?;
        return Ok(Some(files));
    }
    let limit = u64::from(world.config.max_image_mb) << 20;
    let limits = Limits { bytes: limit, entries: MOST_ENTRIES };
    let files = FilesId::random();
    let (sender, told) = std::sync::mpsc::channel::<Unpacked>();
    let mut done = move |unpacked: Unpacked| sender.send(unpacked).unwrap_or_default();
    let draft = world.builds.uploads.draft(template).await.map_err(|error| no_place(&error))?;
    let fill: Fill = match found.source {
        Source::Registry(image) => {
            std::fs::create_dir(draft.path()).map_err(|error| no_place(&error))?;
            let place = draft.path().to_owned();
            let tell = |line: String| reporter.write(LogLevel::Info, &line);
            Uploads::check_room(&place, image.bytes()).map_err(|error| Failed::new(chain(&error)))?;
            image.download(&place, limit, &tell).await?;
            Box::new(move |root| image.unpack(&place, &root.path, owners(root), limits).map(&mut done))
        }
        Source::Archive(image) => Box::new(move |root| image.unpack(&root.path, owners(root), limits).map(&mut done)),
        Source::Tree(path) => {
            Box::new(move |root| unpack_files(&path, &root.path, owners(root), limits).map(&mut done))
        }
        Source::Files(_) | Source::Stage(_) => return Err(Failed::new("these files are here already")),
    };
    reporter.write(LogLevel::Info, "unpacking the image");
    let lacks = world.engine.make_root(&files, limit, fill).await?;
    drop(draft);
    world.faults.pass(Point::BuildRootMade);
    if let Ok(unpacked) = told.try_recv() {
        report(&unpacked, reporter);
    }
    for what in lacks {
        reporter.write(LogLevel::Warn, &format!("the image has no {what}"));
    }
    let layer = Layer { key: found.key, files: files.clone(), used_at: world.clock.now() };
    let unused = world.builds.layers.put(layer, false).await;
    world.remove_unused(unused.as_deref().unwrap_or(std::slice::from_ref(&files))).await;
    unused?;
    world.faults.pass(Point::BuildRootRecorded);
    Ok(Some(files))
}

fn owners(root: &NewRoot) -> Owners {
    root.first_id.map_or(Owners::Ours, Owners::From)
}

fn report(unpacked: &Unpacked, reporter: &Reporter<'_>) {
    let Unpacked { entries, devices, strangers } = unpacked;
    reporter.write(LogLevel::Info, &format!("{entries} files and directories"));
    if *devices > 0 {
        reporter.write(LogLevel::Warn, &format!("{devices} devices were left out: a sandbox has its own /dev"));
    }
    if *strangers > 0 {
        reporter.write(LogLevel::Warn, &format!("{strangers} files have owners above 65535 and now belong to nobody"));
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
