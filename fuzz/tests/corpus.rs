//! Every target: the committed inputs, then changed ones. `SANDBAR_FUZZ_SECONDS` says for how long
//! per target, `SANDBAR_SEED` from which seed. Without it every run has the same seed, so that a
//! change is judged by its own inputs; a soak begins with a new one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuzz::{CountingAllocator, TARGETS, find, replay, run};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn default_seed() -> u64 {
    match std::env::var_os("SANDBAR_SOAK") {
        Some(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64,
        None => 1,
    }
}

fn fuzz(name: &str) {
    let target = find(name);
    let inputs = replay(target);
    let seed = number("SANDBAR_SEED").unwrap_or_else(default_seed);
    println!("{name}: {inputs} inputs, then SANDBAR_SEED={seed}");
    let report = run(target, seed, Duration::from_secs(number("SANDBAR_FUZZ_SECONDS").unwrap_or(1)));
    let rate = report.executions as f64 / report.elapsed.as_secs_f64();
    println!("{name}: {} executions, {rate:.0} per second", report.executions);
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                fuzz(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_tested_and_has_a_program() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            let manifest = include_str!("../Cargo.toml");
            for name in names {
                assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is no program");
            }
        }
    };
}

targets!(
    checkpoint_archive,
    checkpoint_manifest,
    connect,
    dns,
    dockerfile,
    first_bytes,
    image_archive,
    image_layer,
    multipart,
    packet,
    route,
    signed_url,
);
