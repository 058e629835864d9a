//! The allocator of the unpacker, which ends the process where Rust's own would abort it: an abort
//! by signal is ignored for the first process of a pid namespace, and the caller shall learn that
//! it was the memory.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::program::EXHAUSTED;

/// The system's allocator. The process exits with [`EXHAUSTED`] when there is no more memory.
pub struct ExitWhenExhausted;

fn checked(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        // SAFETY: takes no pointer, runs nothing of this program, and does not return.
        unsafe { libc::_exit(EXHAUSTED) }
    }
    memory
}

// SAFETY: every call goes to the system's allocator, which keeps the contract; what it returns is
// passed on unchanged.
unsafe impl GlobalAlloc for ExitWhenExhausted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        checked(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}
