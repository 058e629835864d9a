//! Queries and changes of templates.

use std::sync::Arc;

use tracing::warn;
use uuid::Uuid;

use crate::list::Cursor;
use crate::node::Node;
use crate::snapshot::page;
use crate::template::{ChangeError, DEFAULT_TAG, Reference, Resolved, TemplateError, TemplateRecord, base_alias};

impl Node {
    /// Resolves the reference of a create call.
    pub fn resolve_template(&self, reference: &str) -> Result<Resolved, TemplateError> {
        self.node_state.templates.resolve(reference)
    }

    /// Returns the id of the template that `reference` names, for filters: an unknown template is
    /// no error, a tag is one.
    pub fn resolve_template_filter(&self, reference: &str) -> Result<Option<String>, TemplateError> {
        self.node_state.templates.resolve_filter(reference)
    }

    /// Finds a template by its id or name; a tag is ignored. The default one has no record and is
    /// not found.
    pub fn template(&self, reference: &str) -> Result<Arc<TemplateRecord>, TemplateError> {
        let reference = Reference::parse(reference)?;
        self.node_state.templates.find(&reference).ok_or_else(|| TemplateError::NotFound(reference.name()))
    }

    /// Lists templates, newest first, and the cursor of the next page; without the default one.
    pub fn templates(&self, limit: usize, after: Option<&Cursor>) -> (Vec<Arc<TemplateRecord>>, Option<Cursor>) {
        let all = self.node_state.templates.all().into_iter();
        page(all, limit, after, |template| Cursor::new(template.created_at, template.id.clone()))
    }

    /// Removes a template with all its builds and their files. A tag is ignored: all of them are
    /// removed.
    pub async fn delete_template(&self, reference: &str) -> Result<(), ChangeError> {
        let template = self.find_changeable(reference)?;
        let users = self.all().iter().filter(|seen| seen.record.template.id == template.id).count();
        if users > 0 {
            return Err(ChangeError::InUse { name: reference.to_owned(), sandboxes: users });
        }
        // The record first: files without one are swept at the next start if this server dies now.
        if let Some(removed) = self.node_state.templates.remove(&template.id).await? {
            self.node_state.remove_unused(&removed.files().cloned().collect::<Vec<_>>()).await;
            if let Err(error) = self.node_state.builds.uploads.remove(&removed.id).await {
                warn!(template = removed.id, %error, "archives of a template are left until the next start");
            }
        }
        Ok(())
    }

    /// Sets whether others may use the template; a server with one owner only records it.
    pub async fn publish_template(&self, reference: &str, public: bool) -> Result<Arc<TemplateRecord>, ChangeError> {
        let id = self.find_changeable(reference)?.id.clone();
        let change = |template: &mut TemplateRecord| {
            template.public = public;
            Ok::<_, ChangeError>(())
        };
        self.node_state.templates.change(&id, change).await?;
        Ok(self.template(&id)?)
    }

    /// Points `tags` to the build that `target` leads to now, and returns its id.
    pub async fn assign_tags(&self, target: &str, tags: &[String]) -> Result<Uuid, ChangeError> {
        let template = self.find_changeable(target)?;
        let source = Reference::parse(target)?.tag.unwrap_or_else(|| DEFAULT_TAG.to_owned());
        let now = self.node_state.clock.now();
        let change = |template: &mut TemplateRecord| template.assign_tags(&source, tags, now);
        let (build, unused) = self.node_state.templates.change(&template.id, change).await?;
        self.node_state.remove_unused(&unused).await;
        Ok(build)
    }

    pub async fn remove_tags(&self, name: &str, tags: &[String]) -> Result<(), ChangeError> {
        let template = self.find_changeable(name)?;
        let change = |template: &mut TemplateRecord| template.remove_tags(tags);
        let unused = self.node_state.templates.change(&template.id, change).await?;
        self.node_state.remove_unused(&unused).await;
        Ok(())
    }

    fn find_changeable(&self, reference: &str) -> Result<Arc<TemplateRecord>, ChangeError> {
        if base_alias(&Reference::parse(reference)?).is_some() {
            return Err(ChangeError::Fixed(reference.to_owned()));
        }
        Ok(self.template(reference)?)
    }
}
