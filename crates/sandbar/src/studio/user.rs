//! `sandbar user`: manages the users of the studio, their tokens and their credits.

use super::open;
use crate::config::{Config, Overrides};
use crate::{logging, runtime};
use ::studio::User;
use ::studio::records::{AddUserError, CreditChange, Records};
use ::studio::token::{TokenDigest, new_token};
use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use cli::show::Show;
use jiff::Timestamp;
use sdk::Secret;
use serde_json::json;
use std::path::PathBuf;

/// The users of the studio, and how many builds they have.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar user add ada --credits 5        prints her token, once
  sandbar user add ada --json             {name, token}
  sandbar user token ada                  a new token in place of the old one
  sandbar user token                      the same for the first user, `owner`
  sandbar user sessions ada               browsers in which she is signed in
  sandbar user sign-out ada               end all of them
  sandbar user credits ada                what is left
  sandbar user credits ada --add 10
  sandbar user list

A new token ends the sessions of the old one. Terminals and event streams that a session or a token opened end within 5 seconds \
of its end, also when another process serves them.

The first user is called `owner`; `sandbar up` makes their token, and `sandbar env` prints it.")]
pub(crate) struct Users {
    #[command(subcommand)]
    command: Command,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    /// The studio's database, when it is not the data directory's
    #[arg(long, global = true, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    database: Option<Secret>,
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, global = true, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Add a user and print their token
    Add {
        name: String,
        /// Builds they may begin with
        #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        credits: i64,
    },
    /// Print a new token for a user, in place of all they had
    Token {
        /// Who it is for
        #[arg(default_value = open::FIRST_USER)]
        name: String,
    },
    /// Show the browser sessions of a user
    Sessions {
        /// Whose they are
        #[arg(default_value = open::FIRST_USER)]
        name: String,
    },
    /// End every browser session of a user
    SignOut {
        /// Whose they are
        #[arg(default_value = open::FIRST_USER)]
        name: String,
    },
    /// Show a user's credits, or give more
    Credits {
        name: String,
        /// How many to add; with a minus sign, to take away
        #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
        add: Option<i64>,
    },
    /// Show all users
    List,
}

/// Limit of a user's name.
const LONGEST_NAME: usize = 100;

impl Users {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        logging::start_if_wanted()?;
        runtime::block_on(self.execute())
    }

    async fn execute(self) -> anyhow::Result<()> {
        let overrides = Overrides { data: self.data, ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        let records = open::records(&config, self.database.as_ref()).await?;
        let show = Show::new(self.json);
        match self.command {
            Command::Add { name, credits } => {
                if name.trim().is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
                    bail!("a name has 1 to {LONGEST_NAME} characters that can be shown");
                }
                let (token, digest) = new_credential()?;
                match records.add_user(&name, &digest, credits).await {
                    Ok(_) => print_token(show, &name, &token)?,
                    Err(AddUserError::Taken(name)) => {
                        bail!("there is a user {name} already; `sandbar user token {name}` gives them a new token")
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Command::Token { name } => {
                let user = find_user(&records, &name).await?;
                let (token, digest) = new_credential()?;
                records.replace_token(&user.id, &digest).await?;
                print_token(show, &name, &token)?;
                if name == open::FIRST_USER {
                    // `sandbar up` prints the stored token.
                    open::store_first_token(&config, &token)?;
                }
            }
            Command::Sessions { name } => {
                let user = find_user(&records, &name).await?;
                let sessions = records.sessions(&user.id).await?;
                if self.json {
                    let sessions: Vec<_> = sessions
                        .iter()
                        .map(|session| {
                            let (created, expires) = (session.created_at.to_string(), session.expires_at.to_string());
                            json!({ "id": session.id, "created_at": created, "expires_at": expires })
                        })
                        .collect();
                    show.object(&json!({ "name": name, "sessions": sessions }))?;
                } else {
                    let seconds = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
                    let rows: Vec<Vec<String>> = sessions
                        .into_iter()
                        .map(|session| vec![session.id, seconds(session.created_at), seconds(session.expires_at)])
                        .collect();
                    show.table(&["SESSION", "SIGNED IN", "EXPIRES"], &rows)?;
                }
            }
            Command::SignOut { name } => {
                let user = find_user(&records, &name).await?;
                let ended = records.end_sessions(&user.id).await?;
                match self.json {
                    true => show.object(&json!({ "name": name, "ended": ended }))?,
                    false => show.line(format!("sessions ended: {ended}"))?,
                }
            }
            Command::Credits { name, add } => {
                let user = find_user(&records, &name).await?;
                let left = match add {
                    Some(change) => match records.credit(&user.id, change, "given by hand").await? {
                        CreditChange::Done(left) => left,
                        CreditChange::TooFew => bail!("{name} has fewer credits than that"),
                    },
                    None => records.credits(&user.id).await?,
                };
                match self.json {
                    true => show.object(&json!({ "name": name, "credits": left }))?,
                    false => show.line(left.to_string())?,
                }
            }
            Command::List => {
                let mut rows = Vec::new();
                for user in records.users().await? {
                    rows.push((user.name, records.credits(&user.id).await?));
                }
                if self.json {
                    let users: Vec<_> =
                        rows.iter().map(|(name, credits)| json!({ "name": name, "credits": credits })).collect();
                    show.object(&json!({ "users": users }))?;
                } else {
                    let rows: Vec<Vec<String>> =
                        rows.into_iter().map(|(name, credits)| vec![name, credits.to_string()]).collect();
                    show.table(&["NAME", "CREDITS"], &rows)?;
                }
            }
        }
        records.close().await?;
        Ok(())
    }
}

fn new_credential() -> anyhow::Result<(Secret, TokenDigest)> {
    let token = new_token();
    let digest = TokenDigest::from_token(token.expose()).context("a new token has the form of one")?;
    Ok((token, digest))
}

async fn find_user(records: &Records, name: &str) -> anyhow::Result<User> {
    let user = records.user_by_name(name).await?;
    user.ok_or_else(|| anyhow!("there is no user {name}; `sandbar user list` shows those there are"))
}

fn print_token(show: Show, name: &str, token: &Secret) -> std::io::Result<()> {
    match show.json {
        true => show.object(&json!({ "name": name, "token": token.expose() })),
        false => show.line(format!("export SANDBAR_TOKEN={}", token.expose())),
    }
}
