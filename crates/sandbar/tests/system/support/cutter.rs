//! A TCP relay in front of a server, whose connections a test can cut as a bad network does.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) struct Cutter {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Vec<TcpStream>>,
    /// Bytes relayed to the server.
    sent: AtomicU64,
    closed: AtomicBool,
}

impl Cutter {
    pub(crate) fn in_front_of(server: &str) -> Self {
        Self::with(server, Duration::ZERO)
    }

    /// Relays at most 16 MB per second, so that a transfer is still under way when the test cuts
    /// it.
    pub(crate) fn slow_in_front_of(server: &str) -> Self {
        Self::with(server, Duration::from_millis(1))
    }

    fn with(server: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared =
            Arc::new(Shared { open: Mutex::default(), sent: AtomicU64::new(0), closed: AtomicBool::new(false) });
        let (server, relay) = (server.to_owned(), Arc::clone(&shared));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if relay.closed.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                relay.open.lock().extend([copy(&client), copy(&server)]);
                let (to, back) = ((copy(&client), copy(&server)), (server, client));
                let counting = Arc::clone(&relay);
                let count = move |bytes| {
                    counting.sent.fetch_add(bytes, Ordering::Relaxed);
                };
                std::thread::spawn(move || pump(to.0, to.1, delay, count));
                std::thread::spawn(move || pump(back.0, back.1, delay, |_| {}));
            }
        });
        Self { address, shared }
    }

    /// Shuts down every open connection. New connections are relayed again.
    pub(crate) fn cut(&self) {
        for stream in self.shared.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Bytes relayed to the server so far.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.cut();
        // Unblocks `accept`, so that the thread reads `closed` and returns.
        let _ = TcpStream::connect(&self.address);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, delay: Duration, count: impl Fn(u64)) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        count(length as u64);
        std::thread::sleep(delay);
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
