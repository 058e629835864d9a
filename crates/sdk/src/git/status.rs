//! The state of a working tree, from `git status --porcelain=v2 -z`.

/// The checked-out branch, and the changes since its last commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GitStatus {
    /// Absent on a detached HEAD.
    pub branch: Option<String>,
    /// Absent before the first commit.
    pub commit: Option<String>,
    /// The upstream branch.
    pub upstream: Option<String>,
    /// Commits that the upstream lacks.
    pub ahead: u32,
    /// Commits that only the upstream has.
    pub behind: u32,
    pub changes: Vec<GitChange>,
}

impl GitStatus {
    /// Whether there are no changes and no untracked files.
    pub fn is_clean(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GitChange {
    /// Path relative to the top of the working tree.
    pub path: String,
    /// The previous path of a renamed or copied file.
    pub original: Option<String>,
    /// The change in the index.
    pub staged: Option<ChangeKind>,
    /// The change in the working tree.
    pub unstaged: Option<ChangeKind>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed,
    CopySource,
    /// The file type changed, for example from symlink to file.
    TypeChanged,
    Untracked,
    /// Both sides of a merge changed it.
    Conflicted,
}

impl ChangeKind {
    fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'A' => Self::Added,
            'M' => Self::Modified,
            'D' => Self::Deleted,
            'R' => Self::Renamed,
            'C' => Self::CopySource,
            'T' => Self::TypeChanged,
            _ => return None,
        })
    }
}

/// Parses git's output; skips unknown line types, as git's documentation requires.
pub(super) fn parse(text: &str) -> GitStatus {
    let mut status = GitStatus::default();
    let mut items = text.split('\0');
    while let Some(item) = items.next() {
        let Some((kind, rest)) = item.split_once(' ') else { continue };
        match kind {
            "#" => header(&mut status, rest),
            "1" => status.changes.extend(change(rest, 7, None)),
            "2" => {
                let original = items.next().map(str::to_owned);
                status.changes.extend(change(rest, 8, original));
            }
            "u" => status.changes.extend(rest.splitn(10, ' ').nth(9).map(|path| GitChange {
                path: path.to_owned(),
                original: None,
                staged: None,
                unstaged: Some(ChangeKind::Conflicted),
            })),
            "?" => status.changes.push(GitChange {
                path: rest.to_owned(),
                original: None,
                staged: None,
                unstaged: Some(ChangeKind::Untracked),
            }),
            _ => {}
        }
    }
    status
}

fn header(status: &mut GitStatus, text: &str) {
    let Some((key, value)) = text.split_once(' ') else { return };
    match key {
        "branch.oid" if value != "(initial)" => status.commit = Some(value.to_owned()),
        "branch.head" if value != "(detached)" => status.branch = Some(value.to_owned()),
        "branch.upstream" => status.upstream = Some(value.to_owned()),
        "branch.ab" => {
            let mut counts = value.split(' ').map(|count| count[1..].parse().unwrap_or(0));
            (status.ahead, status.behind) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
        }
        _ => {}
    }
}

/// Parses two letters, then fields, then the path, which may contain spaces.
fn change(text: &str, fields: usize, original: Option<String>) -> Option<GitChange> {
    let mut letters = text.chars();
    let (staged, unstaged) = (letters.next()?, letters.next()?);
    let path = text.splitn(fields + 1, ' ').nth(fields)?;
    Some(GitChange {
        path: path.to_owned(),
        original,
        staged: ChangeKind::from_letter(staged),
        unstaged: ChangeKind::from_letter(unstaged),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_line_type_is_parsed() {
        let text = "# branch.oid 1234\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +2 -13\0\
                    1 .M N... 100644 100644 100644 a a with space\0\
                    2 R. N... 100644 100644 100644 a a R100 new name\0old name\0\
                    u UU N... 100644 100644 100644 100644 a b c both\0? new\nline\0! ignored\0";
        let status = parse(text);
        assert_eq!((status.branch.as_deref(), status.commit.as_deref()), (Some("main"), Some("1234")));
        assert_eq!((status.upstream.as_deref(), status.ahead, status.behind), (Some("origin/main"), 2, 13));
        let change = |path: &str, original: Option<&str>, staged, unstaged| GitChange {
            path: path.into(),
            original: original.map(Into::into),
            staged,
            unstaged,
        };
        let expected = [
            change("with space", None, None, Some(ChangeKind::Modified)),
            change("new name", Some("old name"), Some(ChangeKind::Renamed), None),
            change("both", None, None, Some(ChangeKind::Conflicted)),
            change("new\nline", None, None, Some(ChangeKind::Untracked)),
        ];
        assert_eq!(status.changes, expected);
        let fresh = parse("# branch.oid (initial)\0# branch.head (detached)\0");
        assert!(fresh.is_clean() && fresh.branch.is_none() && fresh.commit.is_none());
    }
}
