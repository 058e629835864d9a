//! Attacks on a sandbox's ports from outside: tokens, contexts, wake-ups.
