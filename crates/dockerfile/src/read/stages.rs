//! Stages: their bases, and which of them a build needs.

use std::collections::BTreeSet;

use super::command::StartCommand;
use super::{Draft, MAX_STAGES, PORT_BYTES, Reader, Result, parse_flags};
use crate::expand::{UnknownVariable, Value, expand};
use crate::plan::{Action, CopyFrom, Origin, Plan, Stage, Step};
use crate::scan::Instruction;
use crate::scope::StageScope;
use crate::words::{self, Word};

impl Reader<'_> {
    pub(super) fn from(&mut self, instruction: &Instruction) -> Result<()> {
        if let Some(draft) = self.current.take() {
            self.finish_stage(draft);
        }
        let (given, rest) = parse_flags(instruction);
        for flag in given {
            match (flag.name.as_str(), &flag.value) {
                ("--platform", Some(value)) => {
                    let wanted = self.expand_in_from(instruction, value)?;
                    if wanted != self.options.platform {
                        let message = format!("sandboxes here run on {}, not on '{wanted}'", self.options.platform);
                        return Err(self.error_in(instruction, &flag.at, message));
                    }
                }
                _ => return Err(self.error_in(instruction, &flag.at, "FROM knows --platform=OS/ARCHITECTURE only")),
            }
        }
        let all = words::split(&instruction.rest.line[rest..], self.escape);
        let all =
            all.map_err(|(at, message)| self.error_in(instruction, &(at.start + rest..at.end + rest), message))?;
        let all: Vec<Word> =
            all.into_iter().map(|word| Word { at: word.at.start + rest..word.at.end + rest, ..word }).collect();
        let (image, name) = match &all[..] {
            [image] => (image, None),
            [image, keyword, name] if keyword.text.eq_ignore_ascii_case("as") => (image, Some(name)),
            [_, second, ..] => return Err(self.error_in(instruction, &second.at, "FROM is IMAGE, or IMAGE AS NAME")),
            [] => return Err(self.error_at(&instruction.at, "FROM needs an image".to_owned())),
        };
        if let Some(name) = name {
            self.check_stage_name(instruction, name)?;
        }
        let base = self.expand_in_from(instruction, image)?;
        let name = name.map(|name| name.text.to_lowercase());
        let draft = self.begin_stage(instruction, image, &base, name)?;
        self.charge(instruction, draft.inherited_bytes())?;
        self.check_count(instruction)?;
        self.current = Some(draft);
        Ok(())
    }

    fn check_stage_name(&self, instruction: &Instruction, name: &Word) -> Result<()> {
        let lower = name.text.to_lowercase();
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        if !lower.starts_with(|c: char| c.is_ascii_lowercase()) || !lower.chars().all(inner) {
            return Err(self.error_in(instruction, &name.at, format!("'{}' cannot name a stage", name.text)));
        }
        if self.find_stage(&lower).is_some() {
            return Err(self.error_in(instruction, &name.at, format!("there is a stage {lower} already")));
        }
        Ok(())
    }

    /// Expands a word of `FROM`, which sees only the arguments declared before the first `FROM`.
    fn expand_in_from(&self, instruction: &Instruction, word: &Word) -> Result<String> {
        let lookup = |name: &str| match self.global.lookup(name) {
            Value::Unknown => self.predefined.get(name).map_or(Value::Unset, |value| Value::Set(value)),
            known => known,
        };
        expand(&word.text, self.escape, UnknownVariable::Reject, &lookup).map_err(|(at, message)| {
            self.error_in(instruction, &(word.at.start + at.start..word.at.start + at.end), message)
        })
    }

    fn begin_stage(&self, instruction: &Instruction, image: &Word, base: &str, name: Option<String>) -> Result<Draft> {
        let line = self.line(instruction);
        if base.trim().is_empty() {
            return Err(self.error_in(instruction, &image.at, "FROM names no image: its variables are empty"));
        }
        if base == "scratch" {
            let message = "sandboxes need a shell, which scratch has not; begin with an image such as e2bdev/base";
            return Err(self.error_in(instruction, &image.at, message));
        }
        if let Some(earlier) = self.find_stage(base) {
            let before = &self.stages[earlier];
            let stage = Stage { name, origin: Origin::Stage(earlier), steps: Vec::new(), line };
            return Ok(before.child(stage));
        }
        let first = |action| Step { action, line };
        // As in Docker, whatever user the image sets: the official SDKs build Dockerfiles this way.
        let steps = vec![first(Action::User("root".to_owned())), first(Action::Workdir("/".to_owned()))];
        Ok(Draft::new(Stage { name, origin: Origin::Image(base.to_owned()), steps, line }))
    }

    pub(super) fn find_stage(&self, name: &str) -> Option<usize> {
        let name = name.to_lowercase();
        self.stages.iter().position(|draft| draft.stage.name.as_ref() == Some(&name))
    }

    pub(super) fn check_count(&self, instruction: &Instruction) -> Result<()> {
        match self.stages.len() < MAX_STAGES {
            true => Ok(()),
            false => Err(self.error_at(&instruction.at, format!("there are more than {MAX_STAGES} stages"))),
        }
    }

    /// Resolves the number in `COPY --from`: the n-th `FROM`.
    pub(super) fn find_stage_by_number(&self, number: usize) -> Option<usize> {
        let of_file = self.stages.iter().enumerate().filter(|(_, draft)| !draft.is_implied);
        of_file.map(|(index, _)| index).nth(number)
    }

    /// Adds a stage that is only an image to copy from, or returns the existing one.
    pub(super) fn add_image_stage(&mut self, image: &str, line: usize) -> usize {
        let origin = Origin::Image(image.to_owned());
        let known = |draft: &Draft| draft.stage.origin == origin && draft.is_implied;
        if let Some(index) = self.stages.iter().position(known) {
            return index;
        }
        let stage = Stage { name: None, origin, steps: Vec::new(), line };
        self.stages.push(Draft { is_implied: true, ..Draft::new(stage) });
        self.stages.len() - 1
    }

    pub(super) fn finish_stage(&mut self, draft: Draft) {
        let target = self.options.target.as_ref().map(|target| target.to_lowercase());
        if target.is_some() && draft.stage.name == target {
            self.wanted = Some(self.stages.len());
        }
        self.stages.push(draft);
    }
}

