//! Request bodies of a build, and the files it needs.
//!
//! Builds within E2B's protocol use E2B's own call, on any server. Several stages, archives as a
//! base and unpacking use a call under Sandbar's prefix, which other servers refuse. In an extra
//! field of E2B's call, other servers would ignore them and build something else.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use protocol::rest::template::{ArchiveOrigin, BuildStage, BuildStart, StagedBuildStart, Step};

use super::context::{Context, ContextError, Entry, content_hash, hash};
use super::definition::{self, Archive, Base, CopyFiles, Instruction, Template};

/// One copy: its entries, and the hash by which the server knows it.
pub(super) struct CopySource {
    pub(super) files: CopyFiles,
    pub(super) entries: Vec<Entry>,
    pub(super) hash: String,
    /// The source is an archive to unpack.
    unpack: bool,
}

/// The files of a template.
pub(super) struct Files {
    /// Copies from the context by step number, from 0 and across all stages.
    pub(super) copies: BTreeMap<usize, Arc<CopySource>>,
    /// Archives of stage bases, by stage number, with their hashes.
    pub(super) archives: BTreeMap<usize, (String, Archive)>,
}

impl Files {
    /// Whether the build exceeds E2B's own call.
    pub(super) fn needs_stages(&self, template: &Template) -> bool {
        let unpacks = self.copies.values().any(|copied| copied.unpack);
        !template.earlier.is_empty() || !self.archives.is_empty() || unpacks
    }
}

/// Bases and steps of all stages, the template's own last.
fn stages(template: &Template) -> Vec<(&Base, &[definition::Step])> {
    let earlier = template.earlier.iter().map(|stage| (&stage.base, &stage.steps[..]));
    earlier.chain([(&template.base, &template.steps[..])]).collect()
}

/// Selects and hashes all files that the build needs.
pub(super) fn collect_files(template: &Template) -> Result<Files, ContextError> {
    let mut archives = BTreeMap::new();
    for (number, (base, _)) in stages(template).into_iter().enumerate() {
        if let Base::Archive(archive) = base {
            archives.insert(number, (content_hash(&archive.path)?, archive.clone()));
        }
    }
    let steps = stages(template).into_iter().flat_map(|(_, steps)| steps).enumerate();
    let copies = steps.filter_map(|(number, step)| match &step.instruction {
        Instruction::Copy(files) if files.from_stage.is_none() => Some((number, files)),
        _ => None,
    });
    let copies: Vec<_> = copies.collect();
    if copies.is_empty() {
        return Ok(Files { copies: BTreeMap::new(), archives });
    }
    let context = Context::open(&template.context, &template.ignore)?;
    let copied = |(number, files): (usize, &CopyFiles)| {
        let entries = context.select(&files.source)?;
        let hash = hash(&files.source, &files.destination, &entries, files.follow_links)?;
        let unpack = files.unpack && matches!(&entries[..], [only] if is_archive(&only.path));
        Ok((number, Arc::new(CopySource { files: files.clone(), entries, hash, unpack })))
    };
    let copies = copies.into_iter().map(copied).collect::<Result<_, ContextError>>()?;
    Ok(Files { copies, archives })
}

/// Whether a file may be a tar archive, compressed or not. The server checks thoroughly.
fn is_archive(path: &Path) -> bool {
    let mut head = Vec::new();
    let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    let read = is_file && File::open(path).is_ok_and(|file| file.take(512).read_to_end(&mut head).is_ok());
    let compressed: [&[u8]; 4] = [b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
    read && (compressed.iter().any(|magic| head.starts_with(magic)) || head.get(257..262) == Some(b"ustar"))
}

/// The body of E2B's own call.
pub(super) fn build_start(template: &Template, force: bool, files: &Files) -> BuildStart {
    let (from_image, from_template) = match &template.base {
        Base::Image(image) => (Some(image.clone()), None),
        Base::Template(name) => (None, Some(name.clone())),
        Base::Stage(_) | Base::Archive(_) => (None, None),
    };
    BuildStart {
        from_image,
        from_template,
        from_image_registry: template.registry.clone(),
        force,
        steps: steps(&template.steps, 0, files),
        start_cmd: template.start.clone(),
        ready_cmd: template.ready.clone(),
    }
}

/// The body of Sandbar's call.
pub(super) fn staged_build_start(template: &Template, force: bool, files: &Files) -> StagedBuildStart {
    let mut first = 0;
    let mut stage = |(number, (base, of_stage)): (usize, (&Base, &[definition::Step]))| {
        let mut stage = BuildStage { steps: steps(of_stage, first, files), ..BuildStage::default() };
        first += of_stage.len();
        match base {
            Base::Image(image) => {
                stage.from_image = Some(image.clone());
                stage.from_image_registry = template.registry.clone();
            }
            Base::Template(name) => stage.from_template = Some(name.clone()),
            Base::Stage(index) => stage.from_stage = Some(*index),
            Base::Archive(_) => {
                stage.from_archive = files
                    .archives
                    .get(&number)
                    .map(|(hash, archive)| ArchiveOrigin { files_hash: hash.clone(), format: archive.format });
            }
        }
        stage
    };
    let stages = stages(template).into_iter().enumerate().map(&mut stage).collect();
    StagedBuildStart { stages, force, start_cmd: template.start.clone(), ready_cmd: template.ready.clone() }
}

/// The steps of a stage whose first step has the number `first`.
fn steps(steps: &[definition::Step], first: usize, files: &Files) -> Vec<Step> {
    let step = |(number, step): (usize, &definition::Step)| {
        let (kind, args) = arguments(&step.instruction);
        let copied = files.copies.get(&number);
        let from_stage = match &step.instruction {
            Instruction::Copy(files) => files.from_stage,
            _ => None,
        };
        Step {
            kind: kind.to_owned(),
            args,
            files_hash: copied.map(|copied| copied.hash.clone()),
            force: step.force,
            from_stage,
            unpack: copied.is_some_and(|copied| copied.unpack),
        }
    };
    (first..).zip(steps).map(step).collect()
}

fn arguments(instruction: &Instruction) -> (&'static str, Vec<String>) {
    match instruction {
        Instruction::Copy(CopyFiles { source, destination, owner, mode, .. }) => {
            let mode = mode.map(|mode| format!("{mode:04o}")).unwrap_or_default();
            ("COPY", vec![source.clone(), destination.clone(), owner.clone().unwrap_or_default(), mode])
        }
        Instruction::Run { command, user } => {
            ("RUN", [Some(command.clone()), user.clone()].into_iter().flatten().collect())
        }
        Instruction::Env(pairs) => {
            ("ENV", pairs.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect())
        }
        Instruction::Workdir(path) => ("WORKDIR", vec![path.clone()]),
        Instruction::User(name) => ("USER", vec![name.clone()]),
    }
}
