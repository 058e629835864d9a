//! Attacks on the studio's users: cookies, sessions, revoked tokens.
