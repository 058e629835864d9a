//! The target `first_bytes` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("first_bytes").check)(bytes));
