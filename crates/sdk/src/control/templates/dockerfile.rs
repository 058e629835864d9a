//! Converts a Dockerfile into a template.

use dockerfile::{Action, CopyFrom, DockerfileError, Options, Origin, Plan};

use super::definition::{Base, CopyFiles, Instruction, Stage, Step, Template};

/// The readiness check of the official SDKs for a Dockerfile, which has a start command but no
/// check.
const READY: &str = "sleep 20";

impl Template {
    /// Parses a Dockerfile. `CMD` and `ENTRYPOINT` become the start command. Set the directory of
    /// its `COPY` sources with [`Template::context`]. Only Sandbar servers build several stages.
    ///
    /// # Errors
    /// [`DockerfileError`] with the position of the unsupported instruction.
    pub fn from_dockerfile(text: &str) -> Result<Self, DockerfileError> {
        let plan = dockerfile::plan(text, &Options::default())?;
        let template = Self::from_plan(&plan);
        Ok(if template.start.is_some() { template.ready(READY) } else { template })
    }

    /// Converts a parsed Dockerfile.
    pub fn from_plan(plan: &Plan) -> Self {
        let mut stages: Vec<Stage> = plan.stages.iter().map(stage).collect();
        let last = stages.pop().expect("a plan has the stage that was asked for");
        let mut template = Self::new(last.base);
        (template.earlier, template.steps) = (stages, last.steps);
        template.start = plan.start_command.clone();
        template
    }
}

fn stage(stage: &dockerfile::Stage) -> Stage {
    let base = match &stage.origin {
        Origin::Image(image) => Base::Image(image.clone()),
        Origin::Stage(index) => Base::Stage(*index),
    };
    let step = |step: &dockerfile::Step| {
        let line = Some(step.line);
        instructions(&step.action).into_iter().map(move |instruction| Step { instruction, force: false, line })
    };
    Stage { base, steps: stage.steps.iter().flat_map(step).collect() }
}

fn instructions(action: &Action) -> Vec<Instruction> {
    match action {
        Action::Run(command) => vec![Instruction::Run { command: command.clone(), user: None }],
        Action::Env(pairs) => vec![Instruction::Env(pairs.clone())],
        Action::Workdir(path) => vec![Instruction::Workdir(path.clone())],
        Action::User(name) => vec![Instruction::User(name.clone())],
        Action::Copy(dockerfile::Copy { from, sources, destination, owner, mode, unpack }) => {
            let from_stage = match from {
                CopyFrom::Context => None,
                CopyFrom::Stage(index) => Some(*index),
            };
            let copy = |source: &String| {
                // In a Dockerfile, `/x` is `x` of the context.
                let source = if from_stage.is_some() { source } else { source.trim_start_matches('/') };
                let source = if source.is_empty() { "." } else { source };
                // Owned by root whatever the current user, as in Docker.
                let owner = Some(owner.clone().unwrap_or_else(|| "root:root".to_owned()));
                let files = CopyFiles::new(source, destination);
                Instruction::Copy(CopyFiles { owner, mode: *mode, from_stage, unpack: *unpack, ..files })
            };
            sources.iter().map(copy).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_source_is_a_step_with_its_line() {
        let text = "FROM a AS x\nRUN one\nFROM b\nCOPY --from=x /o /p\nADD /c d /e/\nCMD [\"serve\"]";
        let template = Template::from_dockerfile(text).expect("a Dockerfile");
        assert_eq!((template.start.as_deref(), template.ready.as_deref()), (Some("serve"), Some(READY)));
        let copies: Vec<_> = template
            .steps
            .iter()
            .filter_map(|step| match &step.instruction {
                Instruction::Copy(files) => Some((files.source.as_str(), files.from_stage, files.unpack)),
                _ => None,
            })
            .collect();
        assert_eq!(copies, [("/o", Some(0), false), ("c", None, true), ("d", None, true)]);
        // Every stage begins with two steps, and the last one ends with two.
        let lines: Vec<_> = (0..=11).map(|number| template.line_of_step(number)).collect();
        let (one, three) = (Some(1), Some(3));
        assert_eq!(lines, [None, one, one, Some(2), three, three, Some(4), Some(5), Some(5), three, three, None]);
    }
}
