//! The sandbox's file tree: id-mapped layers joined by overlays, as detached mounts.
//!
//! Runs in the launcher, as root of the user namespace that is the sandbox's parent, in a mount namespace that ends with the
//! launcher. Where that is the initial one, each layer is covered there by an id-mapped clone of itself, so that the overlay finds
//! the mapped one under the layer's own path (overlays accept layers that are mounted nowhere only from kernel 6.15 on). Elsewhere
//! the kernel maps no ids, and the files have those of the sandbox already.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, StatVfsMountFlags, fstatvfs, mkdir, stat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::thread::{CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits};

use crate::failure::{At, Failure};
use crate::spec::{Files, OnDisk, Overlay};
use crate::sys::mount::{map_ids, share};
use crate::sys::process::set_file_system_ids;

/// Builds every overlay of `files` and then every volume, in its order, for the ids that `user_namespace` maps.
pub(crate) fn build(files: &Files, user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failure> {
    let make_all = || files.overlays.iter().try_for_each(|overlay| make_writable_directories(files, overlay));
    let mount_all = || files.overlays.iter().map(|overlay| mount(files, overlay)).collect::<Result<Vec<_>, _>>();
    let share_all = |namespace| files.volumes.iter().map(|volume| clone_shared(&volume.source, namespace)).collect();
    let (mut mounts, volumes): (_, Result<Vec<_>, _>) = match files.on_disk {
        OnDisk::ZeroBased => {
            make_all()?;
            let volumes = share_all(Some(user_namespace));
            cover_with_mapped(files, user_namespace)?;
            (as_mapped_root(files.id_base, mount_all)?, volumes)
        }
        OnDisk::OfSandbox => {
            let lowers = files.overlays.iter().flat_map(|overlay| &overlay.lowers);
            for lower in lowers {
                // The error of the mount would not say which of them is missing.
                stat(lower).at(&format!("look at the layer {}", lower.display()))?;
            }
            let made = as_mapped_root(files.id_base, || make_all().and_then(|()| mount_all()))?;
            (made, share_all(None))
        }
    };
    mounts.extend(volumes?);
    Ok(mounts)
}

/// A directory that others have, too: what one of them makes set-user-id must not be so for another.
fn clone_shared(source: &Path, user_namespace: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Failure> {
    let tree = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .at(&format!("clone the mount of {}", source.display()))?;
    share(tree.as_fd(), user_namespace).at(&format!("map the ids of {}", source.display()))?;
    Ok(tree)
}

/// What an overlay writes (its work directory, copies of lower files) belongs to whoever mounts it, so it is mounted with
/// the ids of the sandbox's root. Others have no place in the id mapping: EOVERFLOW, and a mount that is silently read-only.
fn as_mapped_root<T>(id: u32, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Without NO_SETUID_FIXUP the change of ids would take the file capabilities along.
    let before = capabilities_secure_bits().at("read the secure bits")?;
    set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP).at("keep the capabilities")?;
    set_file_system_ids(id, id).at("take the ids of the sandbox's root")?;
    let result = work();
    set_file_system_ids(0, 0).at("give back the ids of the sandbox's root")?;
    set_capabilities_secure_bits(before).at("restore the secure bits")?;
    result
}

fn make_writable_directories(files: &Files, overlay: &Overlay) -> Result<(), Failure> {
    let directory = files.writable.join(&overlay.directory);
    // The writable directory's own mode is what the mount's root shows.
    let mode = match overlay.lowers.first() {
        Some(lower) => Mode::from_raw_mode(stat(lower).at(&format!("look at the layer {}", lower.display()))?.st_mode),
        None => Mode::from_raw_mode(0o755),
    };
    for (path, mode) in
        [(&directory, Mode::RWXU), (&directory.join("upper"), mode), (&directory.join("work"), Mode::RWXU)]
    {
        match mkdir(path, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).at("make the writable directories"),
        }
    }
    Ok(())
}

