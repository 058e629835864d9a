//! Measures a boot, next to the kernel's minimum for creating namespaces.
//! `RUST_LOG=sandbar_engine=debug` logs the duration of each step.

use std::process::Command;
use std::time::{Duration, Instant};

use sandbar_engine::{Boot, BootFiles, Engine};

use crate::Test;
use crate::expected::expect;
use crate::support::{block_on, boot_of, engine, files, fresh_name, id, run_at};

pub(crate) const TESTS: &[Test] = &[("a_boot_is_quick", a_boot_is_quick)];

const ROUNDS: usize = 40;
/// E2B's own claim for a create.
const LIMIT: Duration = Duration::from_millis(150);

fn a_boot_is_quick() {
    let engine = engine();
    let (mut boots, mut outputs, mut kills, mut baselines) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let output = Command::new("unshare").args(["-mpfiun", "bash", "-c", "echo hi"]).output().unwrap();
        baselines.push(start.elapsed());
        assert_eq!(output.stdout, b"hi\n");

        // As after a create call of a server: the files of the next one are mounted.
        let name = fresh_name();
        expect(&engine, &name);
        let boot = Boot { files: BootFiles::Open, ..block_on(boot_of(&engine, &name)) };
        let start = Instant::now();
        assert!(block_on(engine.take_spare(&id(&name))).unwrap());
        let machine = block_on(engine.boot(boot)).unwrap();
        boots.push(start.elapsed());
        assert_eq!(run_at(machine.guest_socket(), "echo hi"), ("hi\n".to_owned(), 0));
        outputs.push(start.elapsed());
        let start = Instant::now();
        block_on(machine.kill()).unwrap();
        kills.push(start.elapsed());
        block_on(engine.remove_files(&files(&name))).unwrap();
    }
    let [baseline, boot, output, kill] = [baselines, boots, outputs, kills].map(median);
    println!("unshare -mpfiun: {baseline:.2?}; boot: {boot:.2?}; to first output: {output:.2?}; kill: {kill:.2?}");
    // The bench measures the ratio, on an idle machine; this limit holds on every machine.
    assert!(boot < LIMIT && kill < LIMIT, "boot {boot:?}, kill {kill:?}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
