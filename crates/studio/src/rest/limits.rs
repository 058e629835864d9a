//! Rate limits by token buckets per user and address, so that one client cannot exhaust the studio.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::UserId;

/// A burst, and the refill rate after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub burst: f64,
    pub per_second: f64,
}

/// The limits of clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Per user. Generous, because reads are cheap and many programs may share one user.
    pub reads: Rate,
    /// Per user.
    pub writes: Rate,
    /// Per address. Valid tokens always pass, so that a client behind the same address cannot lock
    /// others out; only failed attempts are limited.
    pub wrong_tokens: Rate,
    /// Concurrent event streams and terminals per user.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: Rate { burst: 4000.0, per_second: 2000.0 },
            writes: Rate { burst: 100.0, per_second: 20.0 },
            wrong_tokens: Rate { burst: 300.0, per_second: 5.0 },
            streams: 1000,
        }
    }
}

/// The buckets and counters behind the limits.
pub(super) struct RateLimiter {
    reads: Buckets<UserId>,
    writes: Buckets<UserId>,
    wrong_tokens: Buckets<Option<IpAddr>>,
    max_streams: usize,
    streams: Arc<Mutex<HashMap<UserId, usize>>>,
}

/// One open stream. Dropping it releases its slot.
pub(super) struct StreamPermit {
    user: UserId,
    streams: Arc<Mutex<HashMap<UserId, usize>>>,
}

impl RateLimiter {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            reads: Buckets::new(limits.reads),
            writes: Buckets::new(limits.writes),
            wrong_tokens: Buckets::new(limits.wrong_tokens),
            max_streams: limits.streams,
            streams: Arc::default(),
        }
    }

    /// The error is how long to wait.
    pub(super) fn check_read(&self, user: &UserId) -> Result<(), Duration> {
        self.reads.take(user, Instant::now())
    }

    /// The error is how long to wait.
    pub(super) fn check_write(&self, user: &UserId) -> Result<(), Duration> {
        self.writes.take(user, Instant::now())
    }

    /// The error is how long to wait.
    pub(super) fn check_wrong_token(&self, from: Option<IpAddr>) -> Result<(), Duration> {
        self.wrong_tokens.take(&from, Instant::now())
    }

    /// None when the user has as many streams as allowed.
    pub(super) fn acquire_stream(&self, user: &UserId) -> Option<StreamPermit> {
        let mut streams = self.streams.lock();
        let open = streams.entry(user.clone()).or_default();
        if *open >= self.max_streams {
            return None;
        }
        *open += 1;
        Some(StreamPermit { user: user.clone(), streams: Arc::clone(&self.streams) })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        if let Some(open) = streams.get_mut(&self.user) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.user);
            }
        }
    }
}

/// With more buckets, full ones are dropped: they equal new ones.
const MAX_BUCKETS: usize = 10_000;

struct Buckets<K> {
    rate: Rate,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    fn take(&self, key: &K, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock();
        let level = buckets.get(key).map_or(self.rate.burst, |bucket| self.level(*bucket, now));
        let (left, answer) = if level >= 1.0 {
            (level - 1.0, Ok(()))
        } else {
            (level, Err(Duration::from_secs_f64((1.0 - level) / self.rate.per_second)))
        };
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| self.level(*bucket, now) < self.rate.burst);
        }
        buckets.insert(key.clone(), Bucket { level: left, at: now });
        answer
    }

    fn level(&self, bucket: Bucket, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * self.rate.per_second;
        (bucket.level + gained).min(self.rate.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_empty_and_refill_per_key() {
        let buckets = Buckets::new(Rate { burst: 2.0, per_second: 4.0 });
        let start = Instant::now();
        assert_eq!(buckets.take(&1, start), Ok(()));
        assert_eq!(buckets.take(&1, start), Ok(()));
        assert_eq!(buckets.take(&1, start), Err(Duration::from_millis(250)));
        assert_eq!(buckets.take(&2, start), Ok(()), "another's is full");
        assert_eq!(buckets.take(&1, start + Duration::from_millis(250)), Ok(()));
        assert!(buckets.take(&1, start + Duration::from_millis(300)).is_err());
        let later = start + Duration::from_secs(60);
        assert_eq!(buckets.take(&1, later), Ok(()));
        assert_eq!(buckets.take(&1, later), Ok(()));
        assert!(buckets.take(&1, later).is_err(), "it holds no more than its burst");
    }

    #[test]
    fn full_buckets_are_evicted() {
        let buckets = Buckets::new(Rate { burst: 2.0, per_second: 1.0 });
        let start = Instant::now();
        for key in 0..MAX_BUCKETS {
            assert_eq!(buckets.take(&key, start), Ok(()));
        }
        assert_eq!(buckets.take(&MAX_BUCKETS, start + Duration::from_secs(5)), Ok(()));
        assert_eq!(buckets.buckets.lock().len(), 1);
    }

    #[test]
    fn dropping_a_permit_releases_its_slot() {
        let limiter = RateLimiter::new(Limits { streams: 1, ..Limits::default() });
        let (one, other) = (UserId::new(), UserId::new());
        let first = limiter.acquire_stream(&one).expect("the first");
        assert!(limiter.acquire_stream(&one).is_none());
        assert!(limiter.acquire_stream(&other).is_some());
        drop(first);
        assert!(limiter.acquire_stream(&one).is_some());
        assert!(limiter.streams.lock().is_empty());
    }
}