fn cover_with_mapped(files: &Files, user_namespace: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut paths: Vec<&Path> =
        files.overlays.iter().flat_map(|overlay| &overlay.lowers).map(PathBuf::as_path).collect();
    paths.push(&files.writable);
    paths.sort();
    paths.dedup();
    // All are taken before any is covered: a covered path would give the mapped mount, which cannot be mapped again.
    let trees = paths
        .iter()
        .map(|path| {
            let tree = open_tree(CWD, *path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
                .at(&format!("clone the mount of {}", path.display()))?;
            map_ids(tree.as_fd(), user_namespace).at(&format!("map the ids of {}", path.display()))?;
            Ok((path, tree))
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    for (path, tree) in trees {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        move_mount(&tree, "", CWD, *path, flags).at(&format!("cover {}", path.display()))?;
    }
    Ok(())
}

fn mount(files: &Files, overlay: &Overlay) -> Result<OwnedFd, Failure> {
    let mounted = match mount_by_context(files, overlay) {
        // Kernels before 6.5 do not know `lowerdir+`.
        Err(Errno::INVAL) => mount_by_string(files, overlay),
        other => other,
    };
    let mount = mounted.at(&format!("mount the overlay for {}", overlay.at.display()))?;
    let flags = fstatvfs(&mount).at("look at the new overlay")?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        let step = format!("write to the overlay for {}", overlay.at.display());
        return Err(io::Error::from_raw_os_error(libc::EROFS)).at(&step);
    }
    Ok(mount)
}

/// The same however it is mounted. Renaming a directory of a layer works (without, EXDEV); whatever the kernel's defaults are,
/// layers stay usable by others and an upper may become a layer.
const OPTIONS: &[(&str, &str)] = &[("redirect_dir", "on"), ("index", "off"), ("metacopy", "off")];
/// Where the mounter is root of a user namespace only: what overlays note about files goes into attributes that everybody may
/// write, and must then not lead from one directory to another.
const OPTIONS_OF_USER: &[(&str, &str)] = &[("userxattr", "")];

fn options(on_disk: OnDisk) -> &'static [(&'static str, &'static str)] {
    match on_disk {
        OnDisk::ZeroBased => OPTIONS,
        OnDisk::OfSandbox => OPTIONS_OF_USER,
    }
}

fn mount_by_context(files: &Files, overlay: &Overlay) -> rustix::io::Result<OwnedFd> {
    let directory = files.writable.join(&overlay.directory);
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "overlay")?;
    for lower in &overlay.lowers {
        fsconfig_set_string(&context, "lowerdir+", lower)?;
    }
    // The kernel takes backslashes out of these two, but not out of `lowerdir+`.
    fsconfig_set_string(&context, "upperdir", escaped(&directory.join("upper"), "\\"))?;
    fsconfig_set_string(&context, "workdir", escaped(&directory.join("work"), "\\"))?;
    for (key, value) in options(files.on_disk) {
        match *value {
            "" => fsconfig_set_flag(&context, *key)?,
            value => fsconfig_set_string(&context, *key, value)?,
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// All options in one string, which holds about 60 layers. Mounted over its own writable directory, for want of a better place in
/// this namespace, and cloned from there.
fn mount_by_string(files: &Files, overlay: &Overlay) -> rustix::io::Result<OwnedFd> {
    let directory = files.writable.join(&overlay.directory);
    let lowers: Vec<_> = overlay.lowers.iter().map(|lower| escaped(lower, ":,\\")).collect();
    let mut options = format!("lowerdir={}", lowers.join(":"));
    for (key, path) in [("upperdir", directory.join("upper")), ("workdir", directory.join("work"))] {
        options += &format!(",{key}={}", escaped(&path, ",\\"));
    }
    for (key, value) in self::options(files.on_disk) {
        options += &if value.is_empty() { format!(",{key}") } else { format!(",{key}={value}") };
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount("overlay", &directory, "overlay", MountFlags::NODEV, options.as_c_str())?;
    open_tree(CWD, &directory, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

fn escaped(path: &Path, special: &str) -> String {
    let mut escaped = String::new();
    for character in path.to_string_lossy().chars() {
        if special.contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use rustix::fs::{OFlags, openat};

    use super::*;
    use crate::sys::namespace::unshare_mounts;

    const BASE: u32 = 0x6fff_0000;

    /// Builds an overlay of two layers in a thread with mounts of its own, and gives what a look at it yields.
    fn with_layers(mount: fn(&Files, &Overlay) -> rustix::io::Result<OwnedFd>) -> (String, u32) {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for directory in ["new,la\\yer", "old:la\\yer", "writ\\able"] {
            fs::create_dir(path(directory)).unwrap();
        }
        fs::write(path("new,la\\yer").join("both"), "new").unwrap();
        fs::write(path("old:la\\yer").join("both"), "old").unwrap();
        fs::write(path("old:la\\yer").join("old"), "old").unwrap();
        let files = Files {
            id_base: BASE,
            on_disk: OnDisk::ZeroBased,
            writable: path("writ\\able"),
            overlays: vec![Overlay {
                at: "/".into(),
                lowers: vec![path("new,la\\yer"), path("old:la\\yer")],
                directory: "root".into(),
            }],
            volumes: Vec::new(),
        };
        // Holds a user namespace open; ends with its standard input.
        let mut holder =
            Command::new("unshare").args(["-U", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = holder.stdin.as_mut().unwrap();
        pipe.write_all(b"x").unwrap();
        io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", holder.id()), format!("0 {BASE} 65536")).unwrap();
        }
        let user_namespace = fs::File::open(format!("/proc/{}/ns/user", holder.id())).unwrap();
        let seen = std::thread::spawn(move || {
            unshare_mounts().unwrap();
            make_writable_directories(&files, &files.overlays[0]).unwrap();
            cover_with_mapped(&files, user_namespace.as_fd()).unwrap();
            let overlay = as_mapped_root(BASE, || mount(&files, &files.overlays[0]).at("mount"));
            let mount = overlay.unwrap();
            let open =
                |name, flags| openat(&mount, name, flags, Mode::from_raw_mode(0o644)).map(fs::File::from).unwrap();
            as_mapped_root(BASE, || open("written", OFlags::WRONLY | OFlags::CREATE).write_all(b"x").at("write"))
                .unwrap();
            let read = |name| io::read_to_string(open(name, OFlags::RDONLY)).unwrap();
            let owner = rustix::fs::fstat(open("old", OFlags::RDONLY)).unwrap().st_uid;
            (format!("{} {}", read("both"), read("old")), owner)
        });
        let seen = seen.join().unwrap();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(fs::read(path("writ\\able/root/upper/written")).unwrap(), b"x");
        seen
    }

    #[test]
    fn both_ways_of_mounting_give_the_same_tree() {
        let expected = ("new old".to_owned(), BASE);
        assert_eq!(with_layers(mount_by_context), expected);
        assert_eq!(with_layers(mount_by_string), expected);
    }
}
