//! What the machine holds for a server, to see that nothing is left over.

use super::server::Server;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the machine holds for a server's sandboxes: processes, cgroups, mounts.
pub(crate) struct Holdings {
    /// The server's own cgroup, wherever the machine has it: in one tree, or in one a controller.
    pub(crate) groups: Vec<PathBuf>,
    data: PathBuf,
}

impl Holdings {
    /// Learns by a sandbox where the server keeps them.
    pub(crate) fn of(server: &Server) -> Self {
        let sandbox = server.create();
        let trees =
            || std::fs::read_dir("/sys/fs/cgroup").expect("cgroups are mounted").flatten().map(|tree| tree.path());
        let groups: Vec<PathBuf> = trees()
            .chain(
                trees().filter_map(|tree| std::fs::read_dir(tree).ok()).flatten().flatten().map(|group| group.path()),
            )
            .filter(|group| group.join(&sandbox.id).is_dir())
            .collect();
        assert!(!groups.is_empty(), "no cgroup of sandbox {} found", sandbox.id);
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
        Self { groups, data: server.data().to_owned() }
    }

    /// Sandboxes with a cgroup.
    pub(crate) fn sandboxes(&self) -> BTreeSet<String> {
        let entries = self.groups.iter().filter_map(|group| std::fs::read_dir(group).ok()).flatten().flatten();
        entries
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Everything that should be gone when no sandbox is left.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut held: Vec<String> = self.sandboxes().into_iter().map(|name| format!("cgroup {name}")).collect();
        let names: Vec<String> = self.groups.iter().map(|group| file_name(group)).collect();
        for entry in std::fs::read_dir("/proc").expect("procfs").flatten() {
            let Ok(membership) = std::fs::read_to_string(entry.path().join("cgroup")) else { continue };
            // A dead child of a killed server is init's to collect, in its own time.
            let dead =
                std::fs::read_to_string(entry.path().join("status")).is_ok_and(|status| status.contains("State:\tZ"));
            if !dead && names.iter().any(|name| membership.contains(&format!("/{name}/"))) {
                held.push(format!("process {}", file_name(&entry.path())));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let data = self.data.to_str().expect("a text path");
        held.extend(mounts.lines().filter(|line| line.contains(data)).map(str::to_owned));
        held
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("no root").to_string_lossy().into_owned()
}
