//! The program: parses, builds, runs and reports. One file a subcommand.
#![forbid(unsafe_code)]

mod config;
mod data;
mod doctor;
mod down;
mod up;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Sandboxes for AI agents on this machine, spoken to with the official E2B SDKs.
///
/// No cloud account, no KVM, no Docker: `sandbar up` starts a server that the unmodified Python and JavaScript `e2b`
/// packages accept.
#[derive(Parser)]
#[command(
    name = "sandbar",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  sandbar doctor            what this machine offers, and how to get what is missing
  sandbar up                serve on http://127.0.0.1:4980; prints the variables for the SDKs
  sandbar down              end the server and every sandbox

Configuration is read from a file, then SANDBAR_* variables, then flags; see `sandbar up --help`."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    Doctor(doctor::Doctor),
}

fn main() -> ExitCode {
    // The engine runs this very executable for work that only a single-threaded process can do.
    match std::env::args().nth(1).as_deref() {
        Some(engine::launch::ARGUMENT) => engine::launch::main(),
        Some(engine::probe::ARGUMENT) => engine::probe::child_main(),
        _ => {}
    }
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run(),
        Command::Doctor(doctor) => return doctor.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbar: {error:#}");
            ExitCode::FAILURE
        }
    }
}
