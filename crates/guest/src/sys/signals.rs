//! Which signals reach which thread. The kernel shields process 1 of a sandbox from its own children's signals, but
//! only where they are not blocked: a signal blocked in the main thread and welcome in another would end the guest.

use std::ptr;

/// The main thread takes every signal, whatever the starter had blocked, and none is ignored any more: a server that a script started in
/// the background ignores SIGINT, and so would every command of its sandboxes. Only SIGPIPE stays what Rust's runtime made it. Call it
/// before other threads exist.
pub fn welcome_signals() {
    // SAFETY: sigset_t is plain memory that sigemptyset fills; pthread_sigmask fails only on invalid arguments. What has no handler yet
    // gets none; numbers that are none of ours to change are refused.
    unsafe {
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// This thread, any but the main one, takes no signal.
pub(crate) fn refuse_signals() {
    // Never undone: the thread ends with its signals blocked.
    std::mem::forget(SignalsBlocked::now());
}

/// All signals are blocked in this thread while it lives.
pub(super) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(super) fn now() -> Self {
        // SAFETY: sigset_t is plain memory that both calls fill; they fail only on invalid arguments.
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
