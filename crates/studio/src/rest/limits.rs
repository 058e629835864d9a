//! How often somebody may ask: buckets that fill by themselves. One user cannot take the studio from the others, and a
//! program gone wild is told to wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::UserId;

/// So many at once, and so many a second after that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub burst: f64,
    pub per_second: f64,
}

/// What is allowed to whom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of a user. Generous: a read costs next to nothing, and a fleet of programs may share one user.
    pub reads: Rate,
    /// Of a user.
    pub writes: Rate,
    /// Of an address. Right tokens always pass, so that nobody is locked out by somebody else behind the same address; what
    /// is limited is the trying.
    pub wrong_tokens: Rate,
    /// Streams of events and terminals of a user that are open at the same time.
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

/// Keeps count.
pub(super) struct Gate {
    reads: Buckets<UserId>,
    writes: Buckets<UserId>,
    wrong_tokens: Buckets<Option<IpAddr>>,
    most_streams: usize,
    streams: Arc<Mutex<HashMap<UserId, usize>>>,
}

/// One open stream; dropping it makes room for another.
pub(super) struct Place {
    user: UserId,
    streams: Arc<Mutex<HashMap<UserId, usize>>>,
}

impl Gate {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            reads: Buckets::new(limits.reads),
            writes: Buckets::new(limits.writes),
            wrong_tokens: Buckets::new(limits.wrong_tokens),
            most_streams: limits.streams,
            streams: Arc::default(),
        }
    }

    /// Errs with how long to wait.
    pub(super) fn read(&self, user: &UserId) -> Result<(), Duration> {
        self.reads.take(user, Instant::now())
    }

    /// Errs with how long to wait.
    pub(super) fn write(&self, user: &UserId) -> Result<(), Duration> {
        self.writes.take(user, Instant::now())
    }

    /// Errs with how long to wait.
    pub(super) fn wrong_token(&self, from: Option<IpAddr>) -> Result<(), Duration> {
        self.wrong_tokens.take(&from, Instant::now())
    }

    /// None when the user has as many as are allowed.
    pub(super) fn stream(&self, user: &UserId) -> Option<Place> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let open = streams.entry(user.clone()).or_default();
        if *open >= self.most_streams {
            return None;
        }
        *open += 1;
        Some(Place { user: user.clone(), streams: Arc::clone(&self.streams) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = streams.get_mut(&self.user) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.user);
            }
        }
    }
}

/// Beyond so many, those that are full again are forgotten: they are as good as new ones.
const MANY: usize = 10_000;

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
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let level = buckets.get(key).map_or(self.rate.burst, |bucket| self.level(*bucket, now));
        let (left, answer) = if level >= 1.0 {
            (level - 1.0, Ok(()))
        } else {
            (level, Err(Duration::from_secs_f64((1.0 - level) / self.rate.per_second)))
        };
        if buckets.len() >= MANY && !buckets.contains_key(key) {
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
    fn a_bucket_empties_and_fills_and_belongs_to_one() {
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
    fn full_buckets_are_forgotten_when_there_are_many() {
        let buckets = Buckets::new(Rate { burst: 2.0, per_second: 1.0 });
        let start = Instant::now();
        for key in 0..MANY {
            assert_eq!(buckets.take(&key, start), Ok(()));
        }
        assert_eq!(buckets.take(&MANY, start + Duration::from_secs(5)), Ok(()));
        assert_eq!(buckets.buckets.lock().expect("no panic").len(), 1);
    }

    #[test]
    fn places_come_back_when_streams_end() {
        let gate = Gate::new(Limits { streams: 1, ..Limits::default() });
        let (one, other) = (UserId::new(), UserId::new());
        let first = gate.stream(&one).expect("the first");
        assert!(gate.stream(&one).is_none());
        assert!(gate.stream(&other).is_some());
        drop(first);
        assert!(gate.stream(&one).is_some());
        assert!(gate.streams.lock().expect("no panic").is_empty());
    }
}
