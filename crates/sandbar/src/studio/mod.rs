//! `sandbar studio` and `sandbar user`; and the studio inside `sandbar up`.

mod models;
mod open;
mod premises;
mod serve;
mod user;

pub(crate) use open::{Options, Workshop, book, kept_first_token, workspaces_of};
pub(crate) use serve::{Serve, StudioFlags};
pub(crate) use user::Users;
