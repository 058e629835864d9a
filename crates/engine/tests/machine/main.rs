//! Sandboxes against the real kernel: a missing prerequisite fails the tests. As an ordinary user,
//! in a user namespace, all tests run except those that [`NEEDS_ROOT`] names.
//!
//! The program has three roles: guest (process 1 of the sandboxes, which runs shell commands), a
//! server to be killed, and the tests. Arguments that select no role filter the tests by name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod boot_time;
mod expected;
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

use launcher::users::Rights;

type Test = (&'static str, fn());

/// Tests of properties that only the sandboxes of a root server have, and why.
const NEEDS_ROOT: &[(&str, &str)] = &[
    ("a_full_disk_does_not_keep_a_sandbox_from_booting", NO_DISK_LIMIT),
    ("a_full_disk_hurts_only_itself", NO_DISK_LIMIT),
    ("volumes_have_a_limit_of_their_own", NO_DISK_LIMIT),
    ("a_memory_bomb_hurts_only_itself", NO_CGROUP),
    ("process_1_is_not_the_first_to_go", NO_CGROUP),
    ("sandboxes_have_ids_of_their_own", "all sandboxes of a user have the same ids"),
    (
        "watchers_of_one_sandbox_leave_others_theirs",
        "what the kernel counts by user is counted for all sandboxes of one together",
    ),
    ("a_broken_tree_does_not_keep_a_sandbox_from_booting", "mv of a directory of the template copies it"),
];
const NO_DISK_LIMIT: &str = "only root can mount a pool that limits what is written";
const NO_CGROUP: &str = "without a cgroup memory is not limited";
/// Tests that in addition need ids for more than one user.
const NEEDS_IDS: &[&str] = &[
    "user_has_a_home_and_sudo",
    "packages_can_be_installed",
    "languages_and_tools_run",
    "namespaces_and_mounts_are_refused",
    "layers_and_volumes_are_closed_to_host_users",
    "volumes_are_shared_and_outlive_sandboxes",
];

/// Whether a test can run here; says why if not.
fn can_run(name: &str) -> bool {
    let why = match support::rights() {
        Rights::All => None,
        Rights::Own if NEEDS_IDS.contains(&name) => Some("sandboxes have a single id"),
        _ => NEEDS_ROOT.iter().find(|(needy, _)| *needy == name).map(|(_, why)| *why),
    };
    if let Some(why) = why {
        testing::not_run(name, why);
    }
    why.is_none()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.first().is_some_and(|name| name == "sandbar-guest") {
        guest::main();
    }
    if arguments.get(1).is_some_and(|part| part == survival::SERVE) {
        sandbar_engine::enter_private_mounts(&std::path::Path::new(&arguments[2]).join("data")).unwrap();
        survival::serve(&arguments[2..]);
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    // Before any thread starts: the pools of the tests are mounted in a private namespace.
    sandbar_engine::enter_private_mounts(std::path::Path::new("/nowhere")).expect("a mount namespace");
    let all: Vec<Test> = [
        life::TESTS,
        work::TESTS,
        isolation::TESTS,
        volumes::TESTS,
        expected::TESTS,
        survival::TESTS,
        boot_time::TESTS,
    ]
    .concat();
    if arguments.iter().any(|argument| argument == "--list") {
        all.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments[1..].iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen: Vec<Test> = all
        .into_iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(*part)))
        .filter(|(name, _)| can_run(name))
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
