//! The guest's thread pool: no task is left behind, none waits for another while a thread may
//! start, and threads end only when they have nothing to do.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use queue::Queue;

#[path = "../../crates/guest/src/thread_pool/queue.rs"]
mod queue;

const IDLE: Duration = Duration::from_secs(2);

enum Task {
    Count,
    /// Waits for a [`Task::Open`].
    Wait,
    Open,
    /// Ends the permanent thread: the guest's never ends, a model does.
    Stop,
}

#[derive(Default)]
struct State {
    ran: usize,
    is_open: bool,
}

struct Pool {
    queue: Queue<Task>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether threads start, or the sandbox is at its process limit.
    starts: bool,
}

impl Pool {
    fn start(starts: bool, max_threads: usize) -> (Arc<Self>, thread::JoinHandle<()>) {
        let pool =
            Arc::new(Self { queue: Queue::new(max_threads), state: Mutex::default(), changed: Condvar::new(), starts });
        let mut permanent = None;
        let started = pool.queue.add_thread(|| {
            let pool = Arc::clone(&pool);
            permanent = Some(thread::spawn(move || pool.run(None)));
            Ok(())
        });
        started.expect("a model starts threads");
        (pool, permanent.expect("it was started"))
    }

    fn push(self: &Arc<Self>, task: Task) {
        self.queue.push(task, || {
            if !self.starts {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let pool = Arc::clone(self);
            thread::spawn(move || pool.run(Some(IDLE)));
            Ok(())
        });
    }

    fn run(self: &Arc<Self>, idle_timeout: Option<Duration>) {
        while let Some(task) = self.queue.next(idle_timeout) {
            match task {
                Task::Count => {}
                Task::Wait => drop(self.wait_until(|state| state.is_open)),
                Task::Open => self.change(|state| state.is_open = true),
                Task::Stop if idle_timeout.is_none() => return,
                Task::Stop => {
                    // For the permanent thread; this one takes no other task.
                    self.queue.push(Task::Stop, || Err(io::ErrorKind::WouldBlock.into()));
                    return;
                }
            }
            self.change(|state| state.ran += 1);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("no thread panics"));
        self.changed.notify_all();
    }

    fn wait_until(&self, wanted: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("no thread panics");
        while !wanted(&state) {
            state = self.changed.wait(state).expect("no thread panics");
        }
        state
    }

    /// Ends the pool, and checks that `count` tasks ran before.
    fn finish(self: &Arc<Self>, permanent: thread::JoinHandle<()>, count: usize) {
        drop(self.wait_until(|state| state.ran == count));
        self.queue.push(Task::Stop, || Err(io::ErrorKind::WouldBlock.into()));
        permanent.join().expect("it ends");
        assert_eq!(self.wait_until(|_| true).ran, count);
    }
}

/// Threads start and end while tasks are pushed.
pub fn every_task_runs() {
    let (pool, permanent) = Pool::start(true, 2);
    pool.push(Task::Count);
    pool.push(Task::Count);
    pool.finish(permanent, 2);
}

/// At the process limit no thread starts; two threads push tasks.
pub fn the_permanent_thread_is_enough() {
    let (pool, permanent) = Pool::start(false, 2);
    let other = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || pool.push(Task::Count))
    };
    pool.push(Task::Count);
    other.join().expect("it ends");
    pool.finish(permanent, 2);
}

/// The first task ends only after the second one ran.
pub fn a_task_does_not_wait_for_another() {
    let (pool, permanent) = Pool::start(true, 2);
    pool.push(Task::Wait);
    pool.push(Task::Open);
    pool.finish(permanent, 2);
}
