//! An allocator that counts what the thread holds, so that a run sees how much an input takes.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with a count per thread.
#[derive(Debug)]
pub struct CountingAllocator;

fn count(change: isize) {
    // A thread that ends frees its last memory without a count.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

/// The most bytes that this thread held at a time during `act`, beyond those that it held before.
/// Zero without [`CountingAllocator`].
pub(crate) fn most_held(act: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    act();
    usize::try_from(MOST.get() - before).unwrap_or(0)
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}
