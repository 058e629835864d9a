//! Embeds the dashboard as `npm run build` left it in `web/dist`. Without it a page says how to make it: Rust is enough to build
//! and test everything else.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let dist = root.join("../../web/dist");
    // Cargo takes a path that is missing for one that has changed, every time; an empty directory it can watch.
    let _ = fs::create_dir_all(&dist);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    collect(&dist, &dist, &mut files)?;
    files.sort();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("pages.rs"), table(&dist, &files))
}

/// Paths below `root`.
fn collect(root: &Path, directory: &Path, files: &mut Vec<String>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Some(relative) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push(relative.to_owned());
        }
    }
    Ok(())
}

fn table(dist: &Path, files: &[String]) -> String {
    let is_packed =
        |file: &str, of: fn(&str) -> Option<&str>| of(file).is_some_and(|plain| files.iter().any(|f| f == plain));
    let include = |file: &str| format!("include_bytes!({:?})", dist.join(file));
    let packed = |file: &str, ending: &str| {
        let name = format!("{file}{ending}");
        if files.contains(&name) { format!("Some({})", include(&name)) } else { "None".to_owned() }
    };
    let mut text = String::from("static FILES: &[File] = &[\n");
    for file in files {
        if is_packed(file, |file| file.strip_suffix(".gz")) || is_packed(file, |file| file.strip_suffix(".br")) {
            continue;
        }
        let (gzip, brotli) = (packed(file, ".gz"), packed(file, ".br"));
        let plain = include(file);
        writeln!(text, "    File {{ path: {file:?}, plain: {plain}, gzip: {gzip}, brotli: {brotli} }},")
            .expect("a string grows");
    }
    text.push_str("];\n");
    text
}
