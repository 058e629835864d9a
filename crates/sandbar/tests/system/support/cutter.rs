//! A relay in front of a server whose connections can be cut, as a bad network would.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) struct Cutter {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Vec<TcpStream>>,
    /// Bytes that went to the server.
    sent: AtomicU64,
    closed: AtomicBool,
}

impl Cutter {
    pub(crate) fn before(server: &str) -> Self {
        Self::with(server, Duration::ZERO)
    }

    /// A network of at most 16 MB a second: what should break on the way is not through before.
    pub(crate) fn slow_before(server: &str) -> Self {
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
                relay.open.lock().expect("no panic").extend([copy(&client), copy(&server)]);
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

    /// Cuts every connection; new ones are relayed again.
    pub(crate) fn cut(&self) {
        for stream in self.shared.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Bytes that went to the server until now.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listener, which then sees that it is over.
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
