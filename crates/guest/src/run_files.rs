//! Files that describe the sandbox to programs inside.

use std::fs;
use std::io;
use std::path::Path;

use protocol::guest::GuestConfig;

pub(crate) fn facts(config: &GuestConfig) -> [(&'static str, String); 3] {
    [
        (".E2B_SANDBOX", "true".to_owned()),
        (".E2B_SANDBOX_ID", config.sandbox_id.clone()),
        (".E2B_TEMPLATE_ID", config.template_id.clone()),
    ]
}

pub(crate) fn write(run: &Path, facts: &[(&str, String)]) -> io::Result<()> {
    fs::create_dir_all(run)?;
    facts.iter().try_for_each(|(name, value)| fs::write(run.join(name), value))
}
