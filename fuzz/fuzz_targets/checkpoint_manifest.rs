//! The target `checkpoint_manifest` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("checkpoint_manifest").check)(bytes));
