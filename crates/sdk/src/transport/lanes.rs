//! Where streams travel. An HTTP/2 server lets only so many streams share a connection, often a hundred, and a call beyond
//! that waits for one of them to end, which may be never. So streams are spread over connections before that happens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Streams that share a connection. The rest of a hundred is for short calls on the same one.
const STREAMS: usize = 64;

#[derive(Debug)]
struct Lane {
    http: reqwest::Client,
    streams: AtomicUsize,
}

/// As many sets of connections as there were ever streams for. An unused one closes its connections by itself.
#[derive(Debug)]
pub(super) struct Lanes(Mutex<Vec<Arc<Lane>>>);

impl Lanes {
    /// The first lane is `http`, which other calls use too.
    pub(super) fn new(http: reqwest::Client) -> Self {
        Self(Mutex::new(vec![Arc::new(Lane { http, streams: AtomicUsize::new(0) })]))
    }

    /// A place for one more stream: in the first lane that has room, else in a new one that `build` makes.
    pub(super) fn place(&self, build: impl FnOnce() -> reqwest::Client) -> Place {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = lanes.iter().find(|lane| lane.streams.load(Ordering::Relaxed) < STREAMS);
        let lane = match free {
            Some(lane) => Arc::clone(lane),
            None => {
                let lane = Arc::new(Lane { http: build(), streams: AtomicUsize::new(0) });
                lanes.push(Arc::clone(&lane));
                lane
            }
        };
        lane.streams.fetch_add(1, Ordering::Relaxed);
        Place(lane)
    }
}

/// A stream's place in a lane, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Lane>);

impl Place {
    pub(super) fn http(&self) -> &reqwest::Client {
        &self.0.http
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_made_when_the_others_are_full_and_used_again() {
        let built = std::cell::Cell::new(0);
        let build = || {
            built.set(built.get() + 1);
            reqwest::Client::new()
        };
        let lanes = Lanes::new(reqwest::Client::new());
        let mut places: Vec<Place> = (0..STREAMS).map(|_| lanes.place(build)).collect();
        assert_eq!(built.get(), 0);
        places.extend((0..STREAMS).map(|_| lanes.place(build)));
        assert_eq!(built.get(), 1);
        drop(places.split_off(STREAMS / 2));
        let _again: Vec<Place> = (0..STREAMS).map(|_| lanes.place(build)).collect();
        assert_eq!(built.get(), 1);
    }
}
