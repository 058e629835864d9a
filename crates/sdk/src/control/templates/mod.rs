//! Templates: built, named, tagged and removed here, and used to create sandboxes.

mod archive;
mod build;
mod context;
mod definition;
mod dockerfile;
mod pattern;
mod wire;

use std::time::Duration;

use futures::Stream;
use http::Method;
use protocol::rest::template::{
    AssignTags, AssignedTags, RemoveTags, Template as ListedTemplate, TemplateAlias, TemplateTag, TemplateUpdate,
    TemplateUpdated, TemplateWithBuilds,
};

pub use ::dockerfile::DockerfileError;
pub use build::{Build, BuildError};
pub use context::ContextError;
pub use definition::{CopyFiles, Template};
pub use protocol::rest::template::ArchiveFormat;

use super::pages::{Page, rows};
use super::query::{Path, encode};
use super::request::{Request, lacks_path};
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

/// How long a build may take; E2B's own limit.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);

/// A failed operation on a template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    #[error("template {template:?} does not exist: {message}")]
    NotFound { template: String, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl TemplateError {
    fn from_failure(failure: Failure, template: &str, request: &Request<'_>) -> Self {
        match failure {
            Failure::Refused(Refusal { status: 404, message, .. }) => {
                Self::NotFound { template: template.to_owned(), message }
            }
            other => Self::Call(other.into_error(&request.call)),
        }
    }
}

/// The templates of a service. From [`Client::templates`].
///
/// ```no_run
/// # async fn example(client: sandbar_sdk::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use sandbar_sdk::templates::{Build, Template};
///
/// let template = Template::from_dockerfile("FROM debian:12\nRUN apt-get update\n")?;
/// let build = Build::new("tools:v1", template).memory_mb(1024);
/// client.templates().build_with(&build, |entry| println!("{}", entry.message)).await?;
/// let sandbox = client.create("tools:v1").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Templates<'a> {
    client: &'a Client,
    build_timeout: Duration,
}

impl Client {
    /// The templates of the service.
    pub fn templates(&self) -> Templates<'_> {
        Templates { client: self, build_timeout: BUILD_TIMEOUT }
    }
}

