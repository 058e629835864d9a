//! Changes of a template, as functions of its record.

use engine::FilesId;
use jiff::Timestamp;
use uuid::Uuid;

use super::record::{Build, BuildFailure, BuildFiles, BuildStatus, Defaults, TemplateRecord};
use super::reference::{DEFAULT_TAG, TemplateError, is_tag};
use crate::ports::RecordsError;

/// Most untagged builds per template that are kept in its record.
const UNTAGGED_KEPT: usize = 10;

/// Why a template was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("template '{0}' is part of this server and cannot be changed")]
    Fixed(String),
    #[error("template '{name}' is used by {sandboxes} sandboxes")]
    InUse { name: String, sandboxes: usize },
    #[error("'{0}' cannot be a tag: letters, digits, '-', '_' and '.', and not the form of a build ID")]
    InvalidTag(String),
    #[error("the tag 'default' cannot be removed")]
    DefaultTag,
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl Build {
    pub(crate) fn fail(&mut self, now: Timestamp, message: String, step: Option<String>) {
        self.status = BuildStatus::Failed;
        self.finished_at = Some(now);
        self.failure = Some(BuildFailure { message, step });
    }
}

impl TemplateRecord {
    /// Makes a build usable under the tags it was requested with. Returns the files that are no
    /// longer used.
    pub(crate) fn finish(
        &mut self,
        build: Uuid,
        files: BuildFiles,
        defaults: Defaults,
        now: Timestamp,
    ) -> Result<Vec<FilesId>, TemplateError> {
        let found = self.build_mut(build).ok_or_else(|| TemplateError::NotFound(build.to_string()))?;
        found.status = BuildStatus::Ready;
        found.finished_at = Some(now);
        (found.files, found.defaults) = (files, defaults);
        for tag in found.wanted_tags.clone() {
            self.assign(&tag, build, now);
        }
        self.updated_at = now;
        Ok(self.prune())
    }

    /// Points `tags` to the build of the tag `source`.
    pub(crate) fn assign_tags(
        &mut self,
        source: &str,
        tags: &[String],
        now: Timestamp,
    ) -> Result<(Uuid, Vec<FilesId>), ChangeError> {
        if let Some(bad) = tags.iter().find(|tag| !is_tag(tag)) {
            return Err(ChangeError::InvalidTag(bad.clone()));
        }
        let missing = || TemplateError::NoTag { tag: source.to_owned(), template: self.label() };
        let build = self.tagged(source).ok_or_else(missing)?.id;
        for tag in tags {
            self.assign(tag, build, now);
        }
        Ok((build, self.prune()))
    }

    pub(crate) fn remove_tags(&mut self, tags: &[String]) -> Result<Vec<FilesId>, ChangeError> {
        for tag in tags {
            if tag == DEFAULT_TAG {
                return Err(ChangeError::DefaultTag);
            }
            if self.tags.remove(tag).is_none() {
                return Err(TemplateError::NoTag { tag: tag.clone(), template: self.label() }.into());
            }
        }
        Ok(self.prune())
    }

    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.id.clone())
    }

    /// Drops files that no tag leads to, and the oldest of their builds.
    fn prune(&mut self) -> Vec<FilesId> {
        let mut unused = Vec::new();
        let Self { tags, builds, .. } = self;
        let is_tagged = |build: &Build| tags.values().any(|tag| tag.build == build.id);
        for build in builds.iter_mut().filter(|build| !is_tagged(build)) {
            if let BuildFiles::Kept(files) = &build.files {
                unused.push(files.clone());
                build.files = BuildFiles::Removed;
            }
        }
        let spare = |build: &Build| !is_tagged(build) && build.finished_at.is_some();
        let mut excess = builds.iter().filter(|build| spare(build)).count().saturating_sub(UNTAGGED_KEPT);
        builds.retain(|build| {
            let goes = excess > 0 && spare(build);
            excess -= usize::from(goes);
            !goes
        });
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Size;
    use super::*;
    use crate::id::new_files_id;

    fn build(tags: &[&str]) -> Build {
        Build {
            id: Uuid::new_v4(),
            status: BuildStatus::Building,
            files: BuildFiles::Base,
            defaults: Defaults::default(),
            size: Size { cpu_count: 1, memory_mb: 128, disk_mb: 64 },
            of: None,
            wanted_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            created_at: Timestamp::UNIX_EPOCH,
            finished_at: None,
            failure: None,
        }
    }

    fn template() -> TemplateRecord {
        TemplateRecord {
            id: "t".to_owned(),
            name: Some("name".to_owned()),
            public: false,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            builds: Vec::new(),
            tags: Default::default(),
        }
    }

    /// Adds a finished build and returns its id, its files and the files that are no longer used.
    fn add(template: &mut TemplateRecord, tags: &[&str]) -> (Uuid, FilesId, Vec<FilesId>) {
        let (new, files) = (build(tags), new_files_id());
        let id = new.id;
        template.builds.push(new);
        let kept = BuildFiles::Kept(files.clone());
        let gone = template.finish(id, kept, Defaults::default(), Timestamp::UNIX_EPOCH).expect("it is there");
        (id, files, gone)
    }

    #[test]
    fn a_tag_moves_to_the_newest_build_and_files_without_one_go() {
        let mut template = template();
        let (first, first_files, gone) = add(&mut template, &["default", "v1"]);
        assert!(gone.is_empty());
        let (second, second_files, gone) = add(&mut template, &["default"]);
        assert!(gone.is_empty(), "v1 still leads to the first");
        assert_eq!(template.tagged("default").map(|build| build.id), Some(second));
        assert_eq!(template.tagged("v1").map(|build| build.id), Some(first));
        assert_eq!(template.remove_tags(&["v1".to_owned()]).expect("it was there"), std::slice::from_ref(&first_files));
        assert_eq!(template.files().collect::<Vec<_>>(), [&second_files]);
        assert!(matches!(template.remove_tags(&["v1".to_owned()]), Err(ChangeError::Template(_))));
        assert!(matches!(template.remove_tags(&["default".to_owned()]), Err(ChangeError::DefaultTag)));
    }

    #[test]
    fn tags_are_checked_before_anything_changes() {
        let mut template = template();
        let (id, ..) = add(&mut template, &["default"]);
        let before = template.clone();
        for bad in ["", "a b", "8a6e0804-2bd0-4672-b79d-d97027f9071a"] {
            let tags = ["good".to_owned(), bad.to_owned()];
            assert!(template.assign_tags("default", &tags, Timestamp::UNIX_EPOCH).is_err(), "{bad:?}");
        }
        assert!(template.assign_tags("absent", &["x".to_owned()], Timestamp::UNIX_EPOCH).is_err());
        assert_eq!(template, before);
        let assigned = template.assign_tags("default", &["x".to_owned()], Timestamp::UNIX_EPOCH).expect("it is there");
        assert_eq!(assigned.0, id);
    }

    #[test]
    fn old_untagged_builds_are_dropped() {
        let mut template = template();
        for _ in 0..20 {
            add(&mut template, &["default"]);
        }
        assert_eq!(template.builds.len(), UNTAGGED_KEPT + 1);
        assert_eq!(template.files().count(), 1);
    }
}
