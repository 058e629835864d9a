//! `sandbar run`: starts a run for a goal, in a workspace, with a model.

use super::drive::{Drive, RunStart};
use super::{keys, records_url};
use crate::workspace::app::{EndAction, WorkspaceApp, WorkspaceLocation};
use crate::{logging, runtime};
use agent::approval::{ApprovalDecision, ApprovalPolicy, Rule};
use agent::model::{ModelChoice, ModelPrice};
use agent::{Plan, PlanPhase, RunError, RunId, Settings, system_prompt};
use anyhow::{Context as _, bail};
use clap::Args;
use cli::values::{self, Variable};
use serde_json::json;
use std::io::{IsTerminal as _, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use workspace::setup::{PROJECT_DIRECTORY, Repo, Setup};
use workspace::{OpenError, Workspace, WorkspaceName};

/// The model when no `--model` is given and `ANTHROPIC_API_KEY` is set.
pub(crate) const DEFAULT_MODEL: &str = "anthropic:claude-opus-5-5";

/// Let a model work towards a goal, with the tools, in a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar run --goal 'Show the time in a web page on port 3000' --model scripted:examples/scripts/web-app.yaml
  sandbar run --goal 'Find and fix the failing test' --repo https://github.com/acme/shop --branch main --budget-usd 2
  sandbar run --goal 'Add a dark mode' --workspace shop --phase 'Design it' --phase 'Build it' --phase 'Test it'
  sandbar run --goal 'Tidy up' --workspace shop --ask 'bash:git push' --deny 'bash:rm -rf'
  sandbar run --goal … --model openai:qwen3-coder@http://127.0.0.1:8000/v1 --price 0.20/0.80 --budget-usd 2
  sandbar run --goal … --workspace shop --mcp 127.0.0.1:4982     others may work in it too, as MCP clients
  sandbar run --goal … --json-events | jq -r 'select(.type == \"run_finished\") | .stop_reason'

Models: anthropic:NAME takes ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL without /v1; openai:NAME@URL any endpoint of that \
kind, with OPENAI_API_KEY if it needs one; scripted:FILE plays a file, see examples/scripts.

Ctrl-C stops cleanly with everything saved, a second one at once; `sandbar runs resume` goes on, also after a crash.

Exit codes: 0 the model completed its work, 1 it did not, 2 not understood, 130 stopped by Ctrl-C.")]
pub(crate) struct Start {
    /// What is to be done
    #[arg(long, value_name = "TEXT")]
    goal: String,
    /// A part of it that is committed and saved by itself; may be repeated, in order
    #[arg(long, value_name = "TEXT")]
    phase: Vec<String>,
    /// anthropic:NAME, openai:NAME@URL or scripted:FILE [default: anthropic:claude-opus-5-5]
    #[arg(long, value_name = "MODEL")]
    model: Option<ModelChoice>,
    /// Where to work; made if there is none of that name [default: a new one]
    #[arg(long, value_name = "NAME")]
    workspace: Option<WorkspaceName>,
    /// A URL, or a directory of this machine, of a git repository for a new workspace
    #[arg(long, value_name = "URL|DIR")]
    repo: Option<Repo>,
    /// What is checked out [default: what the repository has checked out]
    #[arg(long, value_name = "BRANCH", requires = "repo")]
    branch: Option<String>,
    /// A variable that everything in a new workspace sees, and that is masked everywhere; NAME
    /// alone takes the value of this program's own; may be repeated
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// Where the application is to listen
    #[arg(long, value_name = "PORT", default_value_t = 3000, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    limits: Limits,
    /// Ask before calls of a tool, or those that a regular expression fits: TOOL[:PATTERN]; may be
    /// repeated. With --json-events the question is an event that `sandbar runs answer` answers;
    /// where no user can be asked, the answer is no
    #[arg(long, value_name = "RULE", value_parser = rule(ApprovalDecision::Ask))]
    ask: Vec<Rule>,
    /// Refuse such calls; may be repeated
    #[arg(long, value_name = "RULE", value_parser = rule(ApprovalDecision::Deny))]
    deny: Vec<Rule>,
    /// Let MCP clients work in the workspace meanwhile; prints the URL and the token
    #[arg(long, value_name = "ADDR")]
    mcp: Option<SocketAddr>,
    /// Leave the workspace running at the end; it is paused otherwise
    #[arg(long)]
    keep_running: bool,
    /// Print one JSON object an event, also on a terminal
    #[arg(long)]
    json_events: bool,
    #[command(flatten)]
    location: WorkspaceLocation,
}

/// Limits of a run.
#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct Limits {
    /// What the model may cost; saved and paused there
    #[arg(long, value_name = "USD", value_parser = dollars)]
    budget_usd: Option<f64>,
    /// What the model costs, in dollars per million tokens of input and of output: for one whose
    /// price Sandbar does not know, or that costs something else here; [models.NAME] of the
    /// configuration says it for good
    #[arg(long, value_name = "IN/OUT")]
    pub(super) price: Option<ModelPrice>,
    /// Answers of the model [default: 100]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: Option<u64>,
    /// Tokens, all that the model reads and writes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: Option<u64>,
    /// How long to work: 30m, 8h
    #[arg(long, value_name = "TIME", value_parser = values::wait)]
    time: Option<Duration>,
}

