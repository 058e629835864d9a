//! The sandbox's file tree: id-mapped layers joined by overlays, as detached mounts.
//!
//! Runs in the launcher, as root of the initial user namespace, in a mount namespace that ends with the launcher. Each layer is
//! covered there by an id-mapped clone of itself, so that the overlay finds the mapped one under the layer's own path
//! (overlays accept layers that are mounted nowhere only from kernel 6.15 on).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, StatVfsMountFlags, fstatvfs, mkdir, stat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};
use rustix::thread::{CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits};

use super::failure::{At, Failure};
use super::spec::{Files, Overlay};
use crate::sys::mount::map_ids;
use crate::sys::process::set_file_system_ids;

/// Builds every overlay of `files`, in its order, for the ids that `user_namespace` maps.
pub(crate) fn build(files: &Files, user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failure> {
    for overlay in &files.overlays {
        make_writable_directories(files, overlay)?;
    }
    cover_with_mapped(files, user_namespace)?;
    // What the overlay writes (its work directory, copies of lower files) belongs to whoever mounts it, so it is mounted with
    // the ids of the sandbox's root. Others have no place in the id mapping: EOVERFLOW, and a mount that is silently read-only.
    // Without NO_SETUID_FIXUP the change of ids would take the file capabilities along.
    let before = capabilities_secure_bits().at("read the secure bits")?;
    set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP).at("keep the capabilities")?;
    set_file_system_ids(files.id_base, files.id_base).at("take the ids of the sandbox's root")?;
    let mounts = files.overlays.iter().map(|overlay| mount(&files.writable, overlay)).collect();
    set_file_system_ids(0, 0).at("give back the ids of the sandbox's root")?;
    set_capabilities_secure_bits(before).at("restore the secure bits")?;
    mounts
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

fn mount(writable: &Path, overlay: &Overlay) -> Result<OwnedFd, Failure> {
    let directory = writable.join(&overlay.directory);
    let mounted = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for lower in &overlay.lowers {
            fsconfig_set_string(&context, "lowerdir+", lower)?;
        }
        fsconfig_set_string(&context, "upperdir", directory.join("upper"))?;
        fsconfig_set_string(&context, "workdir", directory.join("work"))?;
        // Without it, renaming a directory of a layer fails (EXDEV).
        fsconfig_set_string(&context, "redirect_dir", "on")?;
        // Whatever the kernel's defaults: layers stay usable by others, and an upper may become a layer.
        fsconfig_set_string(&context, "index", "off")?;
        fsconfig_set_string(&context, "metacopy", "off")?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
    };
    let mount = mounted().at(&format!("mount the overlay for {}", overlay.at.display()))?;
    let flags = fstatvfs(&mount).at("look at the new overlay")?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(io::Error::from_raw_os_error(libc::EROFS))
            .at(&format!("write to the overlay for {}", overlay.at.display()));
    }
    Ok(mount)
}
