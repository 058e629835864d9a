//! `sandbar studio`, `sandbar user`, and the studio inside of `sandbar up`.

mod host;
mod models;
mod open;
mod serve;
mod user;

pub(crate) use open::{StudioOptions, StudioRuntime, open_usage, open_workspaces, own_objects, read_first_token};
pub(crate) use serve::{Serve, StudioFlags};
pub(crate) use user::Users;
