//! Template references: `[namespace/]alias[:tag]` or a template ID.
//!
//! There is one template so far, the view of the host's own system; it answers to two names.

/// The ID of the default template.
pub const BASE_ID: &str = "sandbarbase0000000000";
const ALIASES: [&str; 2] = ["base", "code-interpreter-v1"];
const DEFAULT_TAG: &str = "default";

/// A template that exists, and the name it was asked for by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub id: String,
    pub alias: String,
}

/// Why a reference leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("invalid template reference '{0}': expected [namespace/]alias[:tag] or a template ID")]
    Malformed(String),
    #[error("template '{0}' not found")]
    NotFound(String),
    #[error("tag '{tag}' does not exist for template '{template}'")]
    NoTag { tag: String, template: String },
}

/// Finds the template behind `reference`.
pub fn resolve(reference: &str) -> Result<Template, TemplateError> {
    let (name, tag) = parse(reference)?;
    let template = lookup(&name).ok_or_else(|| TemplateError::NotFound(name.clone()))?;
    match tag {
        Some(tag) if tag != DEFAULT_TAG => Err(TemplateError::NoTag { tag, template: name }),
        _ => Ok(template),
    }
}

/// Finds the template a list is filtered by: `None` when there is none, which is no error. A tag is one.
pub fn resolve_filter(reference: &str) -> Result<Option<Template>, TemplateError> {
    match parse(reference)? {
        (_, Some(_)) => Err(TemplateError::Malformed(reference.to_owned())),
        (name, None) => Ok(lookup(&name)),
    }
}

fn lookup(name: &str) -> Option<Template> {
    let alias = if name == BASE_ID { ALIASES[0] } else { ALIASES.into_iter().find(|alias| *alias == name)? };
    Some(Template { id: BASE_ID.to_owned(), alias: alias.to_owned() })
}

/// Splits a reference into its name, namespace included, and its tag.
fn parse(reference: &str) -> Result<(String, Option<String>), TemplateError> {
    let malformed = || TemplateError::Malformed(reference.to_owned());
    let text = reference.trim().to_lowercase();
    let (name, tag) = match text.split_once(':') {
        Some((name, tag)) => (name.to_owned(), Some(tag.to_owned())),
        None => (text, None),
    };
    let (namespace, alias) = name.split_once('/').map_or((None, name.as_str()), |(space, alias)| (Some(space), alias));
    let word = |part: &str, more: &str| {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c) || more.contains(c);
        !part.is_empty() && part.chars().all(good)
    };
    let tag_is_good = |tag: &String| word(tag, ".") && uuid::Uuid::parse_str(tag).is_err();
    if word(alias, "") && namespace.is_none_or(|space| word(space, "")) && tag.as_ref().is_none_or(tag_is_good) {
        Ok((name, tag))
    } else {
        Err(malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reference: &str, expected: &str) {
        let found = resolve(reference).map_or_else(|error| error.to_string(), |template| template.alias);
        assert_eq!(found, expected, "{reference:?}");
    }

    #[test]
    fn names_and_tags_resolve_as_documented() {
        check("base", "base");
        check(" Base:default ", "base");
        check(BASE_ID, "base");
        check("code-interpreter-v1", "code-interpreter-v1");
        check("code-interpreter-v1:default", "code-interpreter-v1");
        check("nope", "template 'nope' not found");
        check("team/base", "template 'team/base' not found");
        check("base:v2", "tag 'v2' does not exist for template 'base'");
        for bad in ["", "a b", "a/b/c", "a:", "base:", "base:8a6e0804-2bd0-4672-b79d-d97027f9071a", "ü"] {
            assert!(matches!(resolve(bad), Err(TemplateError::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn filters_know_no_tags() {
        assert_eq!(resolve_filter("nope"), Ok(None));
        assert!(resolve_filter("base").is_ok_and(|found| found.is_some()));
        assert!(resolve_filter("base:default").is_err());
    }
}
