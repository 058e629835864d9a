//! The sandbox's file tree: id-mapped layers joined by overlays, as detached mounts.
//!
//! Runs in the launcher, as root of the sandbox's parent user namespace, in a mount namespace that
//! ends with the launcher. In the initial user namespace the launcher covers each layer by an
//! id-mapped clone of itself (only kernels from 6.15 on accept detached mounts as layers of an
//! overlay). In other user namespaces the kernel maps no ids, and the files are owned by the
//! sandbox's ids already.
//!
//! Overlays get their layers by descriptor (`/proc/self/fd/N`), because the sandbox reads these
//! options in `/proc/self/mountinfo`, and they must not reveal the path of the data directory.
//!
//! ```text
//! upper ── overlay, mounted by the sandbox's root
//!             └── screen: overlay, mounted without capabilities over files ── /usr
//! ```
//! An overlay opens the files of its layers with the credentials of its mounter. Mapped ids alone
//! would show the host's root as the sandbox's root, who could then read files that only root may
//! read. So layers of the host are behind a second, read-only overlay, the screen, whose mounter
//! has the permissions of no user: the kernel checks each access, also of files that appear or
//! change their mode later. Where ids are not mapped, the sandbox's root has no permissions over
//! the host's files in the first place, and no screen is needed.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdir, open, stat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::failure::{At, Failure};
use crate::spec::{Files, OnDisk, Overlay};
use crate::sys::mount::{map_ids, share};
use crate::sys::process::set_file_system_ids;

