//! Values of variables that are too common to be masked in texts or searched for in files: a port,
//! `true`, `production`, and everything short.

/// Values below this many bytes are plain.
pub(crate) const SHORTEST_MASKED: usize = 4;
/// Numbers of up to this many digits are plain: every port is one.
const SHORT_NUMBER: usize = 5;
/// Common values of settings.
const COMMON: [&str; 26] = [
    "true",
    "false",
    "none",
    "null",
    "auto",
    "default",
    "enabled",
    "disabled",
    "always",
    "never",
    "local",
    "localhost",
    "0.0.0.0",
    "127.0.0.1",
    "development",
    "production",
    "staging",
    "test",
    "testing",
    "trace",
    "debug",
    "info",
    "warn",
    "warning",
    "error",
    "utf-8",
];

/// Whether a value is too common to be masked everywhere: fewer than [`SHORTEST_MASKED`] bytes, a
/// number of up to five digits, or a common value of settings.
pub(crate) fn is_plain(value: &str) -> bool {
    let number = value.len() <= SHORT_NUMBER && value.bytes().all(|byte| byte.is_ascii_digit());
    value.len() < SHORTEST_MASKED || number || COMMON.iter().any(|word| value.eq_ignore_ascii_case(word))
}
