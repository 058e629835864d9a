//! Embeds the dashboard that `npm run build` left in `web/dist`. Without it, the server serves a
//! page that explains the build, so that Rust alone builds and tests everything else.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (dist, kept) = (root.join("../../web/dist"), out.join("pages"));
    // Cargo reruns the script every time when a watched path is missing, but not when it is empty.
    let _ = fs::create_dir_all(&dist);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", dist.display());
    // A copy, because the web build may run again before the compiler reads the files.
    let _ = fs::remove_dir_all(&kept);
    let mut files = Vec::new();
    copy(&dist, &kept, "", &mut files)?;
    files.sort();
    fs::write(out.join("pages.rs"), table(&kept, &files))
}

/// Copies a directory and collects its files' paths relative to the root.
fn copy(from: &Path, to: &Path, below: &str, files: &mut Vec<String>) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{below}{name}");
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(&name), &format!("{path}/"), files)?;
        } else {
            fs::copy(entry.path(), to.join(&name))?;
            files.push(path);
        }
    }
    Ok(())
}

fn table(kept: &Path, files: &[String]) -> String {
    let include = |file: &str| format!("include_bytes!({:?})", kept.join(file));
    let packed = |file: &str, ending: &str| {
        let name = format!("{file}{ending}");
        if files.contains(&name) { format!("Some({})", include(&name)) } else { "None".to_owned() }
    };
    let is_packed = |file: &String| {
        let plain = file.strip_suffix(".gz").or_else(|| file.strip_suffix(".br"));
        plain.is_some_and(|plain| files.iter().any(|file| file == plain))
    };
    let mut text = String::from("static FILES: &[File] = &[\n");
    for file in files.iter().filter(|file| !is_packed(file)) {
        let (plain, gzip, brotli) = (include(file), packed(file, ".gz"), packed(file, ".br"));
        writeln!(text, "    File {{ path: {file:?}, plain: {plain}, gzip: {gzip}, brotli: {brotli} }},")
            .expect("a string grows");
    }
    text.push_str("];\n");
    text
}
