//! The unpacker's executable.
#![forbid(unsafe_code)]

#[global_allocator]
static ALLOCATOR: unpack::ExitWhenExhausted = unpack::ExitWhenExhausted;

fn main() {
    unpack::main()
}
