//! Searches files inside a sandbox that has no ripgrep: ripgrep's engine behind the flags that the
//! tools use, with the same output. One static executable, uploaded to a sandbox once.
//!
//! With `--run` as its first argument it runs a command instead, with fewer processes than the
//! script.
//!
//! It refuses unknown flags, so that a flag added to the tools must be added here too.

mod arguments;
mod run;
mod search;
mod walk;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Arguments, Mode};

/// ripgrep's exit codes.
const FOUND: u8 = 0;
const NOTHING: u8 = 1;
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "--run").is_some() {
        return run::run(arguments);
    }
    let result = Arguments::parse(arguments).and_then(|arguments| match arguments.mode {
        Mode::Files => walk::list(&arguments),
        Mode::Count | Mode::Names | Mode::Json => search::search(&arguments),
    });
    match result {
        Ok(true) => FOUND.into(),
        Ok(false) => NOTHING.into(),
        Err(message) => {
            // An error on stderr cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "sandbar-sandbox-helper: {message}");
            FAILED.into()
        }
    }
}
