//! Credentials for one git process: a helper in its environment that answers for one origin only.
//! They appear in no file, no URL and no command line.

use url::Url;

use super::error::GitError;
use crate::commands::Command;
use secret::Secret;

/// A user name and a password or token, for `https` remotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: Secret,
}

impl Credentials {
    pub fn new(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { username: username.into(), password: password.into() }
    }

    /// A token of a forge that ignores the user name, as GitHub and GitLab do.
    pub fn token(token: impl Into<Secret>) -> Self {
        Self::new("x-access-token", token)
    }

    /// Adds the credentials to `command` for the origin of `remote`, and for no origin it redirects
    /// to.
    pub(super) fn apply_to(&self, command: Command, remote: &str) -> Command {
        let Some(origin) = origin(remote) else { return command };
        // The helper reads them from the environment, so that no text kept by git contains them.
        const HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                              \"$SANDBAR_GIT_USERNAME\" \"$SANDBAR_GIT_PASSWORD\"; }; f";
        command
            .env("GIT_CONFIG_COUNT", "2")
            // Disables the configured helpers, which could store the credentials.
            .env("GIT_CONFIG_KEY_0", "credential.helper")
            .env("GIT_CONFIG_VALUE_0", "")
            .env("GIT_CONFIG_KEY_1", format!("credential.{origin}.helper"))
            .env("GIT_CONFIG_VALUE_1", HELPER)
            .env("SANDBAR_GIT_USERNAME", &self.username)
            .env("SANDBAR_GIT_PASSWORD", self.password.expose())
    }
}

/// Scheme, host and port of a remote that takes credentials.
fn origin(remote: &str) -> Option<String> {
    let url = Url::parse(remote).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let host = url.host_str()?;
    Some(match url.port() {
        Some(port) => format!("{}://{host}:{port}", url.scheme()),
        None => format!("{}://{host}", url.scheme()),
    })
}

/// Checks that a remote is safe in a command line and in the repository's configuration.
pub(super) fn check_remote(remote: &str) -> Result<&str, GitError> {
    let refuse = |reason| GitError::Invalid { what: "a remote's URL", value: redact(remote), reason };
    if remote.is_empty() || remote.starts_with('-') {
        return Err(refuse("it could be taken for an option"));
    }
    if Url::parse(remote).is_ok_and(|url| url.password().is_some()) {
        return Err(refuse("it holds a password, which git would keep: give credentials apart"));
    }
    Ok(remote)
}

/// Removes the password from a remote.
fn redact(remote: &str) -> String {
    match Url::parse(remote) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(Some("…"));
            url.into()
        }
        _ => remote.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_apply_to_one_origin() {
        for (remote, expected) in [
            ("https://github.com/a/b.git", Some("https://github.com")),
            ("http://127.0.0.1:8080/a", Some("http://127.0.0.1:8080")),
            ("https://user@host.example/a", Some("https://host.example")),
            ("git@github.com:a/b.git", None),
            ("ssh://git@github.com/a", None),
            ("/srv/repo.git", None),
            ("git://host/repo", None),
        ] {
            assert_eq!(origin(remote).as_deref(), expected, "{remote}");
        }
    }

    #[test]
    fn remotes_with_passwords_or_options_are_refused() {
        let error = check_remote("https://me:secretword@host.example/a").expect_err("a password").to_string();
        assert!(!error.contains("secretword"), "{error}");
        assert!(check_remote("--upload-pack=evil").is_err() && check_remote("").is_err());
        assert!(check_remote("https://host.example/a").is_ok() && check_remote("../other").is_ok());
    }
}
