//! Kernel resources that the machine holds for a server, so that tests detect leaks.

use super::server::Server;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Processes, cgroups and mounts of a server's sandboxes.
pub(crate) struct Holdings {
    attribution: Attribution,
    data: PathBuf,
}

/// How a test attributes a process to a sandbox.
enum Attribution {
    /// By the server's cgroup: one path with cgroup v2, one per controller with cgroup v1.
    Groups(Vec<PathBuf>),
    /// Without cgroups, by an argument of every process 1: this prefix, then the sandbox's id.
    Mark(String),
}

impl Holdings {
    /// Creates a sandbox, finds its cgroup or its argument, and kills it.
    pub(crate) fn for_server(server: &Server) -> Self {
        let sandbox = server.create();
        let trees = || fs::read_dir("/sys/fs/cgroup").expect("cgroups are mounted").flatten().map(|tree| tree.path());
        let groups: Vec<PathBuf> = trees()
            .chain(trees().filter_map(|tree| fs::read_dir(tree).ok()).flatten().flatten().map(|group| group.path()))
            .filter(|group| group.join(&sandbox.id).is_dir())
            .collect();
        let attribution = if groups.is_empty() {
            let mark = processes().flat_map(|process| arguments(&process)).find_map(|argument| {
                let mark = argument.strip_suffix(&sandbox.id)?;
                (mark.contains('=') && mark.ends_with('/')).then(|| mark.to_owned())
            });
            Attribution::Mark(mark.unwrap_or_else(|| panic!("neither cgroup nor mark of sandbox {} found", sandbox.id)))
        } else {
            Attribution::Groups(groups)
        };
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
        Self { attribution, data: server.data().to_owned() }
    }

    /// Ids of sandboxes that have a cgroup or a process.
    pub(crate) fn sandboxes(&self) -> BTreeSet<String> {
        match &self.attribution {
            Attribution::Groups(groups) => groups
                .iter()
                .filter_map(|group| fs::read_dir(group).ok())
                .flatten()
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
            Attribution::Mark(mark) => {
                let arguments = processes().flat_map(|process| arguments(&process));
                arguments.filter_map(|argument| Some(argument.strip_prefix(mark)?.to_owned())).collect()
            }
        }
    }

    /// Everything that must be gone once no sandbox is left.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut held: Vec<String> = self.sandboxes().into_iter().map(|name| format!("sandbox {name}")).collect();
        if let Attribution::Groups(groups) = &self.attribution {
            held.extend(members(groups));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let data = self.data.to_str().expect("a text path");
        held.extend(mounts.lines().filter(|line| line.contains(data)).map(str::to_owned));
        held
    }

    /// Everything that must be gone once the server has ended as well.
    pub(crate) fn all_of_the_server(&self) -> Vec<String> {
        let mut held = self.all();
        if let Attribution::Groups(groups) = &self.attribution {
            held.extend(groups.iter().filter(|group| group.exists()).map(|group| group.display().to_string()));
        }
        held
    }
}

/// Processes in cgroups of these names, without zombies.
fn members(groups: &[PathBuf]) -> impl Iterator<Item = String> {
    let names: Vec<String> = groups.iter().map(|group| file_name(group)).collect();
    processes().filter_map(move |process| {
        let membership = fs::read_to_string(process.join("cgroup")).ok()?;
        // A zombie of a killed server is reaped by init, at some later time.
        let dead = fs::read_to_string(process.join("status")).is_ok_and(|status| status.contains("State:\tZ"));
        let inside = names.iter().any(|name| membership.contains(&format!("/{name}/")));
        (!dead && inside).then(|| format!("process {}", file_name(&process)))
    })
}

fn processes() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path())
}

/// The arguments of a process. Empty for a zombie or a process that has ended.
fn arguments(process: &Path) -> Vec<String> {
    let all = fs::read(process.join("cmdline")).unwrap_or_default();
    all.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("no root").to_string_lossy().into_owned()
}
