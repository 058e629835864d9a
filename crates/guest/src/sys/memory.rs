//! The allocator's habits. Two hundred idle guests must cost little, so what a transfer needed goes back to the kernel.

/// One arena for all threads. While busy, freed buffers stay for the next batch; [`return_memory`] gives them back.
///
/// The fixed thresholds matter: glibc would map and unmap every buffer of a transfer, and fault in each page of each.
pub fn keep_heap_small() {
    const LARGE: libc::c_int = 4 << 20;
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE)] {
        // SAFETY: mallopt takes two integers and may be called at any time; a refused option changes nothing.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives freed memory back to the kernel; takes a fraction of a millisecond.
pub(crate) fn return_memory() {
    // SAFETY: malloc_trim takes an integer and locks the allocator by itself.
    unsafe { libc::malloc_trim(0) };
}
