//! Searches files where they are, for sandboxes that have no ripgrep: its engine, behind those of its flags that the tools
//! use, with the same output. One static executable, sent into a sandbox once.
//!
//! With `--run` as its first argument it runs a command of a model instead, faster than a script could.
//!
//! What it does not know it refuses, so that a flag added to the tools is added here or noticed.

mod arguments;
mod run;
mod search;
mod walk;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Arguments, Mode};

/// What ripgrep's exit codes say.
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
            // Nobody is left to tell when this fails too.
            let _ = writeln!(io::stderr(), "sandbar-search: {message}");
            FAILED.into()
        }
    }
}
