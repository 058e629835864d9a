//! Code before the `main` of a test program.

/// Entered by the C library before `main`, while the process has a single thread.
#[doc(hidden)]
pub extern "C" fn before_main() {
    crate::needs::enter_namespaces();
}

/// Beside the modules of a test program: for an ordinary user all its tests run in namespaces,
/// where the user is root. For programs most of whose tests make networks, or give files or
/// processes to other users.
#[macro_export]
macro_rules! in_namespaces {
    () => {
        // SAFETY: the C library calls every function of this section once. The standard library has
        // taken the arguments before, in a section of a lower number.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static BEFORE_MAIN: extern "C" fn() = $crate::before_main;
    };
}
