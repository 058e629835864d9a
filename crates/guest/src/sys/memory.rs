//! Allocator tuning. Two hundred idle guests must use little memory, so buffers of a transfer
//! return to the kernel.

/// Uses one arena for all threads. During transfers, freed buffers stay for the next batch;
/// [`return_memory`] releases them.
///
/// The thresholds are fixed because glibc would otherwise map and unmap every buffer of a transfer,
/// and fault in each of its pages.
pub fn keep_heap_small() {
    const LARGE: libc::c_int = 4 << 20;
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE)] {
        // SAFETY: mallopt takes two integers and may be called at any time; a refused option
        // changes nothing.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Returns freed memory to the kernel; takes a fraction of a millisecond.
pub(crate) fn return_memory() {
    // SAFETY: malloc_trim takes an integer and locks the allocator by itself.
    unsafe { libc::malloc_trim(0) };
}
