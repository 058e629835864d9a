//! Signal masks of threads. The kernel shields process 1 of a sandbox from its children's signals,
//! but only unblocked ones: a signal blocked in the main thread and unblocked in another would kill
//! the guest.

use std::ptr;

/// Unblocks all signals in the main thread and resets ignored ones to their defaults: a server that
/// a script started in the background ignores SIGINT, and so would every command of its sandboxes.
/// SIGPIPE stays as Rust's runtime set it. Call it before other threads exist.
pub fn unblock_signals() {
    // SAFETY: sigset_t is plain memory that sigemptyset fills; pthread_sigmask fails only on
    // invalid arguments. No handlers are installed yet, so none is lost; the kernel refuses numbers
    // that cannot be changed.
    unsafe {
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Blocks all signals in this thread, which must not be the main one.
pub(crate) fn block_signals() {
    // Never undone: the thread ends with its signals blocked.
    std::mem::forget(SignalsBlocked::now());
}

/// Blocks all signals in this thread while it lives.
pub(super) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(super) fn now() -> Self {
        // SAFETY: sigset_t is plain memory that both calls fill; they fail only on invalid
        // arguments.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by pthread_sigmask in `now`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
