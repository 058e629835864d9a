//! `sandbar-tidy ROOT [PATH...]` lists the findings of all files below paths of a checkout. It
//! fails when there are any.

use std::path::PathBuf;
use std::process::ExitCode;

use sandbar_tidy::{check_file, files};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().map_or_else(files::root, PathBuf::from);
    let paths: Vec<String> = arguments.collect();
    let mut count = 0;
    for (file, text) in files::read_all(&root) {
        if paths.is_empty() || paths.iter().any(|path| file.starts_with(path)) {
            for finding in check_file(&file, &text) {
                println!("{finding}");
                count += 1;
            }
        }
    }
    eprintln!("{count} findings");
    if count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
