//! Commands in their two forms: a line for a shell, or a list of words.

use super::{Draft, Reader, Result, flags};
use crate::plan::Action;
use crate::scan::Instruction;
use crate::words::{json, quoted};

/// What `ENTRYPOINT` or `CMD` says.
#[derive(Debug, Clone)]
pub(super) enum StartWords {
    List(Vec<String>),
    Line(String),
}

impl StartWords {
    pub(super) fn of(instruction: &Instruction, shell: Option<&[String]>) -> Self {
        match json(&instruction.rest.line) {
            Some(words) => Self::List(words),
            None => Self::Line(in_shell(&instruction.rest.line, shell)),
        }
    }
}

/// Both together, as one line.
pub(super) fn start(entrypoint: Option<StartWords>, cmd: Option<StartWords>) -> Option<String> {
    let line = match (entrypoint, cmd) {
        // A line takes no arguments.
        (Some(StartWords::Line(line)), _) => line,
        (Some(StartWords::List(mut words)), cmd) if !words.is_empty() => {
            match cmd {
                Some(StartWords::List(more)) => words.extend(more),
                Some(StartWords::Line(line)) => words.extend(["/bin/sh".to_owned(), "-c".to_owned(), line]),
                None => {}
            }
            joined(&words)
        }
        (_, Some(StartWords::List(words))) => joined(&words),
        (_, Some(StartWords::Line(line))) => line,
        (_, None) => String::new(),
    };
    Some(line).filter(|line| !line.trim().is_empty())
}

fn joined(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn in_shell(line: &str, shell: Option<&[String]>) -> String {
    match shell {
        Some(shell) => format!("{} {}", joined(shell), quoted(line)),
        None => line.to_owned(),
    }
}

impl Reader<'_> {
    pub(super) fn run_command(&self, draft: &Draft, instruction: &Instruction) -> Result<Action> {
        let (given, rest) = flags(instruction);
        if let Some(flag) = given.first() {
            let message = format!("RUN {} is not supported; leave it out", flag.name);
            return Err(self.wrong_in(instruction, &flag.at, message));
        }
        let line = &instruction.rest.line[rest..];
        let command = match (json(line), &instruction.documents[..]) {
            (Some(words), _) if words.is_empty() => {
                return Err(self.wrong_in(instruction, &(rest..rest + line.len()), "RUN needs a command"));
            }
            (Some(words), _) => joined(&words),
            (None, []) => in_shell(line, draft.shell.as_deref()),
            (None, [document]) if document.mark == (rest..rest + line.trim_end().len()) => {
                if document.body.starts_with("#!") {
                    as_program(&document.body)
                } else {
                    in_shell(&document.body, draft.shell.as_deref())
                }
            }
            (None, documents) => {
                let mut script = format!("{line}\n");
                for document in documents {
                    script += &format!("{}{}\n", document.body, document.delimiter);
                }
                in_shell(&script, draft.shell.as_deref())
            }
        };
        Ok(Action::Run(format!("{}{command}", draft.scope.exports())))
    }
}

/// Runs a text that says itself which program reads it.
fn as_program(text: &str) -> String {
    let body = quoted(text);
    format!(
        "program=$(mktemp) && printf %s {body} >\"$program\" && chmod +x \"$program\" && \"$program\"; code=$?; \
         rm -f \"$program\"; exit $code"
    )
}