impl Templates<'_> {
    /// Waits for builds as long as `timeout` instead of one hour.
    #[must_use]
    pub fn build_timeout(mut self, build_timeout: Duration) -> Self {
        self.build_timeout = build_timeout;
        self
    }

    /// Streams all templates, page by page. Servers without pages send them at once.
    pub fn list(&self) -> impl Stream<Item = Result<ListedTemplate, CallError>> + Send + use<> {
        let client = self.client.clone();
        rows(move |token: Option<String>| {
            let client = client.clone();
            async move {
                let path = Path::new("/v2/templates").with("nextToken", token.as_deref());
                let request = Request::new(&client, Method::GET, path, "list templates");
                match request.page().await {
                    Ok((page, _)) => Ok(page),
                    Err(Failure::Refused(refusal)) if token.is_none() && lacks_path(&refusal) => {
                        let request = Request::new(&client, Method::GET, "/templates", "list templates");
                        let items = request.json().await.map_err(|failure| failure.into_error(&request.call))?;
                        Ok(Page { items, next: None })
                    }
                    Err(failure) => Err(failure.into_error(&request.call)),
                }
            }
        })
    }

    /// One template, by id or name, with all its builds.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Call`].
    pub async fn get(&self, template: &str) -> Result<TemplateWithBuilds, TemplateError> {
        let mut found: Option<TemplateWithBuilds> = None;
        let mut token: Option<String> = None;
        loop {
            let path = Path::new(format!("/templates/{}", encode(template))).with("nextToken", token.as_deref());
            let request = Request::new(self.client, Method::GET, path, format!("get template {template:?}"));
            let answer = request.json_and_next::<TemplateWithBuilds>().await;
            let (page, next) = answer.map_err(|failure| TemplateError::from_failure(failure, template, &request))?;
            let whole = match found.take() {
                Some(mut whole) => {
                    whole.builds.extend(page.builds);
                    whole
                }
                None => page,
            };
            if next.is_none() || next == token {
                return Ok(whole);
            }
            (found, token) = (Some(whole), next);
        }
    }

    /// Deletes a template by its id. Returns false when it did not exist.
    ///
    /// # Errors
    /// [`CallError::Invalid`] while sandboxes use it, or another [`CallError`].
    pub async fn delete(&self, template: &str) -> Result<bool, CallError> {
        let path = format!("/templates/{}", encode(template));
        let request = Request::new(self.client, Method::DELETE, path, format!("delete template {template:?}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }

    /// Whether a name is taken, by any team.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn exists(&self, name: &str) -> Result<bool, CallError> {
        match self.alias_request(name).send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            // Taken by another team.
            Err(Failure::Refused(Refusal { status: 403, .. })) => Ok(true),
            Err(failure) => Err(failure.into_error(&self.alias_request(name).call)),
        }
    }

    /// Resolves a name to a template.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`]; [`TemplateError::Call`] with [`CallError::Unauthorized`] when
    /// another team owns it.
    pub async fn alias(&self, name: &str) -> Result<TemplateAlias, TemplateError> {
        let request = self.alias_request(name);
        request.json().await.map_err(|failure| TemplateError::from_failure(failure, name, &request))
    }

    fn alias_request(&self, name: &str) -> Request<'_> {
        let path = format!("/templates/aliases/{}", encode(name));
        Request::new(self.client, Method::GET, path, format!("resolve template {name:?}"))
    }

    /// Assigns tags to the build that `target` (`name` or `name:tag`) refers to.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Call`].
    pub async fn assign_tags(&self, target: &str, tags: &[&str]) -> Result<AssignedTags, TemplateError> {
        let body = AssignTags { target: target.to_owned(), tags: texts(tags) };
        let request = Request::new(self.client, Method::POST, "/templates/tags", format!("tag template {target:?}"));
        let request = request.body(&body).idempotent();
        request.json().await.map_err(|failure| TemplateError::from_failure(failure, target, &request))
    }

    /// Removes tags from a template; `name` has no tag.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Call`].
    pub async fn remove_tags(&self, name: &str, tags: &[&str]) -> Result<(), TemplateError> {
        let body = RemoveTags { name: name.to_owned(), tags: texts(tags) };
        let what = format!("take tags from template {name:?}");
        let request = Request::new(self.client, Method::DELETE, "/templates/tags", what).body(&body);
        request.send().await.map(drop).map_err(|failure| TemplateError::from_failure(failure, name, &request))
    }

    /// The tags of a template, by id or name.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Call`].
    pub async fn tags(&self, template: &str) -> Result<Vec<TemplateTag>, TemplateError> {
        let path = format!("/templates/{}/tags", encode(template));
        let request = Request::new(self.client, Method::GET, path, format!("read the tags of template {template:?}"));
        request.json().await.map_err(|failure| TemplateError::from_failure(failure, template, &request))
    }

    /// Sets whether other teams may create sandboxes from a template.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Call`].
    pub async fn set_public(&self, template: &str, public: bool) -> Result<(), TemplateError> {
        let body = TemplateUpdate { public: Some(public) };
        let what = format!("change template {template:?}");
        let second =
            Request::new(self.client, Method::PATCH, format!("/v2/templates/{}", encode(template)), what.clone());
        let second = second.body(&body);
        match second.json::<TemplateUpdated>().await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if lacks_path(&refusal) => {
                let path = format!("/templates/{}", encode(template));
                let first = Request::new(self.client, Method::PATCH, path, what).body(&body);
                first.send().await.map(drop).map_err(|failure| TemplateError::from_failure(failure, template, &first))
            }
            Err(failure) => Err(TemplateError::from_failure(failure, template, &second)),
        }
    }
}

fn texts(tags: &[&str]) -> Vec<String> {
    tags.iter().map(|tag| (*tag).to_owned()).collect()
}
