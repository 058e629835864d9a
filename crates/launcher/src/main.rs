//! The launcher's executable: work of the engine that only a single-threaded process can do.
#![forbid(unsafe_code)]

use std::process::exit;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(launcher::LAUNCH) => launcher::launch(),
        Some(launcher::HOLD) => launcher::users::hold(),
        Some(launcher::TRY) => launcher::trial::child_main(),
        // Only the engine, which embeds this program, starts it.
        _ => exit(2),
    }
}
