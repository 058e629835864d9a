//! The glossary against the code: every "`Type` in `path`" must be defined there.

use crate::Finding;

/// A type that the glossary names, and the file that should define it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeReference {
    pub line: usize,
    pub name: String,
    pub file: String,
}

/// The references of a glossary. "in" and the path may stand on the next line.
pub fn references(document: &str) -> Vec<TypeReference> {
    let mut line = 1;
    let mut found = Vec::new();
    let mut pieces = document.split('`').peekable();
    // Every second piece is code.
    let mut name: Option<&str> = None;
    while let (Some(prose), Some(code)) = (pieces.next(), pieces.next()) {
        line += prose.matches('\n').count();
        if let Some(name) = name
            && prose.trim() == "in"
            && code.ends_with(".rs")
        {
            found.push(TypeReference { line, name: name.to_owned(), file: code.to_owned() });
        }
        line += code.matches('\n').count();
        name = Some(code);
    }
    found
}

/// Whether Rust source defines a type of this name.
pub fn defines(text: &str, name: &str) -> bool {
    ["struct ", "enum ", "trait ", "type "].iter().any(|kind| {
        text.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
            text[at + found.len()..].chars().next().is_none_or(|next| !next.is_alphanumeric() && next != '_')
        })
    })
}

/// References whose file is missing or does not define the type.
pub fn check_glossary(file: &str, document: &str, files: &[(String, String)]) -> Vec<Finding> {
    let problem = |reference: &TypeReference| match files.iter().find(|(path, _)| *path == reference.file) {
        None => Some(format!("there is no file {}", reference.file)),
        Some((_, text)) if !defines(text, &reference.name) => {
            Some(format!("{} does not define `{}`", reference.file, reference.name))
        }
        Some(_) => None,
    };
    references(document)
        .into_iter()
        .filter_map(|reference| {
            let message = format!("{}; name the type and file that carry the word now", problem(&reference)?);
            Some(Finding::new(file, reference.line, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_compared_with_the_code() {
        let document = "**A.** Text. (`A` in `a.rs`;\n`B` in\n`b.rs`)\n`C` in `a.rs`, and `--flag` in `c.toml`.";
        let files = [("a.rs".to_owned(), "pub struct A<T>(T);\nstruct Cat;".to_owned())];
        let found = check_glossary("g.md", document, &files);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("g.md:3: there is no file b.rs"), "{}", found[0]);
        assert!(found[1].starts_with("g.md:4: a.rs does not define `C`"), "{}", found[1]);
    }
}
