//! What the machine holds for a server, to see that nothing is left over.

use super::server::Server;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the machine holds for a server's sandboxes: processes, cgroups, mounts.
pub(crate) struct Holdings {
    keeping: Keeping,
    data: PathBuf,
}

/// How the machine keeps the processes of sandboxes apart.
enum Keeping {
    /// By the server's own cgroup, wherever the machine has it: in one tree, or in one a controller.
    Groups(Vec<PathBuf>),
    /// Without cgroups, by an argument of every process 1: this, then the sandbox's name.
    Mark(String),
}

impl Holdings {
    /// Learns by a sandbox where the server keeps them.
    pub(crate) fn of(server: &Server) -> Self {
        let sandbox = server.create();
        let trees = || fs::read_dir("/sys/fs/cgroup").expect("cgroups are mounted").flatten().map(|tree| tree.path());
        let groups: Vec<PathBuf> = trees()
            .chain(trees().filter_map(|tree| fs::read_dir(tree).ok()).flatten().flatten().map(|group| group.path()))
            .filter(|group| group.join(&sandbox.id).is_dir())
            .collect();
        let keeping = if groups.is_empty() {
            let mark = processes().flat_map(|process| arguments(&process)).find_map(|argument| {
                let mark = argument.strip_suffix(&sandbox.id)?;
                (mark.contains('=') && mark.ends_with('/')).then(|| mark.to_owned())
            });
            Keeping::Mark(mark.unwrap_or_else(|| panic!("neither cgroup nor mark of sandbox {} found", sandbox.id)))
        } else {
            Keeping::Groups(groups)
        };
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
        Self { keeping, data: server.data().to_owned() }
    }

    /// Sandboxes with a cgroup, or with a process.
    pub(crate) fn sandboxes(&self) -> BTreeSet<String> {
        match &self.keeping {
            Keeping::Groups(groups) => groups
                .iter()
                .filter_map(|group| fs::read_dir(group).ok())
                .flatten()
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
            Keeping::Mark(mark) => {
                let arguments = processes().flat_map(|process| arguments(&process));
                arguments.filter_map(|argument| Some(argument.strip_prefix(mark)?.to_owned())).collect()
            }
        }
    }

    /// Everything that should be gone when no sandbox is left.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut held: Vec<String> = self.sandboxes().into_iter().map(|name| format!("sandbox {name}")).collect();
        if let Keeping::Groups(groups) = &self.keeping {
            held.extend(members(groups));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let data = self.data.to_str().expect("a text path");
        held.extend(mounts.lines().filter(|line| line.contains(data)).map(str::to_owned));
        held
    }

    /// Everything that should be gone when there is no server any more, either.
    pub(crate) fn all_of_the_server(&self) -> Vec<String> {
        let mut held = self.all();
        if let Keeping::Groups(groups) = &self.keeping {
            held.extend(groups.iter().filter(|group| group.exists()).map(|group| group.display().to_string()));
        }
        held
    }
}

/// The living processes in cgroups of these names.
fn members(groups: &[PathBuf]) -> impl Iterator<Item = String> {
    let names: Vec<String> = groups.iter().map(|group| file_name(group)).collect();
    processes().filter_map(move |process| {
        let membership = fs::read_to_string(process.join("cgroup")).ok()?;
        // A dead child of a killed server is init's to collect, in its own time.
        let dead = fs::read_to_string(process.join("status")).is_ok_and(|status| status.contains("State:\tZ"));
        let inside = names.iter().any(|name| membership.contains(&format!("/{name}/")));
        (!dead && inside).then(|| format!("process {}", file_name(&process)))
    })
}

fn processes() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path())
}

/// Of a process that lives: a dead one has none any more.
fn arguments(process: &Path) -> Vec<String> {
    let all = fs::read(process.join("cmdline")).unwrap_or_default();
    all.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("no root").to_string_lossy().into_owned()
}
