//! Finds the cgroup trees of this machine in `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The resource controllers that a group's limits may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Controller {
    Memory,
    Cpu,
    /// v1 only; v2 counts processor time without a controller.
    Cpuacct,
    Pids,
    /// v1 only; v2 freezes without a controller.
    Freezer,
    /// v2 only: its counterpart in v1 does not know which group dirtied a page.
    Io,
}

impl Controller {
    const ALL: [Self; 6] = [Self::Memory, Self::Cpu, Self::Cpuacct, Self::Pids, Self::Freezer, Self::Io];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::Io => "io",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The mounted cgroup trees. The kernel puts a controller in a v1 tree or in the cgroup2 tree,
/// never in both.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mounts {
    /// Mount point of each v1 controller; several may share one.
    pub v1: BTreeMap<Controller, PathBuf>,
    /// Mount point of the cgroup2 tree.
    pub unified: Option<PathBuf>,
}

impl Mounts {
    /// What is mounted in the calling process's mount namespace.
    pub fn detect() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// Parses a `mountinfo` file. The first mount of a tree wins: later ones are views made for
    /// containers.
    pub fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let Some(point) = before.split(' ').nth(4).map(unescape) else { continue };
            let mut after = after.split(' ');
            let (kind, options) = (after.next().unwrap_or(""), after.nth(1).unwrap_or(""));
            match kind {
                "cgroup2" => {
                    mounts.unified.get_or_insert(point);
                }
                "cgroup" => {
                    for controller in Controller::ALL {
                        if options.split(',').any(|option| option == controller.name()) {
                            mounts.v1.entry(controller).or_insert_with(|| point.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        mounts
    }

    /// The mount point of every tree.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.v1.values().chain(&self.unified).map(PathBuf::as_path)
    }

    /// Whether there is a tree for every limit of a group, and one that freezes.
    pub fn suffice(&self) -> bool {
        super::hierarchy::suffice(self)
    }

    /// The controllers that the cgroup2 tree offers at its root.
    pub(super) fn unified_controllers(&self) -> Vec<Controller> {
        let Some(root) = &self.unified else { return Vec::new() };
        controllers_in(&root.join("cgroup.controllers"))
    }

    /// One line for people: which version, and which tree freezes.
    pub fn describe(&self) -> String {
        let v2 = self.unified_controllers();
        let names =
            |list: &mut dyn Iterator<Item = Controller>| list.map(Controller::name).collect::<Vec<_>>().join(" ");
        match (self.v1.is_empty(), &self.unified) {
            (true, None) => "no cgroup tree is mounted".into(),
            (true, Some(_)) => format!("v2 ({})", names(&mut v2.into_iter())),
            (false, None) => format!("v1 ({})", names(&mut self.v1.keys().copied())),
            (false, Some(_)) => {
                format!("hybrid (v1: {}; cgroup2 for freeze and kill)", names(&mut self.v1.keys().copied()))
            }
        }
    }
}

pub(super) fn controllers_in(file: &Path) -> Vec<Controller> {
    let text = fs::read_to_string(file).unwrap_or_default();
    Controller::ALL.into_iter().filter(|c| text.split_whitespace().any(|word| word == c.name())).collect()
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| field.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()))
            .flatten();
        match octal {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_machine_has_v1_controllers_and_a_cgroup2_tree() {
        let mounts = Mounts::parse(
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        );
        let both: PathBuf = "/sys/fs/cgroup/cpu,cpuacct".into();
        assert_eq!(
            mounts.v1,
            BTreeMap::from([
                (Controller::Memory, "/sys/fs/cgroup/memory".into()),
                (Controller::Cpu, both.clone()),
                (Controller::Cpuacct, both),
            ])
        );
        assert_eq!(mounts.unified, Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn the_first_cgroup2_mount_wins_and_blanks_are_decoded() {
        let mounts = Mounts::parse(
            "41 31 0:38 / /sys/fs/my\\040cgroup rw,relatime shared:1 master:2 - cgroup2 none rw,nsdelegate\n\
             42 31 0:38 /box /other rw - cgroup2 none rw\n",
        );
        assert_eq!(mounts, Mounts { v1: BTreeMap::new(), unified: Some("/sys/fs/my cgroup".into()) });
    }
}
