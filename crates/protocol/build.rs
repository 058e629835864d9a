//! Compiles the schemas without protoc: protox parses them, connectrpc-build generates the Rust.

use std::path::PathBuf;

const SCHEMAS: [&str; 2] = ["process.proto", "filesystem.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let descriptors = out.join("schemas.bin");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(SCHEMAS)?;
    std::fs::write(&descriptors, compiler.encode_file_descriptor_set())?;

    connectrpc_build::Config::new()
        .descriptor_set(&descriptors)
        .files(&SCHEMAS)
        .gate_client_feature(true)
        .emit_rerun_directives(false)
        .include_file("_connectrpc.rs")
        .compile()?;

    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
