//! `sandbar sandbox url`: prints the URL of a port, or a signed link to a file.

use super::Session;
use crate::values;
use clap::Args;
use sdk::{Expiry, SandboxId};
use serde_json::json;
use std::time::Duration;

/// Print the URL of a port, or a signed link to a file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox url iabc123 3000  the service that listens on port 3000
  curl \"$(sandbar sandbox url iabc123 --download report.pdf --expires 1h)\"
  curl -F file=@data.csv \"$(sandbar sandbox url iabc123 --upload data.csv)\"

Anyone who has a signed link can read, or write, that one file without a key.")]
pub(crate) struct Url {
    /// The sandbox
    id: SandboxId,
    /// The port
    #[arg(value_parser = clap::value_parser!(u16).range(1..), required_unless_present_any = ["download", "upload"])]
    port: Option<u16>,
    /// A link to read this file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["upload", "port"])]
    download: Option<String>,
    /// A link to write this file
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    upload: Option<String>,
    /// How long the link works [default: as long as the sandbox lives]
    #[arg(long, value_name = "TIME", value_parser = values::wait, conflicts_with = "port")]
    expires: Option<Duration>,
    /// Whose home relative paths begin at, and who owns what is written
    #[arg(long, short, conflicts_with = "port")]
    user: Option<String>,
}

impl Url {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        // The state is not checked: a link to a paused sandbox works after a resume.
        let sandbox = session.client.attach(&session.detail(&self.id).await?)?;
        let files = self.user.map_or_else(|| sandbox.files(), |user| sandbox.files().as_user(user));
        let expiry = self.expires.map_or(Expiry::Never, Expiry::After);
        let url = match (self.port, self.download, self.upload) {
            (Some(port), ..) => sandbox.url(port),
            (None, Some(path), _) => files.download_url(&path, expiry)?,
            (None, None, path) => files.upload_url(&path.unwrap_or_default(), expiry)?,
        };
        if session.show.json {
            return Ok(session.show.object(&json!({ "sandboxID": self.id.as_str(), "url": url }))?);
        }
        Ok(session.show.line(url)?)
    }
}
