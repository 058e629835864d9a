//! The target `dockerfile` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("dockerfile").check)(bytes));
