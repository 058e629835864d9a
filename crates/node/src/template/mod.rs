//! Templates: what sandboxes are created from. The default one always exists; it is a view of the
//! host's system and has two names. The others were built, or are snapshots of sandboxes.

pub(crate) mod catalog;
mod change;
mod record;
mod reference;

pub use catalog::Resolved;
pub use change::ChangeError;
pub use record::{Build, BuildFailure, BuildFiles, BuildStatus, Defaults, Size, Tag, Template, TemplateRecord};
pub use reference::{DEFAULT_TAG, NAMESPACE, Reference, TemplateError, is_tag};

/// The id of the default template.
pub const BASE_ID: &str = "sandbarbase0000000000";
/// The id of its only build.
pub const BASE_BUILD: uuid::Uuid = uuid::uuid!("00000000-0000-4000-8000-000000000000");
/// The names of the default template.
pub const BASE_NAMES: [&str; 2] = ["base", "code-interpreter-v1"];

/// The default template, which needs no record.
pub fn base() -> Resolved {
    Resolved {
        template: Template { id: BASE_ID.to_owned(), alias: Some(BASE_NAMES[0].to_owned()) },
        files: None,
        defaults: Defaults::default(),
        size: None,
        build: BASE_BUILD,
    }
}

/// The alias under which `reference` names the default template, if it does.
pub(crate) fn base_alias(reference: &Reference) -> Option<&'static str> {
    let wanted = if reference.alias == BASE_ID { BASE_NAMES[0] } else { reference.alias.as_str() };
    BASE_NAMES.into_iter().find(|name| reference.is_local() && *name == wanted)
}
