//! The meaning of exit codes.

use crate::result::ErrorCode;

/// Whether an exit code is a failure to the model. Some programs use 1 for a negative answer.
pub(super) fn failure_for_exit(command: &str, exit_code: i32) -> Option<ErrorCode> {
    match exit_code {
        0 => None,
        1 if uses_exit_1_for_no(last_command(command)) => None,
        _ => Some(ErrorCode::CommandFailed),
    }
}

fn uses_exit_1_for_no(words: &str) -> bool {
    let mut words = words.split_whitespace().skip_while(|word| {
        let name = word.split('=').next().unwrap_or_default();
        word.contains('=') && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    });
    let first = words.next().unwrap_or_default();
    let program = first.rsplit('/').next().unwrap_or_default();
    match program {
        "grep" | "rg" | "ugrep" | "egrep" | "fgrep" | "diff" | "cmp" | "test" | "[" | "[[" => true,
        "git" => matches!(words.find(|word| !word.starts_with('-')), Some("grep" | "diff")),
        _ => false,
    }
}

/// The part of a command line that mostly determines its exit code.
fn last_command(command: &str) -> &str {
    let command = command.trim_end().trim_end_matches(';');
    let (mut quote, mut start, mut escaped) = (None, 0, false);
    for (at, letter) in command.char_indices() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some('\'') | None | Some('"'), '\\') if quote != Some('\'') => escaped = true,
            (Some(open), letter) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, ';' | '|' | '&' | '\n') => start = at + 1,
            _ => {}
        }
    }
    command[start..].trim_start()
}

/// Name and usual meaning of the signal that an exit code stands for.
pub(super) fn signal_name(exit_code: i32) -> Option<(&'static str, &'static str)> {
    Some(match exit_code - 128 {
        1 => ("SIGHUP", ""),
        2 => ("SIGINT", ""),
        3 => ("SIGQUIT", ""),
        4 => ("SIGILL", ""),
        6 => ("SIGABRT", ", an assertion or abort()"),
        8 => ("SIGFPE", ""),
        9 => ("SIGKILL", ", often out of memory"),
        11 => ("SIGSEGV", ", a crash"),
        13 => ("SIGPIPE", ""),
        15 => ("SIGTERM", ""),
        _ => return None,
    })
}

/// Meaning of exit codes that mean the same everywhere.
pub(super) fn hint(exit_code: Option<i32>, body: &str) -> Option<String> {
    match exit_code? {
        126 => {
            Some("[The file was found but cannot be executed: try chmod +x, or run it with its interpreter.]".into())
        }
        127 => {
            let missing = body.lines().rev().find_map(|line| {
                let head = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found"))?;
                head.rsplit(": ").next()
            });
            Some(match missing {
                Some(name) => {
                    format!("[{name} is not installed or not in PATH; install it, or check the name with `type -a`.]")
                }
                None => "[A program was not found; check that it is installed and in PATH.]".into(),
            })
        }
        code => signal_name(code).map(|(name, meaning)| format!("[killed by {name}{meaning}]")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_search_result_is_no_failure() {
        for command in [
            "grep x f",
            "cat f | grep -c x",
            "cd /a && git diff --exit-code",
            "LC_ALL=C rg x",
            "[ -f x ]",
            "a; diff b c;",
        ] {
            assert_eq!(failure_for_exit(command, 1), None, "{command}");
        }
        for command in ["make", "grep x f; false", "echo 'a | grep b'", "git commit", "grep x | wc -l"] {
            assert_eq!(failure_for_exit(command, 1), Some(ErrorCode::CommandFailed), "{command}");
        }
        assert_eq!(failure_for_exit("grep x f", 2), Some(ErrorCode::CommandFailed));
    }

    #[test]
    fn missing_program_is_named() {
        let hint = hint(Some(127), "bash: line 1: foo: command not found\n").expect("a hint");
        assert!(hint.starts_with("[foo is not installed"), "{hint}");
    }
}