impl Draft {
    fn new(stage: Stage) -> Self {
        Self {
            stage,
            is_implied: false,
            scope: StageScope::default(),
            shell: None,
            has_user: false,
            has_workdir: false,
            entrypoint: None,
            cmd: None,
            ports: BTreeSet::new(),
        }
    }

    /// A stage based on this one: with its environment and settings, without its steps.
    fn child(&self, stage: Stage) -> Self {
        Self {
            stage,
            is_implied: false,
            scope: self.scope.child_scope(),
            shell: self.shell.clone(),
            has_user: self.has_user,
            has_workdir: self.has_workdir,
            entrypoint: self.entrypoint.clone(),
            cmd: self.cmd.clone(),
            ports: self.ports.clone(),
        }
    }

    /// What a new stage has a copy of.
    fn inherited_bytes(&self) -> usize {
        let commands = [&self.entrypoint, &self.cmd].into_iter().flatten().map(StartCommand::bytes).sum::<usize>();
        let shell: usize = self.shell.iter().flatten().map(String::len).sum();
        self.scope.env_bytes() + commands + shell + PORT_BYTES * self.ports.len()
    }
}

/// Builds the plan of the stage `wanted` and its dependencies.
pub(super) fn build_plan(drafts: Vec<Draft>, wanted: usize) -> Plan {
    let mut is_needed = vec![false; drafts.len()];
    let mut pending = vec![wanted];
    while let Some(index) = pending.pop() {
        if !std::mem::replace(&mut is_needed[index], true) {
            pending.extend(drafts[index].stage.uses());
        }
    }
    let mut numbers = Vec::new();
    let mut next = 0;
    for needed in &is_needed {
        numbers.push(next);
        next += usize::from(*needed);
    }
    let mut last = drafts[wanted].clone();
    let (start_command, ports) = (
        super::command::join_start_command(last.entrypoint.take(), last.cmd.take()),
        last.ports.iter().copied().collect(),
    );
    let mut stages: Vec<Stage> = Vec::new();
    for (draft, _) in drafts.into_iter().zip(is_needed).filter(|(_, needed)| *needed) {
        let mut stage = draft.stage;
        if let Origin::Stage(index) = &mut stage.origin {
            *index = numbers[*index];
        }
        for step in &mut stage.steps {
            if let Action::Copy(copy) = &mut step.action
                && let CopyFrom::Stage(index) = &mut copy.from
            {
                *index = numbers[*index];
            }
        }
        stages.push(stage);
    }
    if let Some(stage) = stages.last_mut() {
        // The defaults of a sandbox, unless the file sets them.
        let line = stage.line;
        let mut add = |action| stage.steps.push(Step { action, line });
        if !last.has_user {
            add(Action::User("user".to_owned()));
        }
        if !last.has_workdir {
            add(Action::Workdir("/home/user".to_owned()));
        }
    }
    Plan { stages, start_command, ports }
}

impl Stage {
    fn uses(&self) -> Vec<usize> {
        let begins = match self.origin {
            Origin::Stage(index) => Some(index),
            Origin::Image(_) => None,
        };
        let copies = self.steps.iter().filter_map(|step| match &step.action {
            Action::Copy(copy) => match copy.from {
                CopyFrom::Stage(index) => Some(index),
                CopyFrom::Context => None,
            },
            _ => None,
        });
        begins.into_iter().chain(copies).collect()
    }
}
