//! Wire types of requests, converted into the studio's types field by field.

use agent::approval::{Decision, Policy, Rule};
use schemars::JsonSchema;
use serde::Deserialize;

use super::failure::Failure;
use super::text::{AnyText, Dollars, Object, Text};
use crate::{NewBuild, ProjectId, ProjectRef};

const MAX_PHASES: usize = 50;
const MAX_RULES: usize = 100;

/// What to build.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Null counts as absent, also where one of two fields is required.
#[schemars(extend("oneOf" = [
    { "required": ["project_id"], "properties": { "project_id": { "type": "string" } } },
    { "required": ["name"], "properties": { "name": { "type": "string" } } },
]))]
pub(super) struct NewGeneration {
    /// The project of the build; or `name`.
    project_id: Option<ProjectId>,
    /// The name of the project, which is created if it does not exist; or `project_id`.
    name: Option<Text<100>>,
    /// With `name`: the project must be new. The name of a project with builds is refused with 409,
    /// so that a build never starts from that project's files by accident.
    new_project: Option<bool>,
    goal: Text<20_000>,
    /// Completed in order, each committed and saved.
    #[schemars(length(max = MAX_PHASES))]
    phases: Option<Vec<Text<20_000>>>,
    /// A git repository to start from: an `https` URL.
    repo: Option<Text<2000>>,
    branch: Option<Text<250>>,
    /// As `sandbar run --model` takes it, if it is one of the offered models.
    model: Option<Text<200>>,
    template: Option<Text<200>>,
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
    tool: Text<100>,
    /// A regular expression that matches anywhere in the command or path; absent: always.
    pattern: Option<Text<1000>>,
    decision: RuleDecision,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RuleDecision {
    Allow,
    Ask,
    Deny,
}

impl TryFrom<NewGeneration> for NewBuild {
    type Error = Failure;

    fn try_from(asked: NewGeneration) -> Result<Self, Failure> {
        let NewGeneration {
            project_id,
            name,
            new_project,
            goal,
            phases,
            repo,
            branch,
            model,
            template,
            budget_usd,
            approvals,
        } = asked;
        let new = new_project.unwrap_or_default();
        let project = match (project_id, name) {
            (Some(_), None) if new => return Err(Failure::invalid("new_project", "it needs `name`")),
            (Some(id), None) => ProjectRef::Id(id),
            (None, Some(name)) if new => ProjectRef::New(name.0),
            (None, Some(name)) => ProjectRef::Name(name.0),
            _ => return Err(Failure::invalid("project_id", "either `project_id` or `name` is needed, and not both")),
        };
        let (phases, approvals) = (phases.unwrap_or_default(), approvals.unwrap_or_default());
        if phases.len() > MAX_PHASES {
            return Err(Failure::invalid("phases", format_args!("more than {MAX_PHASES}")));
        }
        if approvals.len() > MAX_RULES {
            return Err(Failure::invalid("approvals", format_args!("more than {MAX_RULES}")));
        }
        let rules = approvals.into_iter().map(|Object(rule)| rule.into()).collect();
        Ok(Self {
            project,
            goal: goal.0,
            phases: phases.into_iter().map(|phase| phase.0).collect(),
            repo: repo.map(|text| text.0),
            branch: branch.map(|text| text.0),
            model: model.map(|text| text.0),
            template: template.map(|text| text.0),
            budget_usd: budget_usd.map(|amount| amount.0),
            policy: Policy { rules, otherwise: Decision::Allow },
        })
    }
}

impl From<ApprovalRule> for Rule {
    fn from(ApprovalRule { tool, pattern, decision }: ApprovalRule) -> Self {
        let decision = match decision {
            RuleDecision::Allow => Decision::Allow,
            RuleDecision::Ask => Decision::Ask,
            RuleDecision::Deny => Decision::Deny,
        };
        Self { tool: tool.0, pattern: pattern.map(|text| text.0), decision }
    }
}

/// Whether the user has agreed to pay for it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RebuildRequest {
    #[serde(default)]
    pub(super) confirm: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreRequest {
    /// The key of a snapshot, from the list of snapshots.
    pub(super) key: Text<1000>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalAnswer {
    pub(super) allow: bool,
    /// Sent to the model.
    pub(super) reason: Option<AnyText<2000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct JobsQuery {
    /// Only builds of this project.
    pub(super) project_id: Option<ProjectId>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FilesQuery {
    /// Relative to the project; empty for the project itself.
    #[serde(default)]
    pub(super) path: AnyText<4096>,
    /// The key of a snapshot to read instead of the newest state.
    pub(super) snapshot: Option<Text<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FileQuery {
    /// Relative to the project.
    pub(super) path: Text<4096>,
    /// The key of a snapshot to read instead of the newest state.
    pub(super) snapshot: Option<Text<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct EventsQuery {
    /// Only events after this number. The header `Last-Event-ID` takes precedence.
    pub(super) after: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TerminalQuery {
    #[schemars(range(min = 1, max = 1000))]
    pub(super) cols: Option<u16>,
    #[schemars(range(min = 1, max = 1000))]
    pub(super) rows: Option<u16>,
}
