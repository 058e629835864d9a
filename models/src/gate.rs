//! The gate of a workspace: the caller that closed it is alone, and every wait ends.

use std::sync::Arc;
use std::time::Duration;

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use product::SandboxGate;

#[path = "../../crates/workspace/src/workspace/gate.rs"]
mod product;

const LONG: Duration = Duration::from_secs(60);

struct Site {
    gate: SandboxGate,
    inside: AtomicUsize,
    is_closed: AtomicBool,
}

impl Site {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: SandboxGate::new(), inside: AtomicUsize::new(0), is_closed: AtomicBool::new(false) })
    }

    fn work(&self) {
        let permit = block_on(self.gate.enter(LONG)).expect("it opens");
        self.inside.fetch_add(1, Ordering::SeqCst);
        assert!(!self.is_closed.load(Ordering::SeqCst), "an operation is inside a closed gate");
        self.inside.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }

    fn replace(&self) {
        let closed = self.gate.close();
        assert_eq!(block_on(closed.drain(LONG)), 0, "all leave");
        self.is_closed.store(true, Ordering::SeqCst);
        assert_eq!(self.inside.load(Ordering::SeqCst), 0, "the caller is alone");
        assert!(block_on(self.gate.enter(Duration::ZERO)).is_none(), "it stays closed");
        self.is_closed.store(false, Ordering::SeqCst);
        drop(closed);
    }
}

/// Two operations, and a caller that closes the gate meanwhile.
pub fn the_caller_that_closed_it_is_alone() {
    let site = Site::new();
    let operations: Vec<_> = (0..2)
        .map(|_| {
            let site = Arc::clone(&site);
            thread::spawn(move || site.work())
        })
        .collect();
    site.replace();
    for operation in operations {
        operation.join().expect("it ends");
    }
}

/// The gate is closed twice, one after the other, as the operation lock has it.
pub fn an_operation_enters_between_two_closures() {
    let site = Site::new();
    let operation = {
        let site = Arc::clone(&site);
        thread::spawn(move || site.work())
    };
    site.replace();
    site.replace();
    operation.join().expect("it ends");
}
