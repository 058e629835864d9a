//! Spreads streams over connections. An HTTP/2 server limits the streams of a connection, often to
//! a hundred, and a call beyond that waits for one of them to end, possibly forever. The pool opens
//! another connection before that happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Streams per connection. The rest of a hundred is left to short calls.
const STREAMS_PER_CONNECTION: usize = 64;

#[derive(Debug)]
struct PooledClient {
    http: reqwest::Client,
    streams: AtomicUsize,
}

/// One HTTP client per [`STREAMS_PER_CONNECTION`] concurrent streams. An unused one closes its
/// connections by its idle timeout.
#[derive(Debug)]
pub(super) struct ConnectionPool(Mutex<Vec<Arc<PooledClient>>>);

impl ConnectionPool {
    /// `http` is the first client; other calls use it too.
    pub(super) fn new(http: reqwest::Client) -> Self {
        Self(Mutex::new(vec![Arc::new(PooledClient { http, streams: AtomicUsize::new(0) })]))
    }

    /// Reserves a stream on the first client with capacity, or on a new one from `build`.
    pub(super) fn reserve(&self, build: impl FnOnce() -> reqwest::Client) -> StreamPermit {
        let mut pool = self.0.lock();
        let free = pool.iter().find(|client| client.streams.load(Ordering::Relaxed) < STREAMS_PER_CONNECTION);
        let client = match free {
            Some(client) => Arc::clone(client),
            None => {
                let client = Arc::new(PooledClient { http: build(), streams: AtomicUsize::new(0) });
                pool.push(Arc::clone(&client));
                client
            }
        };
        client.streams.fetch_add(1, Ordering::Relaxed);
        StreamPermit(client)
    }
}

/// Holds the capacity of one stream until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<PooledClient>);

impl StreamPermit {
    pub(super) fn http(&self) -> &reqwest::Client {
        &self.0.http
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_clients_are_extended_and_freed_capacity_is_reused() {
        let built = std::cell::Cell::new(0);
        let build = || {
            built.set(built.get() + 1);
            reqwest::Client::new()
        };
        let pool = ConnectionPool::new(reqwest::Client::new());
        let mut permits: Vec<StreamPermit> = (0..STREAMS_PER_CONNECTION).map(|_| pool.reserve(build)).collect();
        assert_eq!(built.get(), 0);
        permits.extend((0..STREAMS_PER_CONNECTION).map(|_| pool.reserve(build)));
        assert_eq!(built.get(), 1);
        drop(permits.split_off(STREAMS_PER_CONNECTION / 2));
        let _again: Vec<StreamPermit> = (0..STREAMS_PER_CONNECTION).map(|_| pool.reserve(build)).collect();
        assert_eq!(built.get(), 1);
    }
}
