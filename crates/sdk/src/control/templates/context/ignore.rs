//! Rules of a `.dockerignore`.

use regex::Regex;

use super::{ContextError, normalize, pattern};

/// Rules of a `.dockerignore`: the last match decides, and a match of a directory covers everything
/// below it.
#[derive(Debug)]
pub(super) struct Ignore {
    rules: Vec<Rule>,
    /// Some rules negate, so ignored directories must be walked too.
    pub(super) has_negations: bool,
}

#[derive(Debug)]
struct Rule {
    negates: bool,
    matches: Regex,
}

impl Ignore {
    pub(super) fn new(lines: &[String]) -> Result<Self, ContextError> {
        let mut rules = Vec::new();
        for line in lines.iter().filter(|line| !line.starts_with('#')).map(|line| line.trim()) {
            let (negates, text) = line.strip_prefix('!').map_or((false, line), |text| (true, text.trim()));
            if line.is_empty() {
                continue;
            }
            let bad = |cause: &str| ContextError::BadPattern { pattern: line.to_owned(), cause: cause.to_owned() };
            if text.is_empty() {
                return Err(bad("nothing to take back"));
            }
            let clean = normalize(text.trim_start_matches('/')).ok_or_else(|| bad("it leads out of the context"))?;
            rules.push(Rule { negates, matches: pattern(&clean)? });
        }
        Ok(Self { has_negations: rules.iter().any(|rule| rule.negates), rules })
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        let mut above: Vec<bool> = vec![false; self.rules.len()];
        let mut ignored = false;
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            ignored = false;
            for (rule, above) in self.rules.iter().zip(&mut above) {
                // A rule that would not change the result is skipped, and so does not apply to
                // paths below.
                *above = *above || (rule.negates == ignored && rule.matches.is_match(&path[..end]));
                if *above {
                    ignored = !rule.negates;
                }
            }
        }
        ignored
    }
}
