//! What can be asked of and done to the templates there are.

use std::sync::Arc;

use tracing::warn;
use uuid::Uuid;

use crate::list::Cursor;
use crate::node::Node;
use crate::snapshot::page;
use crate::template::{ChangeError, DEFAULT_TAG, Reference, Resolved, TemplateError, TemplateRecord, base_alias};

impl Node {
    /// What a create gets for `reference`.
    pub fn resolve_template(&self, reference: &str) -> Result<Resolved, TemplateError> {
        self.world.templates.resolve(reference)
    }

    /// The ID of the template that `reference` names, for filters: absence is no error, a tag is one.
    pub fn resolve_template_filter(&self, reference: &str) -> Result<Option<String>, TemplateError> {
        self.world.templates.resolve_filter(reference)
    }

    /// A template by its ID or its name; a tag is ignored. The default one has no record and is not found.
    pub fn template(&self, reference: &str) -> Result<Arc<TemplateRecord>, TemplateError> {
        let reference = Reference::parse(reference)?;
        self.world.templates.find(&reference).ok_or_else(|| TemplateError::NotFound(reference.name()))
    }

    /// Templates, newest first, and where the next page begins. Not the default one.
    pub fn templates(&self, limit: usize, after: Option<&Cursor>) -> (Vec<Arc<TemplateRecord>>, Option<Cursor>) {
        let all = self.world.templates.all().into_iter();
        page(all, limit, after, |template| Cursor::new(template.created_at, template.id.clone()))
    }

    /// Removes a template with all its builds and their files. A tag is ignored: the whole goes.
    pub async fn delete_template(&self, reference: &str) -> Result<(), ChangeError> {
        let template = self.changeable(reference)?;
        let users = self.all().iter().filter(|seen| seen.record.template.id == template.id).count();
        if users > 0 {
            return Err(ChangeError::InUse { name: reference.to_owned(), sandboxes: users });
        }
        // The record first: files without one are swept at the next start, should this server die now.
        if let Some(removed) = self.world.templates.remove(&template.id).await? {
            self.world.remove_unused(&removed.files().cloned().collect::<Vec<_>>()).await;
            if let Err(error) = self.world.builds.uploads.remove(&removed.id).await {
                warn!(template = removed.id, %error, "archives of a template are left until the next start");
            }
        }
        Ok(())
    }

    /// Says whether others may use it, which on a server with one owner is only remembered.
    pub async fn publish_template(&self, reference: &str, public: bool) -> Result<Arc<TemplateRecord>, ChangeError> {
        let id = self.changeable(reference)?.id.clone();
        let change = |template: &mut TemplateRecord| {
            template.public = public;
            Ok::<_, ChangeError>(())
        };
        self.world.templates.change(&id, change).await?;
        Ok(self.template(&id)?)
    }

    /// Lets `tags` stand for what `target` stands for now, and tells which build that is.
    pub async fn assign_tags(&self, target: &str, tags: &[String]) -> Result<Uuid, ChangeError> {
        let template = self.changeable(target)?;
        let source = Reference::parse(target)?.tag.unwrap_or_else(|| DEFAULT_TAG.to_owned());
        let now = self.world.clock.now();
        let change = |template: &mut TemplateRecord| template.assign_tags(&source, tags, now);
        let (build, unused) = self.world.templates.change(&template.id, change).await?;
        self.world.remove_unused(&unused).await;
        Ok(build)
    }

    pub async fn remove_tags(&self, name: &str, tags: &[String]) -> Result<(), ChangeError> {
        let template = self.changeable(name)?;
        let change = |template: &mut TemplateRecord| template.remove_tags(tags);
        let unused = self.world.templates.change(&template.id, change).await?;
        self.world.remove_unused(&unused).await;
        Ok(())
    }

    fn changeable(&self, reference: &str) -> Result<Arc<TemplateRecord>, ChangeError> {
        if base_alias(&Reference::parse(reference)?).is_some() {
            return Err(ChangeError::Fixed(reference.to_owned()));
        }
        Ok(self.template(reference)?)
    }
}
