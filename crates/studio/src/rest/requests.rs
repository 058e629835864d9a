//! What callers send: the wire's own types, turned into the studio's words field by field.

use agent::approval::{Decision, Policy, Rule};
use schemars::JsonSchema;
use serde::Deserialize;

use super::failure::Failure;
use super::text::{AnyText, Dollars, Object, Text};
use crate::{NewBuild, ProjectId, ProjectRef};

const MOST_PHASES: usize = 50;
const MOST_RULES: usize = 100;

/// What to build.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Null is as good as absent, also where one of two must be there.
#[schemars(extend("oneOf" = [
    { "required": ["project_id"], "properties": { "project_id": { "type": "string" } } },
    { "required": ["name"], "properties": { "name": { "type": "string" } } },
]))]
pub(super) struct NewGeneration {
    /// The project it is a build of; or `name`.
    project_id: Option<ProjectId>,
    /// The name of the project, which is made if there is none; or `project_id`.
    name: Option<Text<100>>,
    /// With `name`: the project must be new. A name that a project with builds has is refused with
    /// 409, so that nothing starts from the files of that project by accident.
    new_project: Option<bool>,
    goal: Text<20_000>,
    /// Worked off one after the other, each committed and saved by itself.
    #[schemars(length(max = MOST_PHASES))]
    phases: Option<Vec<Text<20_000>>>,
    /// A git repository to begin with: an `https` URL.
    repo: Option<Text<2000>>,
    branch: Option<Text<250>>,
    /// As `sandbar run --model` takes it, if it is one of those that are offered.
    model: Option<Text<200>>,
    template: Option<Text<200>>,
    /// What the model may cost.
    budget_usd: Option<Dollars>,
    /// Which calls are asked about or refused; the first rule that fits decides, and what no rule fits is allowed.
    #[schemars(length(max = MOST_RULES))]
    approvals: Option<Vec<Object<ApprovalRule>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApprovalRule {
    /// A tool's name, or `*`.
    tool: Text<100>,
    /// A regular expression that fits somewhere in the command or path; absent: always.
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
        if phases.len() > MOST_PHASES {
            return Err(Failure::invalid("phases", format_args!("more than {MOST_PHASES}")));
        }
        if approvals.len() > MOST_RULES {
            return Err(Failure::invalid("approvals", format_args!("more than {MOST_RULES}")));
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
    /// Of a snapshot, as the list of snapshots says it.
    pub(super) key: Text<1000>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalAnswer {
    pub(super) allow: bool,
    /// Told to the model.
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
    /// The key of a snapshot to look into, instead of the newest state.
    pub(super) snapshot: Option<Text<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FileQuery {
    /// Relative to the project.
    pub(super) path: Text<4096>,
    /// The key of a snapshot to look into, instead of the newest state.
    pub(super) snapshot: Option<Text<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct EventsQuery {
    /// Only what comes after this event; the header `Last-Event-ID` counts more.
    pub(super) after: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TerminalQuery {
    #[schemars(range(min = 1, max = 1000))]
    pub(super) cols: Option<u16>,
    #[schemars(range(min = 1, max = 1000))]
    pub(super) rows: Option<u16>,
}
