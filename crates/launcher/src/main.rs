//! The launcher's executable: what of the engine's work only a single-threaded process can do.
#![forbid(unsafe_code)]

use std::process::exit;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(launcher::LAUNCH) => launcher::launch(),
        Some(launcher::HOLD) => launcher::users::hold(),
        Some(launcher::TRY) => launcher::trial::child_main(),
        // It is carried inside the program that starts it, and has nobody else to talk to.
        _ => exit(2),
    }
}
