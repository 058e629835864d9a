//! Runs every model in every order of its threads, with up to three preemptions of a thread: more
//! show nothing new and take hours.

use models::{feed, gate, pool};

fn explore(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn pool_runs_every_task() {
    explore(pool::every_task_runs);
}

#[test]
fn pool_needs_no_second_thread() {
    explore(pool::the_permanent_thread_is_enough);
}

#[test]
fn pool_tasks_do_not_wait_for_each_other() {
    explore(pool::a_task_does_not_wait_for_another);
}

#[test]
fn gate_leaves_its_closer_alone() {
    explore(gate::the_caller_that_closed_it_is_alone);
}

#[test]
fn gate_lets_operations_in_between_two_closures() {
    explore(gate::an_operation_enters_between_two_closures);
}

#[test]
fn feed_misses_no_event_and_no_end() {
    explore(feed::no_event_and_no_end_is_missed);
}

#[test]
fn feed_counts_dropped_deltas() {
    explore(feed::dropped_deltas_are_counted);
}

#[test]
fn feed_watchers_may_leave() {
    explore(feed::a_watcher_may_leave_at_any_time);
}
