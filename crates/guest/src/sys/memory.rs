//! The allocator's habits. Two hundred idle guests must cost little, so freed memory goes back to the kernel.

/// One arena for all threads, and every large buffer a mapping of its own that disappears when freed.
///
/// Without the fixed threshold glibc raises it after the first large free and keeps transfer buffers for ever.
pub fn keep_heap_small() {
    const LARGE: libc::c_int = 64 * 1024;
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE)] {
        // SAFETY: mallopt takes two integers and may be called at any time; a refused option changes nothing.
        unsafe { libc::mallopt(option, value) };
    }
}
