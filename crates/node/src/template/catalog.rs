//! All templates. Reads are served from memory; a change is recorded before it is visible.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::FilesId;
use jiff::Timestamp;
use parking_lot::RwLock;
use uuid::Uuid;

use super::record::{BuildFiles, BuildStatus, Defaults, Size, Template, TemplateRecord};
use super::reference::{DEFAULT_TAG, Reference, TemplateError};
use super::{base, base_alias};
use crate::id::random_name;
use crate::ports::{Records, RecordsError};

/// What a reference resolves to: everything that a sandbox needs of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub template: Template,
    /// Absent: the base without changes.
    pub files: Option<FilesId>,
    pub defaults: Defaults,
    /// Absent: the configured defaults.
    pub size: Option<Size>,
    /// The build that the reference resolves to.
    pub build: Uuid,
}

pub(crate) struct Catalog {
    records: Arc<dyn Records>,
    /// By id.
    known: RwLock<BTreeMap<String, Arc<TemplateRecord>>>,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
}

impl Catalog {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records, known: RwLock::default(), changing: tokio::sync::Mutex::default() }
    }

    /// Reads the recorded templates.
    pub(crate) async fn load(&self) -> Result<(), RecordsError> {
        let templates = self.records.templates().await?;
        let known = templates.into_iter().map(|template| (template.id.clone(), Arc::new(template))).collect();
        *self.known.write() = known;
        Ok(())
    }

    /// All templates, in no particular order.
    pub(crate) fn all(&self) -> Vec<Arc<TemplateRecord>> {
        self.known.read().values().cloned().collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<TemplateRecord>> {
        self.known.read().get(id).cloned()
    }

    /// Records a build whose files were recovered, in its template or in a new one if that was
    /// deleted.
    pub(crate) async fn adopt(&self, template: TemplateRecord) -> Result<(), RecordsError> {
        let _guard = self.changing.lock().await;
        let merged = match self.get(&template.id) {
            Some(known) => {
                let mut known = (*known).clone();
                known.builds.retain(|build| !template.builds.iter().any(|back| back.id == build.id));
                known.builds.extend(template.builds);
                for (tag, meaning) in template.tags {
                    known.tags.entry(tag).or_insert(meaning);
                }
                known
            }
            None if template.name.is_some() && self.all().iter().any(|known| known.name == template.name) => {
                TemplateRecord { name: None, ..template }
            }
            None => template,
        };
        self.store(merged).await
    }

    /// Finds a template by its id or name. The default template is not among them.
    pub(crate) fn find(&self, reference: &Reference) -> Option<Arc<TemplateRecord>> {
        let known = self.known.read();
        let by_name = || known.values().find(|template| template.name.as_deref() == Some(&reference.alias));
        known.get(&reference.alias).or_else(by_name).filter(|_| reference.is_local()).cloned()
    }

    /// Resolves the reference of a create call.
    pub(crate) fn resolve(&self, text: &str) -> Result<Resolved, TemplateError> {
        let reference = Reference::parse(text)?;
        let no_tag = || TemplateError::NoTag { tag: reference.tag().to_owned(), template: reference.name() };
        if let Some(alias) = base_alias(&reference) {
            let mut resolved = base();
            resolved.template.alias = Some(alias.to_owned());
            return if reference.tag() == DEFAULT_TAG { Ok(resolved) } else { Err(no_tag()) };
        }
        let usable = self.find(&reference).filter(|template| template.is_usable());
        let template = usable.ok_or_else(|| TemplateError::NotFound(reference.name()))?;
        let build = template.tagged(reference.tag()).ok_or_else(no_tag)?;
        let files = match &build.files {
            BuildFiles::Base => None,
            BuildFiles::Kept(files) => Some(files.clone()),
            BuildFiles::Removed => return Err(no_tag()),
        };
        Ok(Resolved {
            template: Template { id: template.id.clone(), alias: template.name.clone() },
            files,
            defaults: build.defaults.clone(),
            size: Some(build.size),
            build: build.id,
        })
    }

    /// Returns the id of the template that `text` names; a tag is an error, an unknown template is
    /// not.
    pub(crate) fn resolve_filter(&self, text: &str) -> Result<Option<String>, TemplateError> {
        let reference = Reference::parse(text)?;
        match &reference {
            Reference { tag: Some(_), .. } => Err(TemplateError::Malformed(text.to_owned())),
            _ if base_alias(&reference).is_some() => Ok(Some(super::BASE_ID.to_owned())),
            _ => Ok(self.find(&reference).map(|template| template.id.clone())),
        }
    }

    /// Changes one template; if it does not exist or `act` fails, nothing changes.
    pub(crate) async fn change<T, E>(
        &self,
        id: &str,
        act: impl FnOnce(&mut TemplateRecord) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<RecordsError> + From<TemplateError>,
    {
        let _guard = self.changing.lock().await;
        let known = self.known.read().get(id).cloned();
        let mut template = (*known.ok_or_else(|| TemplateError::NotFound(id.to_owned()))?).clone();
        let outcome = act(&mut template)?;
        self.store(template).await?;
        Ok(outcome)
    }

    /// Changes the template called `name`, or a new one if there is none of that name, or no name.
    pub(crate) async fn change_or_make<T>(
        &self,
        name: Option<&str>,
        now: Timestamp,
        act: impl FnOnce(&mut TemplateRecord) -> T,
    ) -> Result<(TemplateRecord, T), RecordsError> {
        let _guard = self.changing.lock().await;
        let known = name.and_then(|name| self.all().into_iter().find(|known| known.name.as_deref() == Some(name)));
        let mut template = known.map_or_else(|| new_template(name, now), |known| (*known).clone());
        let outcome = act(&mut template);
        template.updated_at = now;
        self.store(template.clone()).await?;
        Ok((template, outcome))
    }

    async fn store(&self, template: TemplateRecord) -> Result<(), RecordsError> {
        self.records.put_template(&template).await?;
        let mut known = self.known.write();
        known.insert(template.id.clone(), Arc::new(template));
        Ok(())
    }

    /// Removes a template and returns it; `None` if it does not exist.
    pub(crate) async fn remove(&self, id: &str) -> Result<Option<Arc<TemplateRecord>>, RecordsError> {
        let _guard = self.changing.lock().await;
        self.records.remove_template(id).await?;
        Ok(self.known.write().remove(id))
    }

    /// Marks builds as failed that an earlier server did not finish.
    pub(crate) async fn give_up_builds(&self, now: Timestamp) -> Result<(), RecordsError> {
        let _guard = self.changing.lock().await;
        for template in self.all() {
            let unfinished = |build: &super::Build| build.status == BuildStatus::Building;
            if !template.builds.iter().any(unfinished) {
                continue;
            }
            let mut template = (*template).clone();
            for build in template.builds.iter_mut().filter(|build| unfinished(build)) {
                build.fail(now, "the server was stopped during the build".to_owned(), None);
            }
            self.store(template).await?;
        }
        Ok(())
    }
}

fn new_template(name: Option<&str>, now: Timestamp) -> TemplateRecord {
    TemplateRecord {
        id: random_name('t'),
        name: name.map(str::to_owned),
        public: false,
        created_at: now,
        updated_at: now,
        builds: Vec::new(),
        tags: BTreeMap::new(),
    }
}
