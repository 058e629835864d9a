//! The target `checkpoint_archive` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("checkpoint_archive").check)(bytes));
