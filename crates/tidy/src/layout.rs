//! How a Rust file is laid out: width of comments, module doc, `unsafe`, names of tests.

use crate::Finding;
use crate::scan::{Kind, Language, scan};

/// Columns that a line with a comment may have. Code has 120, by rustfmt.
pub const COMMENT_WIDTH: usize = 100;

/// Characters that the name of a test may have.
pub const TEST_NAME: usize = 60;

/// Lines with a comment that are wider than [`COMMENT_WIDTH`]. Lines with a URL may be.
pub fn check_width(file: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let mut wide: Vec<usize> = scan(Language::Rust, text)
        .into_iter()
        .filter(|piece| piece.kind == Kind::Comment)
        .map(|piece| piece.line)
        .filter(|line| lines[line - 1].chars().count() > COMMENT_WIDTH && !lines[line - 1].contains("://"))
        .collect();
    wide.dedup();
    wide.into_iter()
        .map(|line| {
            let width = lines[line - 1].chars().count();
            Finding::new(file, line, format!("a comment ends in column {width}; wrap it at {COMMENT_WIDTH}"))
        })
        .collect()
}

/// Lines of a doc comment that hold another doc comment's marker, as a rewrap of quoted lines
/// leaves them: the drawing or example around them has lost its columns.
pub fn check_rewrapped(file: &str, text: &str) -> Vec<Finding> {
    let is_rewrapped = |line: &str| {
        let line = line.trim_start();
        let rest = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        rest.is_some_and(|rest| rest.starts_with(" | //") || rest.contains(" //! ") || rest.contains(" | /// "))
    };
    let message = "a doc comment inside a doc comment; draw the lines again, one marker per line";
    let lines = text.lines().enumerate().filter(|(_, line)| is_rewrapped(line));
    lines.map(|(index, _)| Finding::new(file, index + 1, message)).collect()
}

/// A file that does not open with `//!`. Inner attributes may stand before.
pub fn check_module_doc(file: &str, text: &str) -> Vec<Finding> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
    match first {
        Some(line) if line.starts_with("//!") && line.len() > 4 => Vec::new(),
        _ => vec![Finding::new(file, 1, "no module doc; open the file with `//!` and what it is for")],
    }
}

/// Names of tests that are longer than [`TEST_NAME`].
pub fn check_test_names(file: &str, text: &str) -> Vec<Finding> {
    let mut marked = false;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if marked && let Some((_, rest)) = line.split_once("fn ") {
            marked = false;
            let name = rest.split(['(', '<']).next().unwrap_or(rest);
            if name.len() > TEST_NAME {
                let message = format!("the test's name has {} characters; at most {TEST_NAME}: {name}", name.len());
                findings.push(Finding::new(file, index + 1, message));
            }
        }
    }
    findings
}

/// `unsafe` outside of a `sys` module, and blocks without `// SAFETY:` before them.
pub fn check_unsafe(file: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let in_sys = file.split('/').any(|part| part == "sys" || part == "sys.rs");
    let mut findings = Vec::new();
    for piece in scan(Language::Rust, text) {
        if piece.kind != Kind::Name || piece.text != "unsafe" {
            continue;
        }
        if !in_sys {
            findings.push(Finding::new(file, piece.line, "`unsafe` outside of a `sys` module; wrap the call there"));
        }
        let opens_block = lines[piece.line - 1].contains("unsafe {");
        if opens_block && !has_safety_comment(&lines, piece.line - 1) {
            let message = "an `unsafe` block without `// SAFETY:` before it; say why the call is sound";
            findings.push(Finding::new(file, piece.line, message));
        }
    }
    findings
}

/// Whether the statement of line `at` (from 0), or a comment right above it, has `SAFETY:`.
fn has_safety_comment(lines: &[&str], at: usize) -> bool {
    if lines[at].contains("// SAFETY:") {
        return true;
    }
    for line in lines[..at].iter().rev().map(|line| line.trim()) {
        if line.contains("// SAFETY:") {
            return true;
        }
        let ends_statement = line.is_empty() || line.ends_with([';', '{', '}']);
        if ends_statement && !line.starts_with("//") {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_are_found_and_wide_code_is_not() {
        let wide = "x".repeat(COMMENT_WIDTH);
        assert_eq!(check_width("a.rs", &format!("// {wide}\n")).len(), 1);
        assert_eq!(check_width("a.rs", &format!("    /// {wide}\n")).len(), 1);
        assert_eq!(check_width("a.rs", &format!("let a = \"{wide}\";\n")), []);
        assert_eq!(check_width("a.rs", &format!("let a = \"// {wide}\";\n")), []);
        assert_eq!(check_width("a.rs", &format!("// {}\n", "ü".repeat(COMMENT_WIDTH - 3))), []);
        assert_eq!(check_width("a.rs", &format!("// https://{wide}\n")), []);
    }

    #[test]
    fn rewrapped_doc_comments_are_found() {
        assert_eq!(check_rewrapped("a.rs", "//! ```text\n//! | //! a ──> b\n//! ```\n").len(), 1);
        assert_eq!(check_rewrapped("a.rs", "    /// | /// a ──> b\n").len(), 1);
        assert_eq!(check_rewrapped("a.rs", "//! one line //! and the next\n").len(), 1);
        assert_eq!(check_rewrapped("a.rs", "//! a ──> b | c\n/// | a | table |\n/// let a = 1; // b\n"), []);
    }

    #[test]
    fn a_file_opens_with_its_doc() {
        assert_eq!(check_module_doc("a.rs", "//! Reads a.\nuse b;"), []);
        assert_eq!(check_module_doc("a.rs", "#![no_std]\n//! Reads a."), []);
        assert_eq!(check_module_doc("a.rs", "//!\nuse b;").len(), 1);
        assert_eq!(check_module_doc("a.rs", "// Reads a.").len(), 1);
        assert_eq!(check_module_doc("a.rs", "use b;\n//! Reads a.").len(), 1);
        assert_eq!(check_module_doc("a.rs", "").len(), 1);
    }

    #[test]
    fn unsafe_stands_in_sys_with_its_reason() {
        let with = "// SAFETY: the pointer is valid.\nlet a =\n    unsafe { b() };";
        let without = "let c = 1;\n\nlet a = unsafe { b() };";
        let other = "// SAFETY: of another.\nlet c = unsafe { d() };\nlet a = unsafe { b() };";
        assert_eq!(check_unsafe("crates/a/src/sys/b.rs", with), []);
        assert_eq!(check_unsafe("crates/a/src/sys.rs", without).len(), 1);
        assert_eq!(check_unsafe("crates/a/src/sys.rs", other).len(), 1);
        assert_eq!(check_unsafe("crates/a/src/b.rs", with).len(), 1);
        assert_eq!(check_unsafe("crates/a/src/b.rs", "unsafe fn a();").len(), 1);
        assert_eq!(check_unsafe("crates/a/src/b.rs", "// unsafe\nlet a = \"unsafe {\";"), []);
    }

    #[test]
    fn names_of_tests_are_short() {
        let long = "a".repeat(TEST_NAME + 1);
        assert_eq!(check_test_names("a.rs", &format!("#[test]\nfn {long}() {{}}")).len(), 1);
        assert_eq!(check_test_names("a.rs", &format!("#[tokio::test]\n#[ignore]\nasync fn {long}() {{}}")).len(), 1);
        assert_eq!(check_test_names("a.rs", &format!("#[test]\nfn {}() {{}}", &long[1..])), []);
        assert_eq!(check_test_names("a.rs", &format!("fn {long}() {{}}")), []);
    }
}
