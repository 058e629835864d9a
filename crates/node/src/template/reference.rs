//! Template references: `[namespace/]alias[:tag]` or a template id.

/// The only namespace: a server has one owner.
pub const NAMESPACE: &str = "local";
/// The tag of references without one.
pub const DEFAULT_TAG: &str = "default";
const LONGEST: usize = 128;

/// The parts of a reference, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub namespace: Option<String>,
    /// A name or an id.
    pub alias: String,
    pub tag: Option<String>,
}

/// Why a reference cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("invalid template reference '{0}': expected [namespace/]alias[:tag] or a template ID")]
    Malformed(String),
    #[error("template '{0}' not found")]
    NotFound(String),
    #[error("tag '{tag}' does not exist for template '{template}'")]
    NoTag { tag: String, template: String },
}

impl Reference {
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let malformed = || TemplateError::Malformed(text.chars().take(2 * LONGEST).collect());
        let lower = text.trim().to_lowercase();
        if lower.len() > LONGEST {
            return Err(malformed());
        }
        let (name, tag) = match lower.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (lower.as_str(), None),
        };
        let (namespace, alias) = match name.split_once('/') {
            Some((namespace, alias)) => (Some(namespace), alias),
            None => (None, name),
        };
        let good = is_word(alias, "") && namespace.is_none_or(|space| is_word(space, "")) && tag.is_none_or(is_tag);
        let owned = |part: Option<&str>| part.map(str::to_owned);
        good.then(|| Self { namespace: owned(namespace), alias: alias.to_owned(), tag: owned(tag) })
            .ok_or_else(malformed)
    }

    /// The name as it was requested, without the tag.
    pub fn name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.alias),
            None => self.alias.clone(),
        }
    }

    /// Whether the namespace, if there is one, is that of this server.
    pub fn is_local(&self) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == NAMESPACE)
    }

    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

/// Whether the text can be a tag. Texts in the form of build ids cannot.
pub fn is_tag(text: &str) -> bool {
    text.len() <= LONGEST && is_word(text, ".") && uuid::Uuid::parse_str(text).is_err()
}

fn is_word(text: &str, more: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c) || more.contains(c);
    !text.is_empty() && text.chars().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_up_to_three_parts() {
        let parts = |text| Reference::parse(text).map(|found| (found.name(), found.tag().to_owned()));
        assert_eq!(parts(" Base:default "), Ok(("base".to_owned(), "default".to_owned())));
        assert_eq!(parts("team/x-1_y:v1.2"), Ok(("team/x-1_y".to_owned(), "v1.2".to_owned())));
        let long = "a".repeat(129);
        let uuid = "base:8a6e0804-2bd0-4672-b79d-d97027f9071a";
        for bad in ["", "a b", "a/b/c", "a:", "base:", uuid, "ü", "../x", "a:b:c", "a/", &long] {
            assert!(matches!(parts(bad), Err(TemplateError::Malformed(_))), "{bad:?}");
        }
    }
}
