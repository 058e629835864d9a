//! The target `image_layer` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzz::find("image_layer").check)(bytes));
