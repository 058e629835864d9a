//! Reads instruction after instruction into a plan.

mod command;
mod copy;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::DockerfileError;
use crate::expand::{Unknown, expand};
use crate::plan::{Action, Options, Plan, Stage, Step};
use crate::scan::{Instruction, scan};
use crate::scope::{Scope, predefined};
use crate::words::{self, Word};

use command::StartWords;

/// More is no Dockerfile that somebody wrote.
const MOST_BYTES: usize = 1 << 20;
const BEFORE_FROM: &str = "there must be a FROM before it";

/// Reads the text of a Dockerfile.
///
/// # Errors
/// The first thing that cannot be built, with its place.
pub fn plan(text: &str, options: &Options) -> Result<Plan> {
    let wrong = |at: &Range<usize>, message: String| DockerfileError::new(&options.file, text, at, message);
    if text.len() > MOST_BYTES {
        return Err(wrong(&(0..0), format!("a Dockerfile of more than {MOST_BYTES} bytes")));
    }
    let (instructions, escape) = scan(text).map_err(|(at, message)| wrong(&at, message))?;
    let reader = Reader {
        options,
        text,
        escape,
        global: Scope::default(),
        predefined: predefined(options),
        asked: BTreeSet::new(),
        stages: Vec::new(),
        current: None,
        wanted: None,
    };
    reader.run(&instructions)
}

struct Reader<'a> {
    options: &'a Options,
    text: &'a str,
    escape: char,
    /// Arguments from before the first `FROM`.
    global: Scope,
    predefined: BTreeMap<String, String>,
    /// Names of arguments that the file asks for.
    asked: BTreeSet<String>,
    stages: Vec<Draft>,
    current: Option<Draft>,
    /// The number of the stage that was asked for.
    wanted: Option<usize>,
}

/// A stage that is being read.
#[derive(Clone)]
struct Draft {
    stage: Stage,
    /// Nothing but an image that something is copied from.
    is_implied: bool,
    scope: Scope,
    shell: Option<Vec<String>>,
    /// Whether the file says which user, and which directory.
    has_user: bool,
    has_workdir: bool,
    entrypoint: Option<StartWords>,
    cmd: Option<StartWords>,
    ports: Vec<u16>,
}

type Result<T> = std::result::Result<T, DockerfileError>;

