//! Quotes an argument for a shell.

/// `text` as one word of a POSIX shell. Plain words stay unquoted, since people read them.
pub(crate) fn quote(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn plain_words_stay_unquoted() {
        assert_eq!(quote("/usr/bin/node"), "/usr/bin/node");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn shell_restores_quoted_text(text in "[^\0]{0,60}") {
            let run = Command::new("sh").arg("-c").arg(format!("printf %s {}", quote(&text))).output().expect("sh runs");
            prop_assert_eq!(String::from_utf8_lossy(&run.stdout), text);
        }
    }
}
