//! `sandbar template list`, `show` and `delete`: manage templates.

use super::Session;
use crate::show::{ago, local_time, printable, span};
use clap::Args;
use futures::TryStreamExt;
use sdk::model::template::{BuildStatus, Template};
use sdk::templates::TemplateError;
use serde_json::json;
use std::process::ExitCode;

/// List templates, newest first, the server's own last.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar template list
  sandbar template list --json | jq -r '.[].templateID'")]
pub(crate) struct List {}

impl List {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let templates: Vec<Template> = session.client.templates().list().try_collect().await?;
        if session.show.json {
            return Ok(session.show.object(&templates)?);
        }
        let rows: Vec<Vec<String>> = templates.iter().map(row).collect();
        Ok(session.show.table(&["TEMPLATE", "NAMES", "STATUS", "CPUS", "MEMORY", "BUILDS", "UPDATED"], &rows)?)
    }
}

fn row(template: &Template) -> Vec<String> {
    vec![
        printable(&template.template_id),
        printable(&template.aliases.join(" ")),
        status(template.build_status).to_owned(),
        template.cpu_count.to_string(),
        format!("{} MiB", template.memory_mb),
        template.build_count.to_string(),
        ago(&template.updated_at).map_or_else(|| "-".to_owned(), |age| format!("{} ago", span(age))),
    ]
}

fn status(status: BuildStatus) -> &'static str {
    match status {
        BuildStatus::Waiting => "waiting",
        BuildStatus::Building => "building",
        BuildStatus::Ready => "ready",
        BuildStatus::Error => "error",
        BuildStatus::Unknown => "unknown",
    }
}

/// Show a template with its builds and tags.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar template show app
  sandbar template show app --json")]
pub(crate) struct ShowOne {
    /// Its name or id
    template: String,
}

impl ShowOne {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let (client, show) = (&session.client, session.show);
        let found = client.templates().get(&self.template).await.map_err(explain)?;
        if show.json {
            return Ok(show.object(&found)?);
        }
        let (template, builds) = (&found.template, &found.builds);
        let tags = client.templates().tags(&template.template_id).await.map_err(explain)?;
        show.pairs(&[
            ("template", printable(&template.template_id)),
            ("names", printable(&template.names.join(" "))),
            (
                "sandboxes get",
                format!(
                    "{} processors, {} MiB of memory, {} MiB of disk",
                    template.cpu_count, template.memory_mb, template.disk_size_mb
                ),
            ),
            ("tags", printable(&tags.iter().map(|tag| tag.tag.as_str()).collect::<Vec<_>>().join(" "))),
            ("updated", when(&template.updated_at)),
        ])?;
        let row = |build: &sdk::model::template::TemplateBuild| {
            vec![printable(&build.build_id), status(build.status).to_owned(), when(&build.created_at)]
        };
        if builds.is_empty() {
            return Ok(());
        }
        show.line("")?;
        Ok(show.table(&["BUILD", "STATUS", "CREATED"], &builds.iter().map(row).collect::<Vec<_>>())?)
    }
}

/// Delete templates with all their builds. Those that sandboxes are made from stay.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar template delete app
  sandbar template delete tabc123 tdef456

Exit code 1 when one of them did not exist or is in use.")]
pub(crate) struct Delete {
    /// Their names or ids
    #[arg(required = true, value_name = "TEMPLATE")]
    templates: Vec<String>,
}

impl Delete {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let (mut deleted, mut failed) = (Vec::new(), false);
        for name in self.templates {
            match session.client.templates().delete(&name).await {
                Ok(true) if session.show.json => deleted.push(name),
                Ok(true) => session.show.line(format!("{} deleted", printable(&name)))?,
                Ok(false) => {
                    failed = true;
                    eprintln!(
                        "sandbar: template {} does not exist; `sandbar template list` shows those that do",
                        printable(&name)
                    );
                }
                Err(error) => {
                    failed = true;
                    eprintln!("sandbar: {error}");
                }
            }
        }
        if session.show.json {
            session.show.object(&json!({ "deleted": deleted }))?;
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// A timestamp in the local time zone; `-` for the server's base, which has none.
fn when(moment: &str) -> String {
    ago(moment).map_or_else(|| "-".to_owned(), |_| local_time(moment))
}

fn explain(error: TemplateError) -> anyhow::Error {
    match error {
        TemplateError::NotFound { template, .. } => {
            anyhow::anyhow!(
                "template {} does not exist; `sandbar template list` shows those that do",
                printable(&template)
            )
        }
        other => other.into(),
    }
}
