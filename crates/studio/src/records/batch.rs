//! Batches concurrent lookups: lookups that arrive during a read share the next one, so that at
//! most one read is in progress. A caller never sees data older than its request.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::{Mutex, MutexGuard};

type Found<K, V, E> = Result<Arc<HashMap<K, V>>, Arc<E>>;
type Read<K, V, E> = dyn Fn(Vec<K>) -> BoxFuture<'static, Result<HashMap<K, V>, E>> + Send + Sync;

/// Loads values by their keys. Cheap to clone.
pub(super) struct BatchLoader<K, V, E> {
    inner: Arc<Inner<K, V, E>>,
}

struct Inner<K, V, E> {
    read: Box<Read<K, V, E>>,
    /// The read that has not started.
    next: Mutex<Option<Next<K, V, E>>>,
    /// The holder reads.
    turn: tokio::sync::Mutex<()>,
}

struct Next<K, V, E> {
    asked: HashSet<K>,
    /// Polled by every caller, so that it continues when one caller is dropped.
    reading: Shared<BoxFuture<'static, Found<K, V, E>>>,
}

impl<K, V, E> Clone for BatchLoader<K, V, E> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, V, E> Inner<K, V, E> {
    fn next(&self) -> MutexGuard<'_, Option<Next<K, V, E>>> {
        self.next.lock()
    }
}

impl<K, V, E> BatchLoader<K, V, E>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Loads with `read`, which receives keys and omits those without a value.
    pub(super) fn new<F>(read: F) -> Self
    where
        F: Fn(Vec<K>) -> BoxFuture<'static, Result<HashMap<K, V>, E>> + Send + Sync + 'static,
    {
        let inner = Inner { read: Box::new(read), next: Mutex::default(), turn: tokio::sync::Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The error of the read, for every caller that shares it.
    pub(super) async fn get(&self, key: &K) -> Result<Option<V>, Arc<E>> {
        let reading = {
            let mut next = self.inner.next();
            let next = next.get_or_insert_with(|| Next { asked: HashSet::new(), reading: self.reading() });
            next.asked.insert(key.clone());
            next.reading.clone()
        };
        Ok(reading.await?.get(key).cloned())
    }

    /// Takes all keys requested until the read starts.
    fn reading(&self) -> Shared<BoxFuture<'static, Found<K, V, E>>> {
        let inner = Arc::clone(&self.inner);
        let reading = async move {
            let _lock = inner.turn.lock().await;
            let asked = inner.next().take().map(|next| next.asked).unwrap_or_default();
            (inner.read)(asked.into_iter().collect()).await.map(Arc::new).map_err(Arc::new)
        };
        reading.boxed().shared()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::sync::Semaphore;

    use super::*;

    /// Changeable values, a semaphore that lets reads complete, and the keys of each read.
    struct Store {
        values: Mutex<HashMap<u8, u8>>,
        may: Semaphore,
        readings: Mutex<Vec<Vec<u8>>>,
    }

    fn job_loader() -> (Arc<Store>, BatchLoader<u8, u8, &'static str>) {
        let store = Arc::new(Store {
            values: Mutex::new([(1, 10), (2, 20)].into()),
            may: Semaphore::new(0),
            readings: Mutex::default(),
        });
        let read = Arc::clone(&store);
        let job_loader = BatchLoader::new(move |mut keys: Vec<u8>| {
            keys.sort_unstable();
            let store = Arc::clone(&read);
            async move {
                store.readings.lock().push(keys.clone());
                let values = store.values.lock().clone();
                store.may.acquire().await.expect("open").forget();
                if keys.contains(&0) {
                    return Err("broken");
                }
                Ok(values.into_iter().filter(|(key, _)| keys.contains(key)).collect())
            }
            .boxed()
        });
        (store, job_loader)
    }

    /// Polls once, without a waker.
    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn concurrent_lookups_share_the_next_read() {
        let (store, job_loader) = job_loader();
        let mut first = pin!(job_loader.get(&1));
        assert_eq!(poll(first.as_mut()), Poll::Pending);
        let mut others: Vec<_> = [2, 1, 3, 2].iter().map(|key| Box::pin(job_loader.get(key))).collect();
        for other in &mut others {
            assert_eq!(poll(other.as_mut()), Poll::Pending);
        }
        store.may.add_permits(2);
        assert_eq!(poll(first), Poll::Ready(Ok(Some(10))));
        let found: Vec<_> = others.iter_mut().map(|other| poll(other.as_mut())).collect();
        assert_eq!(found, [Some(20), Some(10), None, Some(20)].map(|value| Poll::Ready(Ok(value))));
        assert_eq!(*store.readings.lock(), [vec![1], vec![1, 2, 3]]);
    }

    #[test]
    fn a_lookup_never_returns_older_data() {
        let (store, job_loader) = job_loader();
        let mut before = pin!(job_loader.get(&1));
        assert_eq!(poll(before.as_mut()), Poll::Pending);
        store.values.lock().insert(1, 11);
        let mut after = pin!(job_loader.get(&1));
        assert_eq!(poll(after.as_mut()), Poll::Pending);
        store.may.add_permits(2);
        assert_eq!(poll(before), Poll::Ready(Ok(Some(10))));
        assert_eq!(poll(after), Poll::Ready(Ok(Some(11))));
    }

    #[test]
    fn a_dropped_caller_does_not_stop_the_read() {
        let (store, job_loader) = job_loader();
        let mut begins = Box::pin(job_loader.get(&1));
        assert_eq!(poll(begins.as_mut()), Poll::Pending);
        let mut leads = Box::pin(job_loader.get(&1));
        let mut follows = pin!(job_loader.get(&2));
        assert_eq!(poll(leads.as_mut()), Poll::Pending);
        assert_eq!(poll(follows.as_mut()), Poll::Pending);
        drop(begins);
        drop(leads);
        store.may.add_permits(1);
        assert_eq!(poll(follows), Poll::Ready(Ok(Some(20))));

        // All callers were dropped before the read started: the next caller drives it.
        let mut begins = Box::pin(job_loader.get(&1));
        assert_eq!(poll(begins.as_mut()), Poll::Pending);
        let mut waits = Box::pin(job_loader.get(&1));
        assert_eq!(poll(waits.as_mut()), Poll::Pending);
        drop(waits);
        drop(begins);
        store.may.add_permits(1);
        assert_eq!(poll(pin!(job_loader.get(&2))), Poll::Ready(Ok(Some(20))));
    }

    #[test]
    fn a_failed_read_fails_only_its_batch() {
        let (store, job_loader) = job_loader();
        let mut first = pin!(job_loader.get(&0));
        let mut second = pin!(job_loader.get(&1));
        store.may.add_permits(2);
        assert_eq!(poll(first.as_mut()), Poll::Ready(Err(Arc::new("broken"))));
        assert_eq!(poll(second.as_mut()), Poll::Ready(Ok(Some(10))));
    }
}
