//! The layers of a sandbox's root file system.
//!
//! A template is a list of overlays, each of read-only layers; a sandbox's own writes are in its
//! volume, one directory per overlay. `base` consists of views of the host's system directories
//! over a skeleton of our own:
//!
//! ```text
//! /                 skeleton: filtered /etc, empty /home/user, /var, …
//! /usr              skeleton's additions (python) over the host's /usr
//! /var/lib/dpkg     the host's package database, and /var/lib/apt its package lists
//! ```
//!
//! Nothing of the host is visible but through these named views and the allow list of [`etc`], and
//! of the views only what every user of the host may read: the kernel checks it at each access,
//! whatever the sandbox's root may do to files of its own (see `launcher::overlay`). In
//! `/usr/local`, [`local`] filters what administrators keep there.

mod accounts;
mod base;
mod closed;
mod copies;
mod etc;
mod furnish;
mod local;
mod skeleton;
mod texts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use base::BaseTemplate;
pub(crate) use furnish::furnish;

/// What a sandbox boots from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// The root first.
    pub mounts: Vec<MountPlan>,
    /// Environment of every process in such a sandbox.
    pub env: BTreeMap<String, String>,
}

/// One overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// The mount point in the sandbox.
    pub at: PathBuf,
    /// Read-only layers, newest first.
    pub lowers: Vec<PathBuf>,
    /// One of the layers is a directory of the host: the sandbox reads of it what every user of the
    /// host may read.
    pub of_host: bool,
}

impl MountPlan {
    /// The name, within a sandbox's volume, of the directory with what the sandbox wrote here.
    pub(crate) fn directory(&self) -> String {
        let name: Vec<_> = self.at.iter().skip(1).map(|part| part.to_string_lossy().replace('-', "--")).collect();
        if name.is_empty() { "root".to_owned() } else { format!("at-{}", name.join("-")) }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.at.is_absolute()
            && !self.lowers.is_empty()
            && self.lowers.iter().all(|lower| lower.is_absolute())
            && !self.at.components().any(|part| part.as_os_str() == "..")
    }
}

impl Template {
    /// Whether the engine can boot it: the root first, no mount point twice.
    pub(crate) fn is_sound(&self) -> bool {
        let mut places: Vec<&Path> = self.mounts.iter().map(|plan| plan.at.as_path()).collect();
        let root_first = places.first() == Some(&Path::new("/"));
        places.sort();
        let unique = places.windows(2).all(|pair| pair[0] != pair[1]);
        root_first && unique && self.mounts.iter().all(MountPlan::is_sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(at: &str) -> MountPlan {
        MountPlan { at: at.into(), lowers: vec!["/layer".into()], of_host: false }
    }

    #[test]
    fn every_mount_has_a_directory_of_its_own() {
        let names: Vec<_> = ["/", "/usr", "/a-b", "/a/b", "/root"].map(|at| plan(at).directory()).into();
        assert_eq!(names, ["root", "at-usr", "at-a--b", "at-a-b", "at-root"]);
    }

    #[test]
    fn a_template_begins_with_its_root_and_names_no_place_twice() {
        let sound = |places: &[&str]| {
            Template { mounts: places.iter().map(|at| plan(at)).collect(), env: BTreeMap::new() }.is_sound()
        };
        assert!(sound(&["/", "/usr"]));
        assert!(!sound(&["/usr", "/"]));
        assert!(!sound(&["/", "/usr", "/usr"]));
        assert!(!sound(&["/", "usr"]));
        assert!(!sound(&["/", "/usr/../etc"]));
        assert!(!sound(&[]));
    }
}