impl Limits {
    /// Replaces the settings for which a flag was given. Returns whether any changed.
    pub(super) fn apply(&self, settings: &mut Settings) -> bool {
        let before = settings.clone();
        settings.max_cost_usd = self.budget_usd.or(settings.max_cost_usd);
        settings.max_turns = self.max_turns.unwrap_or(settings.max_turns);
        settings.max_tokens_total = self.max_tokens.or(settings.max_tokens_total);
        settings.wall_clock = self.time.or(settings.wall_clock);
        *settings != before
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(amount) if amount.is_finite() && amount > 0.0 => Ok(amount),
        _ => Err("it must be an amount of dollars above nothing, such as 2.50".to_owned()),
    }
}

fn rule(decision: ApprovalDecision) -> impl Fn(&str) -> Result<Rule, String> + Clone + Send + Sync {
    move |text| {
        let (tool, pattern) = match text.split_once(':') {
            Some((tool, pattern)) => (tool, Some(pattern.to_owned())),
            None => (text, None),
        };
        if tool != "*" && !tools::NAMES.contains(&tool) {
            return Err(format!("{tool} is none of the tools: {}, or *", tools::NAMES.join(", ")));
        }
        Ok(Rule { tool: tool.to_owned(), pattern, decision })
    }
}

impl Start {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        runtime::block_on(self.begin())
    }

    async fn begin(self) -> anyhow::Result<ExitCode> {
        let model = self.choose_model()?;
        // Before a workspace is created: a missing key fails the command early.
        let ready = super::model(&self.location, &model, self.limits.price)?;
        if self.limits.budget_usd.is_some() && ready.price().is_none() {
            return Err(RunError::NoPrice(ready.name().to_owned()).into());
        }
        let id = RunId::new();
        let json = self.json_events || !stdout().is_terminal();
        let url = records_url(&self.location)?;
        let app = WorkspaceApp::open(&self.location, true).await?;
        let workspace = self.workspace(&app, &id).await?;
        let mut settings = Settings::default();
        self.limits.apply(&mut settings);
        let rules = self.deny.into_iter().chain(self.ask).collect();
        let plan = Plan {
            goal: self.goal,
            phases: self.phase.into_iter().map(|goal| PlanPhase { goal }).collect(),
            model: model.to_string(),
            workspace: Some(workspace.name().to_string()),
            system: system_prompt(PROJECT_DIRECTORY, self.port),
            settings,
            policy: ApprovalPolicy { rules, otherwise: ApprovalDecision::Allow },
            details: json!({ "preview_port": self.port, "price": self.limits.price }),
        };
        let (preview_port, has_event_reader, mcp) = (self.port, self.json_events, self.mcp);
        let end_action = EndAction::new(self.keep_running);
        let app = Arc::new(app);
        let drive = Drive { app, url, workspace, model: ready, preview_port, json, has_event_reader, mcp, end_action };
        drive.run(id, RunStart::New(Box::new(plan))).await
    }

    fn choose_model(&self) -> anyhow::Result<ModelChoice> {
        let model = match &self.model {
            Some(model) => model.clone(),
            None if keys().anthropic.is_some() => DEFAULT_MODEL.parse()?,
            None => bail!(
                "no model: set ANTHROPIC_API_KEY, or name one with --model; \
                 --model scripted:examples/scripts/web-app.yaml needs no key"
            ),
        };
        // Absolute: the run may be resumed from another directory.
        Ok(match model {
            ModelChoice::Scripted { file } => {
                let whole =
                    file.canonicalize().with_context(|| format!("cannot read the script {}", file.display()))?;
                ModelChoice::Scripted { file: whole }
            }
            other => other,
        })
    }

    /// Opens the named workspace, or creates it.
    async fn workspace(&self, app: &WorkspaceApp, id: &RunId) -> anyhow::Result<Workspace> {
        let name = match &self.workspace {
            Some(name) => name.clone(),
            None => id.as_str().replace('_', "-").parse().context("a name for the workspace")?,
        };
        match app.workspaces().show(&name).await {
            Ok(_) if self.repo.is_some() => {
                bail!("there is a workspace {name} already; --repo is for a new one")
            }
            Ok(_) => return app.enter(&name).await,
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(crate::workspace::app::explain(error)),
        }
        let repo = match (self.repo.clone(), &self.branch) {
            (Some(repo), Some(branch)) => Some(repo.branch(branch.clone())),
            (repo, _) => repo,
        };
        let env = values::secrets(&self.env)?;
        let setup = Setup { repo, env, job: Some(id.to_string()), ..Setup::default() };
        eprintln!("sandbar: setting up workspace {name}");
        let created = app.workspaces().create(&name, setup).await;
        let _held = created.with_context(|| format!("workspace {name} could not be set up"))?;
        app.enter(&name).await
    }
}