impl Reader<'_> {
    fn run(mut self, instructions: &[Instruction]) -> Result<Plan> {
        for instruction in instructions {
            self.take(instruction)?;
        }
        let end = self.text.len()..self.text.len();
        if let Some(unknown) = self.options.build_args.keys().find(|name| !self.asked.contains(*name)) {
            return Err(self.wrong(&(0..0), format!("--build-arg {unknown}: no ARG asks for it")));
        }
        let last = self.current.take().ok_or_else(|| self.wrong(&end, "there is no FROM".to_owned()))?;
        self.finish_stage(last);
        if let (Some(target), None) = (&self.options.target, self.wanted) {
            return Err(self.wrong(&(0..0), format!("--target {target}: there is no stage of that name")));
        }
        let wanted = self.wanted.unwrap_or(self.stages.len() - 1);
        Ok(stages::needed(self.stages, wanted))
    }

    fn wrong(&self, at: &Range<usize>, message: String) -> DockerfileError {
        DockerfileError::new(&self.options.file, self.text, at, message)
    }

    fn wrong_in(&self, instruction: &Instruction, part: &Range<usize>, message: impl Into<String>) -> DockerfileError {
        self.wrong(&instruction.rest.place(part), message.into())
    }

    fn line(&self, instruction: &Instruction) -> usize {
        self.text[..instruction.at.start].matches('\n').count() + 1
    }

    fn take(&mut self, instruction: &Instruction) -> Result<()> {
        let keyword = instruction.keyword.as_str();
        if instruction.rest.line.is_empty() {
            let known = ["FROM", "ARG", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "USER", "EXPOSE", "LABEL", "SHELL"];
            if known.contains(&keyword) {
                return Err(self.wrong(&instruction.at, format!("{keyword} needs at least one argument")));
            }
        }
        match keyword {
            "FROM" => self.from(instruction),
            "ARG" => self.arg(instruction),
            "RUN" | "COPY" | "ADD" | "ENV" | "WORKDIR" | "USER" | "CMD" | "ENTRYPOINT" | "SHELL" | "EXPOSE"
            | "LABEL" => {
                let Some(mut draft) = self.current.take() else {
                    return Err(self.wrong(&instruction.at, BEFORE_FROM.to_owned()));
                };
                let done = self.instruct(&mut draft, instruction);
                self.current = Some(draft);
                done
            }
            "HEALTHCHECK" | "ONBUILD" | "STOPSIGNAL" | "VOLUME" | "MAINTAINER" => {
                let message = format!("{keyword} has no meaning for a sandbox and is not supported; leave it out");
                Err(self.wrong(&instruction.at, message))
            }
            other => Err(self.wrong(&instruction.at, format!("there is no instruction {other}"))),
        }
    }

    fn instruct(&mut self, draft: &mut Draft, instruction: &Instruction) -> Result<()> {
        let line = self.line(instruction);
        let action = match instruction.keyword.as_str() {
            "RUN" => Some(self.run_command(draft, instruction)?),
            "COPY" | "ADD" => Some(self.copy(draft, instruction)?),
            "ENV" => Some(self.env(draft, instruction)?),
            "WORKDIR" => {
                let path = self.expanded(&draft.scope, instruction, &whole(instruction), Unknown::Stays)?;
                draft.has_workdir = true;
                Some(Action::Workdir(path))
            }
            "USER" => {
                draft.has_user = true;
                Some(Action::User(self.user(draft, instruction)?))
            }
            "CMD" => {
                draft.cmd = Some(StartWords::of(instruction, draft.shell.as_deref()));
                None
            }
            "ENTRYPOINT" => {
                draft.entrypoint = Some(StartWords::of(instruction, draft.shell.as_deref()));
                None
            }
            "SHELL" => {
                let words = words::json(&instruction.rest.line).filter(|words| !words.is_empty());
                let message = "SHELL needs a list in JSON, as in [\"/bin/bash\", \"-c\"]";
                let words = words.ok_or_else(|| self.wrong_in(instruction, &whole(instruction).at, message))?;
                draft.shell = Some(words);
                None
            }
            "EXPOSE" => {
                self.expose(draft, instruction)?;
                None
            }
            // LABEL, which says something to people.
            _ => self.split(instruction).map(|_| None)?,
        };
        draft.stage.steps.extend(action.map(|action| Step { action, line }));
        Ok(())
    }

    fn split(&self, instruction: &Instruction) -> Result<Vec<Word>> {
        words::split(&instruction.rest.line, self.escape)
            .map_err(|(at, message)| self.wrong_in(instruction, &at, message))
    }

    /// A word of the instruction with its variables replaced.
    fn expanded(&self, scope: &Scope, instruction: &Instruction, word: &Word, unknown: Unknown) -> Result<String> {
        expand(&word.text, self.escape, unknown, &|name| scope.lookup(name)).map_err(|(at, message)| {
            self.wrong_in(instruction, &(word.at.start + at.start..word.at.start + at.end), message)
        })
    }

    fn arg(&mut self, instruction: &Instruction) -> Result<()> {
        for word in self.split(instruction)? {
            let (name, default) = match word.text.split_once('=') {
                Some((name, default)) => (name, Some(default)),
                None => (word.text.as_str(), None),
            };
            if !is_name(name) {
                return Err(self.wrong_in(instruction, &word.at, format!("'{name}' cannot be the name of an ARG")));
            }
            let scope = self.current.as_ref().map_or(&self.global, |draft| &draft.scope);
            let at = word.at.start + name.len() + 1;
            let default = default
                .map(|text| Word { text: text.to_owned(), at: at..word.at.end })
                .map(|word| self.expanded(scope, instruction, &word, Unknown::IsRefused))
                .transpose()?;
            let given = self.options.build_args.get(name).cloned();
            let inherited = || self.global.arg(name).or_else(|| self.predefined.get(name)).cloned();
            let value = given.or(default).or_else(inherited);
            self.asked.insert(name.to_owned());
            let scope = self.current.as_mut().map_or(&mut self.global, |draft| &mut draft.scope);
            scope.set_arg(name, value);
        }
        Ok(())
    }

    fn env(&self, draft: &mut Draft, instruction: &Instruction) -> Result<Action> {
        let words = self.split(instruction)?;
        let mut pairs: Vec<(String, Word)> = Vec::new();
        if words.first().is_some_and(|word| !word.text.contains('=')) {
            // `ENV NAME the rest`
            let [name, value, ..] = &words[..] else {
                return Err(self.wrong_in(instruction, &words[0].at, "ENV needs a value: NAME=value"));
            };
            let at = value.at.start..instruction.rest.line.len();
            pairs.push((name.text.clone(), Word { text: instruction.rest.line[at.clone()].to_owned(), at }));
        } else {
            for Word { text, at } in words {
                let Some((name, value)) = text.split_once('=') else {
                    return Err(self.wrong_in(instruction, &at, "ENV needs NAME=value"));
                };
                let at = at.start + name.len() + 1..at.end;
                pairs.push((name.to_owned(), Word { text: value.to_owned(), at }));
            }
        }
        // All see what was set before this instruction.
        let mut set = Vec::new();
        for (name, value) in pairs {
            if !is_name(&name) {
                let at = value.at.start.saturating_sub(name.len() + 1)..value.at.start;
                return Err(self.wrong_in(instruction, &at, format!("'{name}' cannot be the name of a variable")));
            }
            let value = self.expanded(&draft.scope, instruction, &value, Unknown::Stays)?;
            set.push((name, value));
        }
        for (name, value) in &set {
            draft.scope.set_env(name, value);
        }
        Ok(Action::Env(set))
    }

    fn user(&self, draft: &Draft, instruction: &Instruction) -> Result<String> {
        let word = whole(instruction);
        let text = self.expanded(&draft.scope, instruction, &word, Unknown::IsRefused)?;
        let (name, group) = text.split_once(':').unwrap_or((&text, &text));
        let first = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_user = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit() || c == '-');
        if !is_user {
            let message = format!("USER needs the name of a user, which '{name}' is not; numbers are not supported");
            return Err(self.wrong_in(instruction, &word.at, message));
        }
        if group != name {
            let message = "a group other than the user's own is not supported; put the user into it with RUN usermod";
            return Err(self.wrong_in(instruction, &word.at, message));
        }
        Ok(name.to_owned())
    }

    fn expose(&self, draft: &mut Draft, instruction: &Instruction) -> Result<()> {
        for word in self.split(instruction)? {
            let text = self.expanded(&draft.scope, instruction, &word, Unknown::IsRefused)?;
            let (ports, protocol) = text.split_once('/').unwrap_or((&text, "tcp"));
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            match (range, protocol.to_ascii_lowercase().as_str()) {
                (Some((first, last)), "tcp") if 0 < first && first <= last => draft.ports.extend(first..=last),
                (Some((first, last)), "udp") if 0 < first && first <= last => {}
                _ => return Err(self.wrong_in(instruction, &word.at, format!("'{text}' is no port"))),
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
fn whole(instruction: &Instruction) -> Word {
    let text = instruction.rest.line.clone();
    Word { at: 0..text.len(), text }
}

/// A flag such as `--from=build`.
struct Flag {
    name: String,
    value: Option<Word>,
    at: Range<usize>,
}

/// The flags that an instruction begins with, and where the rest begins.
fn flags(instruction: &Instruction) -> (Vec<Flag>, usize) {
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
