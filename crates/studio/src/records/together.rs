//! Reads that many make at once. Whoever asks while a reading is under way is answered by the next one, together with all who have
//! asked meanwhile: one reading at a time is made however many ask, and nobody is told what is older than their question.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt, Shared};

type Found<K, V, E> = Result<Arc<HashMap<K, V>>, Arc<E>>;
type Read<K, V, E> = dyn Fn(Vec<K>) -> BoxFuture<'static, Result<HashMap<K, V>, E>> + Send + Sync;

/// Looks values up by their keys. Cheap to clone.
pub(super) struct Together<K, V, E> {
    inner: Arc<Inner<K, V, E>>,
}

struct Inner<K, V, E> {
    read: Box<Read<K, V, E>>,
    /// The reading that has not begun.
    next: Mutex<Option<Next<K, V, E>>>,
    /// Who has it reads.
    turn: tokio::sync::Mutex<()>,
}

struct Next<K, V, E> {
    asked: HashSet<K>,
    /// All who asked drive it: it goes on for the others when one has left.
    reading: Shared<BoxFuture<'static, Found<K, V, E>>>,
}

impl<K, V, E> Clone for Together<K, V, E> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, V, E> Inner<K, V, E> {
    fn next(&self) -> MutexGuard<'_, Option<Next<K, V, E>>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V, E> Together<K, V, E>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Reads with `read`, which is given keys and leaves out those that there are not.
    pub(super) fn new<F>(read: F) -> Self
    where
        F: Fn(Vec<K>) -> BoxFuture<'static, Result<HashMap<K, V>, E>> + Send + Sync + 'static,
    {
        let inner = Inner { read: Box::new(read), next: Mutex::default(), turn: tokio::sync::Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// # Errors
    /// The reading failed, for all who take part in it.
    pub(super) async fn get(&self, key: &K) -> Result<Option<V>, Arc<E>> {
        let reading = {
            let mut next = self.inner.next();
            let next = next.get_or_insert_with(|| Next { asked: HashSet::new(), reading: self.reading() });
            next.asked.insert(key.clone());
            next.reading.clone()
        };
        Ok(reading.await?.get(key).cloned())
    }

    /// Takes whoever has asked when its turn has come.
    fn reading(&self) -> Shared<BoxFuture<'static, Found<K, V, E>>> {
        let inner = Arc::clone(&self.inner);
        let reading = async move {
            let _turn = inner.turn.lock().await;
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

    /// Values that can be changed, readings that wait until they may go on, and what each was asked for.
    struct Store {
        values: Mutex<HashMap<u8, u8>>,
        may: Semaphore,
        readings: Mutex<Vec<Vec<u8>>>,
    }

    fn lookups() -> (Arc<Store>, Together<u8, u8, &'static str>) {
        let store = Arc::new(Store {
            values: Mutex::new([(1, 10), (2, 20)].into()),
            may: Semaphore::new(0),
            readings: Mutex::default(),
        });
        let read = Arc::clone(&store);
        let lookups = Together::new(move |mut keys: Vec<u8>| {
            keys.sort_unstable();
            let store = Arc::clone(&read);
            async move {
                store.readings.lock().expect("a lock").push(keys.clone());
                let values = store.values.lock().expect("a lock").clone();
                store.may.acquire().await.expect("open").forget();
                if keys.contains(&0) {
                    return Err("broken");
                }
                Ok(values.into_iter().filter(|(key, _)| keys.contains(key)).collect())
            }
            .boxed()
        });
        (store, lookups)
    }

    /// Polls once; nobody is told when to do so again.
    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn those_who_ask_meanwhile_share_the_next_reading() {
        let (store, lookups) = lookups();
        let mut first = pin!(lookups.get(&1));
        assert_eq!(poll(first.as_mut()), Poll::Pending);
        let mut others: Vec<_> = [2, 1, 3, 2].iter().map(|key| Box::pin(lookups.get(key))).collect();
        for other in &mut others {
            assert_eq!(poll(other.as_mut()), Poll::Pending);
        }
        store.may.add_permits(2);
        assert_eq!(poll(first), Poll::Ready(Ok(Some(10))));
        let found: Vec<_> = others.iter_mut().map(|other| poll(other.as_mut())).collect();
        assert_eq!(found, [Some(20), Some(10), None, Some(20)].map(|value| Poll::Ready(Ok(value))));
        assert_eq!(*store.readings.lock().expect("a lock"), [vec![1], vec![1, 2, 3]]);
    }

    #[test]
    fn nobody_is_told_what_is_older_than_their_question() {
        let (store, lookups) = lookups();
        let mut before = pin!(lookups.get(&1));
        assert_eq!(poll(before.as_mut()), Poll::Pending);
        store.values.lock().expect("a lock").insert(1, 11);
        let mut after = pin!(lookups.get(&1));
        assert_eq!(poll(after.as_mut()), Poll::Pending);
        store.may.add_permits(2);
        assert_eq!(poll(before), Poll::Ready(Ok(Some(10))));
        assert_eq!(poll(after), Poll::Ready(Ok(Some(11))));
    }

    #[test]
    fn who_leaves_takes_nothing_from_the_others() {
        let (store, lookups) = lookups();
        let mut begins = Box::pin(lookups.get(&1));
        assert_eq!(poll(begins.as_mut()), Poll::Pending);
        let mut leads = Box::pin(lookups.get(&1));
        let mut follows = pin!(lookups.get(&2));
        assert_eq!(poll(leads.as_mut()), Poll::Pending);
        assert_eq!(poll(follows.as_mut()), Poll::Pending);
        drop(begins);
        drop(leads);
        store.may.add_permits(1);
        assert_eq!(poll(follows), Poll::Ready(Ok(Some(20))));

        // All have left before it began: whoever comes next goes on with it.
        let mut begins = Box::pin(lookups.get(&1));
        assert_eq!(poll(begins.as_mut()), Poll::Pending);
        let mut waits = Box::pin(lookups.get(&1));
        assert_eq!(poll(waits.as_mut()), Poll::Pending);
        drop(waits);
        drop(begins);
        store.may.add_permits(1);
        assert_eq!(poll(pin!(lookups.get(&2))), Poll::Ready(Ok(Some(20))));
    }

    #[test]
    fn a_reading_that_fails_fails_for_those_who_took_part_alone() {
        let (store, lookups) = lookups();
        let mut first = pin!(lookups.get(&0));
        let mut second = pin!(lookups.get(&1));
        store.may.add_permits(2);
        assert_eq!(poll(first.as_mut()), Poll::Ready(Err(Arc::new("broken"))));
        assert_eq!(poll(second.as_mut()), Poll::Ready(Ok(Some(10))));
    }
}
