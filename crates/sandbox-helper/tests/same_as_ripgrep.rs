//! Compares the helper with ripgrep on one tree, with the flags that the tools use: the output is
//! the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const WALKING: [&str; 8] = [
    "--no-config",
    "--color=never",
    "--no-messages",
    "--hidden",
    "--no-require-git",
    "--no-ignore-parent",
    "--no-ignore-global",
    "--no-ignore-exclude",
];

/// Ignored and hidden files, binaries, links, other encodings, names that are hard to print.
fn tree() -> TempDir {
    let root = TempDir::new().expect("a directory");
    let write = |path: &str, content: &[u8]| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("it is in the tree")).expect("directories");
        fs::write(path, content).expect("a file");
    };
    write(".gitignore", b"ignored/\n*.log\n!kept.log\n");
    write("ignored/needle.txt", b"needle\n");
    write("a.log", b"needle in a log\n");
    write("kept.log", b"needle in a log that is kept\n");
    write("src/main.rs", b"fn main() {\n    let needle = 1;\n    // Needle\n}\n");
    write("src/deep/er/lib.py", b"import needle\nneedle()\nneedle2 = needle\n");
    write("src/.ignore", b"secret.rs\n");
    write("src/secret.rs", b"needle\n");
    write(".hidden/file", b"needle\n");
    write(".git/config", b"needle\n");
    write("binary.bin", b"\0\x01needle\0\nneedle\n");
    write("late.bin", &[b"needle\n".repeat(20_000), b"\0\n".to_vec()].concat());
    write("wide.txt", &"needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    write(
        "wide-marked.txt",
        &[vec![0xff, 0xfe], "needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect()].concat(),
    );
    write("latin.txt", b"caf\xe9 needle\n");
    write("new\nline and space.txt", b"needle\r\nsecond\r\n");
    write("two/lines.txt", b"first needle\nthen\nthe end\nfirst needle\n");
    write("empty", b"");
    std::os::unix::fs::symlink("src/main.rs", root.path().join("link.rs")).expect("a link");
    std::os::unix::fs::symlink("nowhere", root.path().join("dangling")).expect("a link");
    root
}

fn run(program: &str, directory: &Path, arguments: &[&str]) -> Output {
    Command::new(program).current_dir(directory).args(arguments).output().expect("ripgrep and the helper run")
}

/// The output of a program without parts that depend on time and thread order.
fn normalized_lines(output: &Output, ends: char) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let unstable = |line: &str| line.contains("seconds") || line.contains("\"elapsed") || line.contains("bytes ");
    let pieces = text.split(ends).filter(|piece| !piece.trim().is_empty());
    let summary = ["matches", "matched lines", "files contained matches", "files searched"];
    let counts = |line: &str| summary[..3].iter().any(|end| line.trim_end().ends_with(end));
    pieces.filter(|piece| !unstable(piece) && !counts(piece)).map(str::to_owned).collect()
}

#[track_caller]
fn same(arguments: &[&str], ends: char) {
    let root = tree();
    let all: Vec<&str> = WALKING.iter().chain(arguments).copied().collect();
    let theirs = run("rg", root.path(), &all);
    let ours = run(env!("CARGO_BIN_EXE_sandbar-sandbox-helper"), root.path(), &all);
    assert_eq!(
        normalized_lines(&ours, ends),
        normalized_lines(&theirs, ends),
        "{arguments:?}\n{}",
        String::from_utf8_lossy(&ours.stderr)
    );
    assert_eq!(ours.status.code(), theirs.status.code(), "{arguments:?}");
}

#[test]
fn counts_equal_ripgrep() {
    let count = ["-c", "-0", "-H", "--stats", "--binary"];
    let cases: [&[&str]; 9] = [
        &["-e", "needle", "--", "./"],
        &["-i", "-e", "NEEDLE", "--", "./"],
        &["-F", "-e", "needle()", "--", "./"],
        &["--no-ignore", "-e", "needle", "--", "./"],
        &["-g", "!.git/", "-e", "needle", "--", "./"],
        &["-t", "py", "-e", "needle", "--", "./"],
        &["--type-add", "own:*.rs", "-t", "own", "-e", "needle", "--", "./"],
        &["-U", "--multiline-dotall", "-e", "first.*?end", "--", "./"],
        &["-e", "nothing has this", "--", "./"],
    ];
    for case in cases {
        same(&[&count, case].concat(), '\n');
    }
}

#[test]
fn matches_equal_ripgrep() {
    for case in [
        &["-e", "needle", "--", "src/main.rs", "two/lines.txt", "latin.txt"][..],
        &["-B", "1", "-A", "2", "-e", "then", "--", "two/lines.txt"],
        &["-a", "-e", "needle", "--", "binary.bin"],
        &["-e", "needle", "--", "new\nline and space.txt", "wide-marked.txt", "ignored/needle.txt"],
    ] {
        same(&[&["--json", "--no-ignore"], case].concat(), '\n');
    }
}

#[test]
fn names_equal_ripgrep() {
    same(&["--files", "-0", "--", "./"], '\0');
    same(&["--files", "-0", "--no-ignore", "--", "./"], '\0');
    same(&["--files", "-0", "-g", "!/src/", "--type-add", "own:*.txt", "-t", "own", "--", "./"], '\0');
    same(&["-l", "-0", "-a", "-e", r"\x00", "--", "binary.bin", "src/main.rs", "late.bin"], '\0');
}

#[test]
fn unknown_flags_are_refused() {
    let root = tree();
    for (arguments, reason) in [
        (&["--pcre2", "-c", "-e", "x", "--", "."][..], "--pcre2 is not one of the flags"),
        (&["-c", "--", "."], "-e says what to search for"),
        (&["-c", "-e", "x"], "after -- come the files"),
        (&["-c", "-e", "(", "--", "."], "unclosed group"),
    ] {
        let output = run(env!("CARGO_BIN_EXE_sandbar-sandbox-helper"), root.path(), arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(reason) && output.status.code() == Some(2), "{arguments:?}: {text}");
    }
}
