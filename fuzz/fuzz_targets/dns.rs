//! The target `dns` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("dns").check)(bytes));
