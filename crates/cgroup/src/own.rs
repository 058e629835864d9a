//! The calling process's own cgroup, and what a user may do in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Controller, Mounts};

/// Which cgroups the calling process is in, one line per tree.
pub(super) fn read() -> io::Result<String> {
    fs::read_to_string("/proc/self/cgroup")
}

impl Mounts {
    /// The trees in which the user may divide the calling process's own cgroup, if they offer
    /// everything that limits need.
    /// # Errors
    /// The failed read of a file in `/proc/self`.
    pub fn find_delegated() -> io::Result<Option<Self>> {
        let (machine, own) = (Self::detect()?, read()?);
        let usable = |path: PathBuf| {
            let writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
            Some(path).filter(|path| writable(path) && writable(&path.join("cgroup.procs")))
        };
        // The root of a tree is never delegated.
        let below_root = |controller| path_in(&own, controller).filter(|path| *path != Path::new(""));
        let mut mounts = Self::default();
        for (controller, point) in machine.v1 {
            if let Some(place) = below_root(Some(controller)).and_then(|path| usable(point.join(path))) {
                mounts.v1.insert(controller, place);
            }
        }
        let unified = machine.unified.zip(below_root(None));
        mounts.unified = unified.and_then(|(point, path)| usable(point.join(path)));
        Ok(Some(mounts).filter(Self::suffice))
    }

    /// Moves the calling process to the child `name` of the cgroup2 directory, so that the
    /// directory can hand down controllers: cgroup v2 allows that only without processes.
    /// # Errors
    /// [`io::ErrorKind::NotFound`] without a cgroup2 directory; else what the kernel refused.
    pub fn move_self_to(&self, name: &str) -> io::Result<()> {
        let Some(own) = &self.unified else { return Err(io::ErrorKind::NotFound.into()) };
        let child = own.join(name);
        fs::create_dir_all(&child)?;
        fs::write(child.join("cgroup.procs"), "0")
    }
}

/// The process's path in the tree of a controller, or in the cgroup2 tree, as `/proc/PID/cgroup`
/// has it, relative to the tree's root.
pub(super) fn path_in(own: &str, controller: Option<Controller>) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let wanted = match controller {
            Some(controller) => controllers.split(',').any(|name| name == controller.name()),
            None => controllers.is_empty(),
        };
        wanted.then(|| path.trim_start_matches('/').into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tree_has_a_place_of_its_own() {
        let own = "4:memory:/a/b\n2:cpu,cpuacct:/c\n1:pids:/\n0::/user.slice/x.scope\n";
        assert_eq!(path_in(own, Some(Controller::Memory)), Some("a/b".into()));
        assert_eq!(path_in(own, Some(Controller::Cpu)), Some("c".into()));
        assert_eq!(path_in(own, Some(Controller::Pids)), Some("".into()), "the root");
        assert_eq!(path_in(own, Some(Controller::Io)), None);
        assert_eq!(path_in(own, None), Some("user.slice/x.scope".into()));
    }
}
