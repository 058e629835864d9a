//! The progress bar of a copy.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Progress {
    bar: ProgressBar,
    files: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl Progress {
    /// Shown on stderr if it is a terminal, unless the result is JSON.
    pub(super) fn new(hidden: bool) -> Self {
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = "{spinner} {bytes} of {total_bytes} [{bar:30}] {binary_bytes_per_sec}, {eta} left, {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is well formed").progress_chars("=> "));
        Self { bar, files: Arc::default(), bytes: Arc::default(), total: Arc::default() }
    }

    pub(super) fn begin(&self, files: u64, bytes: u64) {
        self.total.store(files, Ordering::Relaxed);
        self.bar.set_length(bytes);
        self.bar.enable_steady_tick(Duration::from_millis(200));
        self.message();
    }

    pub(super) fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bar.inc(bytes as u64);
    }

    pub(super) fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.message();
    }

    pub(super) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Prints how many files an interrupted copy has copied.
    pub(super) fn interrupted(&self) {
        self.finish();
        let (done, total) = (self.files(), self.total.load(Ordering::Relaxed));
        eprintln!("sandbar: interrupted; {done} of {total} files were copied, none is half there");
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn message(&self) {
        self.bar.set_message(format!("file {} of {}", self.files(), self.total.load(Ordering::Relaxed)));
    }
}
