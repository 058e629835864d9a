//! Interprets the instructions and builds the plan.

mod command;
mod copy;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::DockerfileError;
use crate::expand::{UnknownVariable, expand};
use crate::plan::{Action, Options, Plan, Stage, Step};
use crate::scan::{Instruction, scan};
use crate::scope::{StageScope, predefined};
use crate::words::{self, Word};

use command::StartCommand;

/// Bounds hostile input; real Dockerfiles are far smaller.
const MAX_BYTES: usize = 1 << 20;
/// Limit of what the text becomes: values of variables, and one copy per step that uses them.
const MAX_PLAN_BYTES: usize = 4 * MAX_BYTES;
/// What a port counts as in a plan.
const PORT_BYTES: usize = 16;
/// Limit of stages, with the images that are only copied from.
const MAX_STAGES: usize = 1000;
const BEFORE_FROM: &str = "there must be a FROM before it";

/// Parses the text of a Dockerfile into a plan.
///
/// # Errors
/// [`DockerfileError`] for the first instruction that cannot be built, with its position.
pub fn plan(text: &str, options: &Options) -> Result<Plan> {
    let error_at = |at: &Range<usize>, message: String| DockerfileError::new(&options.file, text, at, message);
    if text.len() > MAX_BYTES {
        return Err(error_at(&(0..0), format!("a Dockerfile of more than {MAX_BYTES} bytes")));
    }
    let (instructions, escape) = scan(text).map_err(|(at, message)| error_at(&at, message))?;
    let reader = Reader {
        options,
        text,
        line_starts: text.match_indices('\n').map(|(newline, _)| newline + 1).collect(),
        left: MAX_PLAN_BYTES,
        escape,
        global: StageScope::default(),
        predefined: predefined(options),
        declared: BTreeSet::new(),
        stages: Vec::new(),
        current: None,
        wanted: None,
    };
    reader.run(&instructions)
}

struct Reader<'a> {
    options: &'a Options,
    text: &'a str,
    /// Offsets of all lines but the first.
    line_starts: Vec<usize>,
    /// Bytes that the plan may still take.
    left: usize,
    escape: char,
    /// Arguments declared before the first `FROM`.
    global: StageScope,
    predefined: BTreeMap<String, String>,
    /// Names of all arguments that the file declares.
    declared: BTreeSet<String>,
    stages: Vec<Draft>,
    current: Option<Draft>,
    /// Index of the target stage.
    wanted: Option<usize>,
}

/// A stage under construction.
#[derive(Clone)]
struct Draft {
    stage: Stage,
    /// An image that only serves as the source of a copy.
    is_implied: bool,
    scope: StageScope,
    shell: Option<Vec<String>>,
    /// Whether the file sets a user, and a working directory.
    has_user: bool,
    has_workdir: bool,
    entrypoint: Option<StartCommand>,
    cmd: Option<StartCommand>,
    ports: BTreeSet<u16>,
}

type Result<T> = std::result::Result<T, DockerfileError>;

