//! The target `image_archive` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("image_archive").check)(bytes));
