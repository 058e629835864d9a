//! Commands in shell form (one line) or exec form (a JSON list).

use super::{Draft, Reader, Result, parse_flags};
use crate::plan::Action;
use crate::scan::Instruction;
use crate::words::{parse_json_list, shell_quote};

/// The arguments of `ENTRYPOINT` or `CMD`.
#[derive(Debug, Clone)]
pub(super) enum StartCommand {
    List(Vec<String>),
    Line(String),
}

impl StartCommand {
    pub(super) fn from_instruction(instruction: &Instruction, shell: Option<&[String]>) -> Self {
        match parse_json_list(&instruction.rest.line) {
            Some(words) => Self::List(words),
            None => Self::Line(wrap_in_shell(&instruction.rest.line, shell)),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::List(words) => words.iter().map(String::len).sum(),
            Self::Line(line) => line.len(),
        }
    }
}

/// Joins both into one shell line.
pub(super) fn join_start_command(entrypoint: Option<StartCommand>, cmd: Option<StartCommand>) -> Option<String> {
    let line = match (entrypoint, cmd) {
        // A shell-form entrypoint takes no arguments.
        (Some(StartCommand::Line(line)), _) => line,
        (Some(StartCommand::List(mut words)), cmd) if !words.is_empty() => {
            match cmd {
                Some(StartCommand::List(more)) => words.extend(more),
                Some(StartCommand::Line(line)) => words.extend(["/bin/sh".to_owned(), "-c".to_owned(), line]),
                None => {}
            }
            shell_join(&words)
        }
        (_, Some(StartCommand::List(words))) => shell_join(&words),
        (_, Some(StartCommand::Line(line))) => line,
        (_, None) => String::new(),
    };
    Some(line).filter(|line| !line.trim().is_empty())
}

fn shell_join(words: &[String]) -> String {
    words.iter().map(|word| shell_quote(word)).collect::<Vec<_>>().join(" ")
}

fn wrap_in_shell(line: &str, shell: Option<&[String]>) -> String {
    match shell {
        Some(shell) => format!("{} {}", shell_join(shell), shell_quote(line)),
        None => line.to_owned(),
    }
}

impl Reader<'_> {
    pub(super) fn run_command(&self, draft: &Draft, instruction: &Instruction) -> Result<Action> {
        let (given, rest) = parse_flags(instruction);
        if let Some(flag) = given.first() {
            let message = format!("RUN {} is not supported; leave it out", flag.name);
            return Err(self.error_in(instruction, &flag.at, message));
        }
        let line = &instruction.rest.line[rest..];
        let command = match (parse_json_list(line), &instruction.documents[..]) {
            (Some(words), _) if words.is_empty() => {
                return Err(self.error_in(instruction, &(rest..rest + line.len()), "RUN needs a command"));
            }
            (Some(words), _) => shell_join(&words),
            (None, []) => wrap_in_shell(line, draft.shell.as_deref()),
            (None, [document]) if document.mark == (rest..rest + line.trim_end().len()) => {
                if document.body.starts_with("#!") {
                    run_as_script(&document.body)
                } else {
                    wrap_in_shell(&document.body, draft.shell.as_deref())
                }
            }
            (None, documents) => {
                let mut script = format!("{line}\n");
                for document in documents {
                    script += &format!("{}{}\n", document.body, document.delimiter);
                }
                wrap_in_shell(&script, draft.shell.as_deref())
            }
        };
        Ok(Action::Run(format!("{}{command}", draft.scope.exports())))
    }
}

/// Runs a script that begins with a `#!` line.
fn run_as_script(text: &str) -> String {
    let body = shell_quote(text);
    format!(
        "program=$(mktemp) && printf %s {body} >\"$program\" && chmod +x \"$program\" && \"$program\"; code=$?; \
         rm -f \"$program\"; exit $code"
    )
}