/// Mounts every overlay of `files` and then every volume, in its order, for the ids that
/// `user_namespace` maps.
pub(crate) fn build(files: &Files, user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failure> {
    let make_all = || files.overlays.iter().try_for_each(|overlay| make_writable_directories(files, overlay));
    let mount_all = |plans: &[Plan]| plans.iter().map(|plan| mount(plan, files.on_disk)).collect::<Result<Vec<_>, _>>();
    let share_all = |namespace| files.volumes.iter().map(|volume| clone_shared(&volume.source, namespace)).collect();
    let (mut mounts, volumes): (_, Result<Vec<_>, _>) = match files.on_disk {
        OnDisk::ZeroBased => {
            make_all()?;
            let volumes = share_all(Some(user_namespace));
            let sources = cover_with_mapped(files, user_namespace)?;
            let screens = screen_all(files, &sources)?;
            let plans = plan(files, &sources, &screens);
            (as_mapped_root(files.id_base, || mount_all(&plans))?, volumes)
        }
        OnDisk::OfSandbox => {
            as_mapped_root(files.id_base, make_all)?;
            let sources = open_sources(files)?;
            let plans = plan(files, &sources, &Screens::new());
            (as_mapped_root(files.id_base, || mount_all(&plans))?, share_all(None))
        }
    };
    mounts.extend(volumes?);
    Ok(mounts)
}

/// Layers and the writable directory, open, by path.
type Sources = BTreeMap<PathBuf, OwnedFd>;
/// The screens of the overlays that have one, open, by the overlay's mount point.
type Screens = BTreeMap<PathBuf, OwnedFd>;

/// One overlay with the names that are passed to the kernel.
struct Plan {
    at: PathBuf,
    lowers: Vec<String>,
    /// `None`: read-only.
    writable: Option<Writable>,
    /// A directory to mount on, for kernels that only have the one-step mount call.
    place: PathBuf,
}

struct Writable {
    upper: String,
    work: String,
}

/// The path by which the kernel opens the directory of a descriptor.
fn name(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn plan(files: &Files, sources: &Sources, screens: &Screens) -> Vec<Plan> {
    let plan = |overlay: &Overlay| {
        let writable = format!("{}/{}", name(&sources[&files.writable]), overlay.directory);
        Plan {
            at: overlay.at.clone(),
            lowers: match screens.get(&overlay.at) {
                Some(screen) => vec![name(screen)],
                None => overlay.lowers.iter().map(|lower| name(&sources[lower])).collect(),
            },
            writable: Some(Writable { upper: format!("{writable}/upper"), work: format!("{writable}/work") }),
            place: files.writable.join(&overlay.directory),
        }
    };
    files.overlays.iter().map(plan).collect()
}

/// Mounts the screen of every overlay that has layers of the host.
fn screen_all(files: &Files, sources: &Sources) -> Result<Screens, Failure> {
    let of_host = files.overlays.iter().filter(|overlay| overlay.of_host);
    of_host.map(|overlay| Ok((overlay.at.clone(), screen(files, overlay, sources)?))).collect()
}

/// Joins the layers of `overlay` with a mounter without permissions. For kernels before 6.15 the
/// screen is attached in this namespace, over the lowest layer, which the mounter can reach.
fn screen(files: &Files, overlay: &Overlay, sources: &Sources) -> Result<OwnedFd, Failure> {
    let step = format!("screen the layers for {}", overlay.at.display());
    let place = overlay.lowers.last().ok_or(Failure::closed(&step))?.clone();
    // A read-only overlay needs two layers.
    let empty = files.writable.join(&overlay.directory).join(EMPTY);
    let empty = open(&empty, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at(&step)?;
    let lowers = overlay.lowers.iter().map(|lower| &sources[lower]).chain([&empty]).map(name).collect();
    let plan = Plan { at: overlay.at.clone(), lowers, writable: None, place };
    let screen = without_rights(|| mount(&plan, files.on_disk))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    move_mount(&screen, "", CWD, &plan.place, flags).at(&step)?;
    Ok(screen)
}

/// An empty directory next to `upper` and `work`.
const EMPTY: &str = "empty";

/// Runs `work` with SYS_ADMIN as the only effective capability. Its user is root, which id-mapped
/// layers show as the owner of no file.
fn without_rights<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let before = capabilities(None).at("read the capabilities")?;
    let effective = CapabilitySet::SYS_ADMIN;
    set_capabilities(None, CapabilitySets { effective, ..before }).at("lay down the capabilities")?;
    let result = work();
    set_capabilities(None, before).at("take back the capabilities")?;
    result
}

/// The layers and the writable directory, if there are overlays.
fn directories(files: &Files) -> impl Iterator<Item = &PathBuf> {
    let writable = (!files.overlays.is_empty()).then_some(&files.writable);
    files.overlays.iter().flat_map(|overlay| &overlay.lowers).chain(writable)
}

/// Opens the layers and the writable directory where ids are not mapped.
fn open_sources(files: &Files) -> Result<Sources, Failure> {
    directories(files)
        .map(|path| {
            let opened = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            Ok((path.clone(), opened.at(&format!("look at the layer {}", path.display()))?))
        })
        .collect()
}

/// Clones a directory that other sandboxes share: a set-uid file of one sandbox must not have
/// effect in another.
fn clone_shared(source: &Path, user_namespace: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Failure> {
    let tree = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .at(&format!("clone the mount of {}", source.display()))?;
    share(tree.as_fd(), user_namespace).at(&format!("map the ids of {}", source.display()))?;
    Ok(tree)
}

/// Runs `work` with the file-system ids of the sandbox's root. An overlay's work directory and its
/// copies of lower files belong to the mounter, and ids without a mapping result in EOVERFLOW, or
/// in a mount that is silently read-only.
fn as_mapped_root<T>(id: u32, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Without NO_SETUID_FIXUP the change of ids would clear the capabilities over files.
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
    // The mode of the upper directory is the mode of the mount's root.
    let mode = match overlay.lowers.first() {
        Some(lower) => Mode::from_raw_mode(stat(lower).at(&format!("look at the layer {}", lower.display()))?.st_mode),
        None => Mode::from_raw_mode(0o755),
    };
    for (path, mode) in [
        (&directory, Mode::RWXU),
        (&directory.join("upper"), mode),
        (&directory.join("work"), Mode::RWXU),
        // The mounter of a screen must be able to read it.
        (&directory.join(EMPTY), Mode::from_raw_mode(0o755)),
    ] {
        match mkdir(path, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).at("make the writable directories"),
        }
    }
    Ok(())
}

/// Covers the layers and the writable directory by id-mapped clones of themselves, and returns the
/// clones.
fn cover_with_mapped(files: &Files, user_namespace: BorrowedFd<'_>) -> Result<Sources, Failure> {
    let paths = directories(files);
    // All are cloned before any is covered: a covered path resolves to the mapped mount, which
    // cannot be mapped again.
    let trees = paths
        .map(|path| {
            let tree = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
                .at(&format!("clone the mount of {}", path.display()))?;
            map_ids(tree.as_fd(), user_namespace).at(&format!("map the ids of {}", path.display()))?;
            Ok((path.clone(), tree))
        })
        .collect::<Result<Sources, Failure>>()?;
    for (path, tree) in &trees {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        move_mount(tree, "", CWD, path, flags).at(&format!("cover {}", path.display()))?;
    }
    Ok(trees)
}

fn mount(plan: &Plan, on_disk: OnDisk) -> Result<OwnedFd, Failure> {
    let mounted = match mount_by_context(plan, on_disk) {
        // Kernels before 6.5 lack `lowerdir+`.
        Err(Errno::INVAL) => mount_by_string(plan, on_disk),
        other => other,
    };
    let mount = mounted.at(&format!("mount the overlay for {}", plan.at.display()))?;
    let flags = fstatvfs(&mount).at("look at the new overlay")?.f_flag;
    if plan.writable.is_some() && flags.contains(StatVfsMountFlags::RDONLY) {
        let step = format!("write to the overlay for {}", plan.at.display());
        return Err(io::Error::from_raw_os_error(libc::EROFS)).at(&step);
    }
    Ok(mount)
}

/// Options of every writable overlay and screen of a root server. `redirect_dir` makes renames of a
/// layer's directories work (EXDEV otherwise); the others override the kernel's defaults, so that
/// several overlays can share a layer and an upper can become a layer.
const OPTIONS: &[(&str, &str)] = &[("redirect_dir", "on"), ("index", "off"), ("metacopy", "off")];
/// Options where the mounter is root of a user namespace only: the overlay stores its metadata in
/// attributes that every user may write, and so must not use redirects.
const OPTIONS_OF_USER: &[(&str, &str)] = &[("userxattr", "")];

fn options(on_disk: OnDisk) -> &'static [(&'static str, &'static str)] {
    match on_disk {
        OnDisk::ZeroBased => OPTIONS,
        OnDisk::OfSandbox => OPTIONS_OF_USER,
    }
}

fn mount_by_context(plan: &Plan, on_disk: OnDisk) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "overlay")?;
    for lower in &plan.lowers {
        fsconfig_set_string(&context, "lowerdir+", lower)?;
    }
    if let Some(Writable { upper, work }) = &plan.writable {
        fsconfig_set_string(&context, "upperdir", upper)?;
        fsconfig_set_string(&context, "workdir", work)?;
    }
    for (key, value) in options(on_disk) {
        match *value {
            "" => fsconfig_set_flag(&context, *key)?,
            value => fsconfig_set_string(&context, *key, value)?,
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// Passes all options as one string, which has room for some hundred layers. Mounts over the plan's
/// directory in this namespace, because this call cannot create a detached mount, and clones that.
fn mount_by_string(plan: &Plan, on_disk: OnDisk) -> rustix::io::Result<OwnedFd> {
    let mut options = format!("lowerdir={}", plan.lowers.join(":"));
    if let Some(Writable { upper, work }) = &plan.writable {
        options += &format!(",upperdir={upper},workdir={work}");
    }
    for (key, value) in self::options(on_disk) {
        options += &if value.is_empty() { format!(",{key}") } else { format!(",{key}={value}") };
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount("overlay", &plan.place, "overlay", MountFlags::NODEV, options.as_c_str())?;
    open_tree(CWD, &plan.place, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, Stdio};

    use rustix::fs::openat;

    use super::*;
    use crate::sys::namespace::unshare_mounts;

    const BASE: u32 = 0x6fff_0000;

    /// Mounts an overlay of two layers in a thread with its own mount namespace, and returns the
    /// files' content and their owner.
    fn with_layers(mount: fn(&Plan, OnDisk) -> rustix::io::Result<OwnedFd>) -> (String, u32) {
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
                of_host: false,
            }],
            volumes: Vec::new(),
        };
        let (mut holder, user_namespace) = hold_namespace();
        let seen = std::thread::spawn(move || {
            unshare_mounts().unwrap();
            make_writable_directories(&files, &files.overlays[0]).unwrap();
            let sources = cover_with_mapped(&files, user_namespace.as_fd()).unwrap();
            let plan = &plan(&files, &sources, &Screens::new())[0];
            let overlay = as_mapped_root(BASE, || mount(plan, OnDisk::ZeroBased).at("mount"));
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

    /// Starts a process that holds a user namespace with the ids from `BASE` on; it ends when its
    /// standard input closes.
    fn hold_namespace() -> (Child, fs::File) {
        let mut holder =
            Command::new("unshare").args(["-U", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = holder.stdin.as_mut().unwrap();
        pipe.write_all(b"x").unwrap();
        io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", holder.id()), format!("0 {BASE} 65536")).unwrap();
        }
        let user_namespace = fs::File::open(format!("/proc/{}/ns/user", holder.id())).unwrap();
        (holder, user_namespace)
    }

    #[test]
    fn a_screen_shows_what_every_user_may_read() {
        testing::needs_root!("mounts show other ids than the disk has");
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for (directory, mode) in [("layer", 0o755), ("host", 0o755), ("host/closed", 0o700), ("writable", 0o755)] {
            fs::create_dir(path(directory)).unwrap();
            fs::set_permissions(path(directory), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (file, mode) in
            [("open", 0o644), ("owner", 0o600), ("group", 0o640), ("closed/inner", 0o644), ("later", 0o644)]
        {
            fs::write(path("host").join(file), file).unwrap();
            fs::set_permissions(path("host").join(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        let files = Files {
            id_base: BASE,
            on_disk: OnDisk::ZeroBased,
            writable: path("writable"),
            overlays: vec![Overlay {
                at: "/usr".into(),
                lowers: vec![path("layer"), path("host")],
                directory: "at-usr".into(),
                of_host: true,
            }],
            volumes: Vec::new(),
        };
        let (mut holder, user_namespace) = hold_namespace();
        let later = fs::File::open(path("host/later")).unwrap();
        let seen = std::thread::spawn(move || {
            unshare_mounts().unwrap();
            let mounts = build(&files, user_namespace.as_fd()).unwrap();
            later.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
            let open =
                |name: &str, flags| openat(&mounts[0], name, flags, Mode::from_raw_mode(0o600)).map(fs::File::from);
            as_mapped_root(BASE, || {
                let read = |name: &str| match open(name, OFlags::RDONLY) {
                    Ok(file) => io::read_to_string(file).unwrap(),
                    Err(error) => format!("{error:?}"),
                };
                let appended = open("owner", OFlags::WRONLY | OFlags::APPEND).map(drop);
                open("own", OFlags::WRONLY | OFlags::CREATE).unwrap().write_all(b"own").unwrap();
                let seen = ["open", "owner", "group", "closed/inner", "later", "own"].map(read);
                Ok((seen, appended))
            })
            .unwrap()
        });
        let (seen, appended) = seen.join().unwrap();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        let denied = || format!("{:?}", Errno::ACCESS);
        assert_eq!(seen, ["open".to_owned(), denied(), denied(), denied(), denied(), "own".to_owned()]);
        assert_eq!(appended, Err(Errno::ACCESS));
    }

    #[test]
    fn both_ways_of_mounting_give_the_same_tree() {
        testing::needs_root!("mounts show other ids than the disk has");
        let expected = ("new old".to_owned(), BASE);
        assert_eq!(with_layers(mount_by_context), expected);
        assert_eq!(with_layers(mount_by_string), expected);
    }
}
