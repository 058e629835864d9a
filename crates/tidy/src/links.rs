//! Links of Markdown files: relative targets and anchors must exist, and every page of `docs/` must
//! be a chapter of the book.
//!
//! Anchors are GitHub's: the heading in lower case, without punctuation, with `-` for spaces, and
//! with `-1`, `-2` for repeated ones. mdBook makes the same ones for the headings that stand here.

use std::collections::{BTreeSet, HashMap};

use crate::Finding;
use crate::lists::BOOK_LINK_EXCEPTIONS;

/// A link as a document writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub line: usize,
    pub target: String,
}

/// Lines that are not inside a fenced block, each with its number from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
        match (fence, marker) {
            (None, Some(marker)) => fence = Some(marker),
            (Some(open), Some(marker)) if open == marker => fence = None,
            (None, None) => return Some((index + 1, line)),
            _ => {}
        }
        None
    })
}

/// The line without its code spans, which quote brackets of programs.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// All inline links and images of a document, and the targets of its reference links.
pub fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
        let inline =
            line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split_once(')').map(|(target, _)| target));
        let targets = definition.into_iter().chain(inline).filter_map(|target| target.split_whitespace().next());
        found.extend(targets.map(|target| Link { line: number, target: target.to_owned() }));
    }
    found
}

/// The anchors of a document's headings.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len()).then_some(heading)?.strip_prefix(' ')
    });
    headings
        .map(|heading| {
            let slug = slug(heading);
            let count = seen.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

/// A heading's anchor. A link in the heading counts by its text.
fn slug(heading: &str) -> String {
    let mut text = heading.trim().to_owned();
    while let Some(at) = text.find("](") {
        let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
        text.replace_range(at..end, "");
    }
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The path that `target` names from `file`, both relative to the root. `None` when it leaves the
/// root.
fn resolve(file: &str, target: &str) -> Option<String> {
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// Relative links of `file` whose target or anchor does not exist. `files` has path and text of all
/// files; a directory exists when it has one of them.
pub fn check_links(file: &str, text: &str, files: &[(String, String)]) -> Vec<Finding> {
    let broken = |target: &str| -> Option<String> {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
        let Some(path) = (if path.is_empty() { Some(file.to_owned()) } else { resolve(file, path) }) else {
            return Some("it leaves the repository".to_owned());
        };
        let document = files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.as_str());
        match (document, anchor) {
            (Some(document), Some(anchor)) if !anchors(document).contains(anchor) => {
                Some(format!("{path} has no heading #{anchor}"))
            }
            (None, _) if !files.iter().any(|(name, _)| name.starts_with(&format!("{path}/"))) => {
                Some(format!("there is no {path}"))
            }
            _ => None,
        }
    };
    links(text)
        .into_iter()
        .filter_map(|Link { line, target }| {
            let message = format!("link to {target}: {}; correct the link or what it names", broken(&target)?);
            Some(Finding::new(file, line, message))
        })
        .collect()
}

/// Pages below the directory of `summary` that the summary does not name, and links of such pages
/// that leave the book, where the site has no page for them.
pub fn check_book(summary: &str, files: &[(String, String)]) -> Vec<Finding> {
    let Some((_, contents)) = files.iter().find(|(name, _)| name == summary) else {
        return vec![Finding::new(summary, 1, "the book has no table of contents")];
    };
    let directory = summary.rsplit_once('/').map_or("", |(directory, _)| directory);
    let chapters: BTreeSet<String> =
        links(contents).into_iter().filter_map(|link| resolve(summary, &link.target)).collect();
    let in_book = |name: &str| name.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    let pages = || files.iter().filter(|(name, _)| in_book(name) && name.ends_with(".md") && name != summary);
    let missing = pages()
        .filter(|(name, _)| !chapters.contains(name))
        .map(|(name, _)| Finding::new(name, 1, format!("the page is in no chapter; name it in {summary}")));
    let leaving = pages().flat_map(|(name, text)| {
        let leaves = |link: &Link| {
            let path = link.target.split('#').next().unwrap_or_default();
            let is_allowed =
                BOOK_LINK_EXCEPTIONS.iter().any(|(page, target, _)| page == name && *target == link.target);
            let is_outside = resolve(name, path).is_none_or(|path| !in_book(&path));
            is_outside && !is_allowed && !path.is_empty() && !link.target.contains("://")
        };
        let finding = |link: Link| {
            let message = format!("link to {}: the book has no such page; name the file as code instead", link.target);
            Finding::new(name, link.line, message)
        };
        links(text).into_iter().filter(leaves).map(finding).collect::<Vec<_>>()
    });
    missing.chain(leaving).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_outside_of_code_are_found() {
        let text = "[a](a.md) ![b](b.png \"title\")\n```\n[c](c.md)\n```\n`[d](d.md)` [e](e.md#f)\n[g]: g.md";
        let targets: Vec<(usize, String)> = links(text).into_iter().map(|link| (link.line, link.target)).collect();
        let expected = [(1, "a.md"), (1, "b.png"), (5, "e.md#f"), (6, "g.md")];
        assert_eq!(targets, expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# One, two\n## `[egress]`\n## One two\n```\n# no\n```\n### With a [link](x.md)\n#no";
        let expected = ["egress", "one-two", "one-two-1", "with-a-link"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn true_links_pass() {
        let text = "# Here\n[a](docs/a.md) [b](docs/) [c](./docs/a.md#top-a) [d](#here) [e](https://x.test/y)";
        assert_eq!(check_links("README.md", text, &files(&[("README.md", text), ("docs/a.md", "# Top a")])), []);
        assert_eq!(check_links("docs/b.md", "[a](../README.md#here)", &files(&[("README.md", text)])), []);
    }

    #[test]
    fn missing_targets_and_anchors_are_named() {
        let all = files(&[("docs/a.md", "# Top")]);
        let text = "[a](b.md)\n[b](a.md#bottom)\n[c](../../etc)\n[d](#none)";
        let found = messages(&check_links("docs/a.md", text, &all));
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("docs/a.md:1:") && found[0].contains("there is no docs/b.md"), "{}", found[0]);
        assert!(found[1].contains("docs/a.md has no heading #bottom"), "{}", found[1]);
        assert!(found[2].contains("leaves the repository"), "{}", found[2]);
        assert!(found[3].contains("#none"), "{}", found[3]);
    }

    #[test]
    fn pages_outside_of_the_book_are_found() {
        let all = files(&[
            ("README.md", "# R"),
            ("docs/SUMMARY.md", "- [A](a.md)\n- [C](sub/c.md)"),
            ("docs/a.md", "[out](../README.md) [in](sub/c.md#x) [web](https://x.test)"),
            ("docs/b.md", ""),
            ("docs/sub/c.md", "[in](../a.md)"),
        ]);
        let found = messages(&check_book("docs/SUMMARY.md", &all));
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("docs/b.md:1:"), "{}", found[0]);
        assert!(found[1].starts_with("docs/a.md:1:") && found[1].contains("../README.md"), "{}", found[1]);
        assert_eq!(check_book("docs/SUMMARY.md", &files(&[])).len(), 1);
    }
}
