//! The event feed: a watcher receives all events but deltas, in order, learns how many deltas it
//! missed, and always learns of the end.

use loom::future::block_on;
use loom::thread;

use crate::event::{Event, Happened};
use product::{Feed, Watcher};

#[path = "../../crates/agent/src/feed.rs"]
pub mod product;

fn happened(seq: u64, event: Event) -> Happened {
    Happened { seq, dropped: 0, event }
}

/// Receives until the end.
fn receive(watcher: &mut Watcher) -> Vec<Happened> {
    std::iter::from_fn(|| block_on(watcher.next())).collect()
}

/// A watcher that receives while events are published.
pub fn no_event_and_no_end_is_missed() {
    let feed = Feed::default();
    let mut watcher = feed.watch();
    let publisher = thread::spawn(move || {
        feed.publish(&happened(1, Event::Other));
        feed.publish(&happened(2, Event::Other));
        feed.close();
    });
    let received = receive(&mut watcher);
    assert_eq!(received, [happened(1, Event::Other), happened(2, Event::Other)]);
    publisher.join().expect("it ends");
}

/// The model's queue has one place for deltas.
pub fn dropped_deltas_are_counted() {
    let feed = Feed::default();
    let mut watcher = feed.watch();
    let publisher = thread::spawn(move || {
        for seq in 1..=3 {
            feed.publish(&happened(seq, Event::Delta));
        }
        feed.publish(&happened(4, Event::Other));
        feed.close();
    });
    let received = receive(&mut watcher);
    assert!(received.is_sorted_by_key(|one| one.seq));
    assert_eq!(received.last().map(|one| one.seq), Some(4));
    let dropped: u64 = received.iter().map(|one| one.dropped).sum();
    assert_eq!(received.len() as u64 + dropped, 4, "{received:?}");
    publisher.join().expect("it ends");
}

/// A watcher leaves while events are published.
pub fn a_watcher_may_leave_at_any_time() {
    let feed = Feed::default();
    let (leaving, mut staying) = (feed.watch(), feed.watch());
    let publisher = thread::spawn(move || {
        feed.publish(&happened(1, Event::Other));
        feed.close();
    });
    drop(leaving);
    assert_eq!(receive(&mut staying), [happened(1, Event::Other)]);
    publisher.join().expect("it ends");
}
