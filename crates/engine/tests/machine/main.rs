//! Sandboxes against the real kernel: root is needed, and whatever is missing fails the tests.
//!
//! The program plays every part: guest (process 1 of the sandboxes, a server of shell commands), a server to be killed, and
//! the tests. Arguments that match no part filter the tests by name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod boot_time;
mod guest;
mod isolation;
mod life;
mod support;
mod survival;
mod volumes;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.first().is_some_and(|name| name == "sandbar-guest") {
        guest::main();
    }
    if arguments.get(1).is_some_and(|part| part == survival::SERVE) {
        sandbar_engine::enter_private_mounts().unwrap();
        survival::serve(&arguments[2..]);
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    // Before any thread: the pools of the tests are nobody else's business.
    sandbar_engine::enter_private_mounts().expect("root, and a mount namespace");
    let all: Vec<Test> =
        [life::TESTS, work::TESTS, isolation::TESTS, volumes::TESTS, survival::TESTS, boot_time::TESTS].concat();
    if arguments.iter().any(|argument| argument == "--list") {
        all.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments[1..].iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen: Vec<Test> = all
        .into_iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(*part)))
        .collect();
    println!("running {} tests", chosen.len());
    let mut failed = Vec::new();
    for (name, test) in chosen {
        let start = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {} ({:.2?})", if passed { "ok" } else { "FAILED" }, start.elapsed());
        if !passed {
            failed.push(name);
        }
    }
    support::tear_down();
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("failed: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}
