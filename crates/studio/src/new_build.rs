//! A request for a build. Parsing checks its texts and amounts, and [`NewBuild::validate`] the
//! rest.

use agent::approval::{ApprovalDecision, ApprovalPolicy, Rule};
use schemars::JsonSchema;
use serde::Deserialize;
use workspace::setup::{Repo, RepoSource};

use crate::error::StudioError;
use crate::id::ProjectId;
use crate::records::JobSpec;
use crate::text::{Dollars, NonBlankText, Object};

const MAX_PHASES: usize = 50;
const MAX_RULES: usize = 100;

/// What to build.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Null counts as absent, also where one of two fields is required.
#[schemars(rename = "NewGeneration", extend("oneOf" = [
    { "required": ["project_id"], "properties": { "project_id": { "type": "string" } } },
    { "required": ["name"], "properties": { "name": { "type": "string" } } },
]))]
pub struct NewBuild {
    /// The project of the build; or `name`.
    project_id: Option<ProjectId>,
    /// The name of the project, which is created if it does not exist; or `project_id`.
    name: Option<NonBlankText<100>>,
    /// With `name`: the project must be new. The name of a project with builds is refused with 409,
    /// so that a build never starts from that project's files by accident.
    new_project: Option<bool>,
    goal: NonBlankText<20_000>,
    /// Completed in order, each committed and saved.
    #[schemars(length(max = MAX_PHASES))]
    phases: Option<Vec<NonBlankText<20_000>>>,
    /// A git repository to start from: an `https` URL.
    repo: Option<NonBlankText<2000>>,
    branch: Option<NonBlankText<250>>,
    /// As `sandbar run --model` takes it, if it is one of the offered models.
    model: Option<NonBlankText<200>>,
    template: Option<NonBlankText<200>>,
    /// The cost limit of the model.
    budget_usd: Option<Dollars>,
    /// Which tool calls need approval or are denied. The first matching rule decides; without one
    /// the call is allowed.
    #[schemars(length(max = MAX_RULES))]
    approvals: Option<Vec<Object<ApprovalRule>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApprovalRule {
    /// A tool's name, or `*`.
    tool: NonBlankText<100>,
    /// A regular expression that matches anywhere in the command or path; absent: always.
    pattern: Option<NonBlankText<1000>>,
    decision: ApprovalDecision,
}

/// The project that a build belongs to.
#[derive(Debug)]
pub(crate) enum ProjectRef {
    Id(ProjectId),
    /// The user's project with this name, created if it does not exist.
    Name(String),
    /// A new project. Refused if a project with this name has builds.
    New(String),
}

impl NewBuild {
    /// Checks what the types cannot express. Returns the model that the request names beside the
    /// spec, whose model is set when that one is known to exist.
    ///
    /// # Errors
    /// [`StudioError::Invalid`] with the field.
    pub(crate) fn validate(self) -> Result<(ProjectRef, Option<String>, JobSpec), StudioError> {
        let new = self.new_project.unwrap_or_default();
        let project = match (self.project_id, self.name) {
            (Some(_), None) if new => return Err(StudioError::invalid("new_project", "it needs `name`")),
            (Some(id), None) => ProjectRef::Id(id),
            (None, Some(name)) if new => ProjectRef::New(name.0.trim().to_owned()),
            (None, Some(name)) => ProjectRef::Name(name.0.trim().to_owned()),
            _ => {
                return Err(StudioError::invalid(
                    "project_id",
                    "either `project_id` or `name` is needed, and not both",
                ));
            }
        };
        let (phases, approvals) = (self.phases.unwrap_or_default(), self.approvals.unwrap_or_default());
        if phases.len() > MAX_PHASES {
            return Err(StudioError::invalid("phases", format!("more than {MAX_PHASES}")));
        }
        if approvals.len() > MAX_RULES {
            return Err(StudioError::invalid("approvals", format!("more than {MAX_RULES}")));
        }
        if let Some(NonBlankText(repo)) = &self.repo {
            check_repo(repo)?;
        }
        let rules = approvals.into_iter().map(|Object(rule)| rule.check()).collect::<Result<_, _>>()?;
        let spec = JobSpec {
            goal: self.goal.0,
            phases: phases.into_iter().map(|phase| phase.0).collect(),
            repo: self.repo.map(|text| text.0),
            branch: self.branch.map(|text| text.0),
            template: self.template.map(|text| text.0),
            budget_usd: self.budget_usd.map(|amount| amount.0),
            policy: ApprovalPolicy { rules, otherwise: ApprovalDecision::Allow },
            ..JobSpec::default()
        };
        Ok((project, self.model.map(|text| text.0), spec))
    }
}

impl ApprovalRule {
    fn check(self) -> Result<Rule, StudioError> {
        let (tool, pattern) = (self.tool.0, self.pattern.map(|text| text.0));
        if tool != "*" && !tools::NAMES.contains(&tool.as_str()) {
            let names = tools::NAMES.join(", ");
            return Err(StudioError::invalid("approvals", format!("{tool} is none of the tools: {names}, or *")));
        }
        if let Some(pattern) = &pattern
            && let Err(error) = regex::Regex::new(pattern)
        {
            return Err(StudioError::invalid("approvals", format!("`{pattern}` is no regular expression: {error}")));
        }
        Ok(Rule { tool, pattern, decision: self.decision })
    }
}

/// Accepts a URL that the sandbox can reach. A path would be a directory of the server.
fn check_repo(text: &str) -> Result<(), StudioError> {
    let repo = Repo::parse(text);
    match repo.source {
        RepoSource::Url(_) if repo.credentials.is_some() => {
            Err(StudioError::invalid("repo", "names and passwords in the URL are not kept; use a URL without them"))
        }
        RepoSource::Url(_) => Ok(()),
        RepoSource::Directory(_) => Err(StudioError::invalid("repo", "it must be a URL, such as https://host/path")),
    }
}