impl Reader<'_> {
    fn run(mut self, instructions: &[Instruction]) -> Result<Plan> {
        for instruction in instructions {
            self.interpret(instruction)?;
        }
        let end = self.text.len()..self.text.len();
        if let Some(unknown) = self.options.build_args.keys().find(|name| !self.declared.contains(*name)) {
            return Err(self.error_at(&(0..0), format!("--build-arg {unknown}: no ARG asks for it")));
        }
        let last = self.current.take().ok_or_else(|| self.error_at(&end, "there is no FROM".to_owned()))?;
        self.finish_stage(last);
        if let (Some(target), None) = (&self.options.target, self.wanted) {
            return Err(self.error_at(&(0..0), format!("--target {target}: there is no stage of that name")));
        }
        let wanted = self.wanted.unwrap_or(self.stages.len() - 1);
        Ok(stages::build_plan(self.stages, wanted))
    }

    fn error_at(&self, at: &Range<usize>, message: String) -> DockerfileError {
        DockerfileError::new(&self.options.file, self.text, at, message)
    }

    fn error_in(&self, instruction: &Instruction, part: &Range<usize>, message: impl Into<String>) -> DockerfileError {
        self.error_at(&instruction.rest.place(part), message.into())
    }

    fn line(&self, instruction: &Instruction) -> usize {
        self.line_starts.partition_point(|start| *start <= instruction.at.start) + 1
    }

    /// Takes `bytes` from what the plan may still take.
    fn charge(&mut self, instruction: &Instruction, bytes: usize) -> Result<()> {
        let message = || format!("with this instruction the build takes more than {MAX_PLAN_BYTES} bytes");
        let left = self.left.checked_sub(bytes).ok_or_else(|| self.error_at(&instruction.at, message()))?;
        self.left = left;
        Ok(())
    }

    fn interpret(&mut self, instruction: &Instruction) -> Result<()> {
        let keyword = instruction.keyword.as_str();
        if instruction.rest.line.is_empty() {
            let known = ["FROM", "ARG", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "USER", "EXPOSE", "LABEL", "SHELL"];
            if known.contains(&keyword) {
                return Err(self.error_at(&instruction.at, format!("{keyword} needs at least one argument")));
            }
        }
        match keyword {
            "FROM" => self.from(instruction),
            "ARG" => self.arg(instruction),
            "RUN" | "COPY" | "ADD" | "ENV" | "WORKDIR" | "USER" | "CMD" | "ENTRYPOINT" | "SHELL" | "EXPOSE"
            | "LABEL" => {
                let Some(mut draft) = self.current.take() else {
                    return Err(self.error_at(&instruction.at, BEFORE_FROM.to_owned()));
                };
                let done = self.add_step(&mut draft, instruction);
                self.current = Some(draft);
                done
            }
            "HEALTHCHECK" | "ONBUILD" | "STOPSIGNAL" | "VOLUME" | "MAINTAINER" => {
                let message = format!("{keyword} has no meaning for a sandbox and is not supported; leave it out");
                Err(self.error_at(&instruction.at, message))
            }
            other => Err(self.error_at(&instruction.at, format!("there is no instruction {other}"))),
        }
    }

    fn add_step(&mut self, draft: &mut Draft, instruction: &Instruction) -> Result<()> {
        let line = self.line(instruction);
        let action = match instruction.keyword.as_str() {
            "RUN" => Some(self.run_command(draft, instruction)?),
            "COPY" | "ADD" => Some(self.copy(draft, instruction)?),
            "ENV" => Some(self.env(draft, instruction)?),
            "WORKDIR" => {
                let path =
                    self.expand_word(&draft.scope, instruction, &whole_line(instruction), UnknownVariable::Keep)?;
                draft.has_workdir = true;
                Some(Action::Workdir(path))
            }
            "USER" => {
                draft.has_user = true;
                Some(Action::User(self.user(draft, instruction)?))
            }
            "CMD" | "ENTRYPOINT" => {
                let command = StartCommand::from_instruction(instruction, draft.shell.as_deref());
                self.charge(instruction, command.bytes())?;
                let place = if instruction.keyword == "CMD" { &mut draft.cmd } else { &mut draft.entrypoint };
                *place = Some(command);
                None
            }
            "SHELL" => {
                let words = words::parse_json_list(&instruction.rest.line).filter(|words| !words.is_empty());
                let message = "SHELL needs a list in JSON, as in [\"/bin/bash\", \"-c\"]";
                let words = words.ok_or_else(|| self.error_in(instruction, &whole_line(instruction).at, message))?;
                draft.shell = Some(words);
                None
            }
            "EXPOSE" => {
                self.expose(draft, instruction)?;
                None
            }
            // LABEL has no effect in a sandbox; its syntax is still checked.
            _ => self.split(instruction).map(|_| None)?,
        };
        if let Some(action) = action {
            self.charge(instruction, action.bytes())?;
            draft.stage.steps.push(Step { action, line });
        }
        Ok(())
    }

    fn split(&self, instruction: &Instruction) -> Result<Vec<Word>> {
        words::split(&instruction.rest.line, self.escape)
            .map_err(|(at, message)| self.error_in(instruction, &at, message))
    }

    /// Expands the variables of one word of the instruction.
    fn expand_word(
        &self,
        scope: &StageScope,
        instruction: &Instruction,
        word: &Word,
        unknown: UnknownVariable,
    ) -> Result<String> {
        expand(&word.text, self.escape, unknown, &|name| scope.lookup(name)).map_err(|(at, message)| {
            self.error_in(instruction, &(word.at.start + at.start..word.at.start + at.end), message)
        })
    }

    fn arg(&mut self, instruction: &Instruction) -> Result<()> {
        for word in self.split(instruction)? {
            let (name, default) = match word.text.split_once('=') {
                Some((name, default)) => (name, Some(default)),
                None => (word.text.as_str(), None),
            };
            if !is_name(name) {
                return Err(self.error_in(instruction, &word.at, format!("'{name}' cannot be the name of an ARG")));
            }
            let scope = self.current.as_ref().map_or(&self.global, |draft| &draft.scope);
            let at = word.at.start + name.len() + 1;
            let default = default
                .map(|text| Word { text: text.to_owned(), at: at..word.at.end })
                .map(|word| self.expand_word(scope, instruction, &word, UnknownVariable::Reject))
                .transpose()?;
            let given = self.options.build_args.get(name).cloned();
            let inherited = || self.global.arg(name).or_else(|| self.predefined.get(name)).cloned();
            let value = given.or(default).or_else(inherited);
            self.charge(instruction, name.len() + value.as_ref().map_or(0, String::len))?;
            self.declared.insert(name.to_owned());
            let scope = self.current.as_mut().map_or(&mut self.global, |draft| &mut draft.scope);
            scope.set_arg(name, value);
        }
        Ok(())
    }

    fn env(&self, draft: &mut Draft, instruction: &Instruction) -> Result<Action> {
        let words = self.split(instruction)?;
        let mut pairs: Vec<(String, Word)> = Vec::new();
        if words.first().is_some_and(|word| !word.text.contains('=')) {
            // The legacy form `ENV NAME the rest`.
            let [name, value, ..] = &words[..] else {
                return Err(self.error_in(instruction, &words[0].at, "ENV needs a value: NAME=value"));
            };
            let at = value.at.start..instruction.rest.line.len();
            pairs.push((name.text.clone(), Word { text: instruction.rest.line[at.clone()].to_owned(), at }));
        } else {
            for Word { text, at } in words {
                let Some((name, value)) = text.split_once('=') else {
                    return Err(self.error_in(instruction, &at, "ENV needs NAME=value"));
                };
                let at = at.start + name.len() + 1..at.end;
                pairs.push((name.to_owned(), Word { text: value.to_owned(), at }));
            }
        }
        // Every value sees the variables set before this instruction.
        let mut set = Vec::new();
        for (name, value) in pairs {
            if !is_name(&name) {
                let at = value.at.start.saturating_sub(name.len() + 1)..value.at.start;
                return Err(self.error_in(instruction, &at, format!("'{name}' cannot be the name of a variable")));
            }
            let value = self.expand_word(&draft.scope, instruction, &value, UnknownVariable::Keep)?;
            set.push((name, value));
        }
        for (name, value) in &set {
            draft.scope.set_env(name, value);
        }
        Ok(Action::Env(set))
    }

    fn user(&self, draft: &Draft, instruction: &Instruction) -> Result<String> {
        let word = whole_line(instruction);
        let text = self.expand_word(&draft.scope, instruction, &word, UnknownVariable::Reject)?;
        let (name, group) = text.split_once(':').unwrap_or((&text, &text));
        let first = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_user = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit() || c == '-');
        if !is_user {
            let message = format!("USER needs the name of a user, which '{name}' is not; numbers are not supported");
            return Err(self.error_in(instruction, &word.at, message));
        }
        if group != name {
            let message = "a group other than the user's own is not supported; put the user into it with RUN usermod";
            return Err(self.error_in(instruction, &word.at, message));
        }
        Ok(name.to_owned())
    }

    fn expose(&mut self, draft: &mut Draft, instruction: &Instruction) -> Result<()> {
        for word in self.split(instruction)? {
            let text = self.expand_word(&draft.scope, instruction, &word, UnknownVariable::Reject)?;
            let (ports, protocol) = text.split_once('/').unwrap_or((&text, "tcp"));
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            match (range, protocol.to_ascii_lowercase().as_str()) {
                (Some((first, last)), "tcp") if 0 < first && first <= last => {
                    self.charge(instruction, PORT_BYTES * (usize::from(last - first) + 1))?;
                    draft.ports.extend(first..=last);
                }
                (Some((first, last)), "udp") if 0 < first && first <= last => {}
                _ => return Err(self.error_in(instruction, &word.at, format!("'{text}' is no port"))),
            }
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// All arguments as one word.
fn whole_line(instruction: &Instruction) -> Word {
    let text = instruction.rest.line.clone();
    Word { at: 0..text.len(), text }
}

/// A flag such as `--from=build`.
struct Flag {
    name: String,
    value: Option<Word>,
    at: Range<usize>,
}

/// Parses the leading flags, and returns the offset of the rest.
fn parse_flags(instruction: &Instruction) -> (Vec<Flag>, usize) {
    let (line, mut at, mut found) = (&instruction.rest.line, 0, Vec::new());
    while line[at..].starts_with("--") {
        let length = line[at..].find(char::is_whitespace).unwrap_or(line.len() - at);
        let text = &line[at..at + length];
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(Word { text: value.to_owned(), at: at + name.len() + 1..at + length })),
            None => (text, None),
        };
        found.push(Flag { name: name.to_owned(), value, at: at..at + length });
        at += length;
        at += line[at..].len() - line[at..].trim_start().len();
    }
    (found, at)
}
