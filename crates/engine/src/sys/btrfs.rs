//! The btrfs ioctls that the pool needs: subvolumes, quotas and the file system's id.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Inode number of the root directory of every subvolume, and the smallest number of a subvolume
/// that users made.
pub(crate) const FIRST_FREE_OBJECT: u64 = 256;

const MAGIC: libc::c_ulong = 0x94;
const READ: libc::c_ulong = 2;
const WRITE: libc::c_ulong = 1;

/// The kernel's `_IOC`: direction, size of the argument, type, number.
const fn request<T>(direction: libc::c_ulong, number: libc::c_ulong) -> libc::c_ulong {
    (direction << 30) | ((size_of::<T>() as libc::c_ulong) << 16) | (MAGIC << 8) | number
}

/// Marker for argument types: plain integers in the kernel's layout, of which any bit pattern is
/// valid.
///
/// # Safety
/// The type is `repr(C)`, without padding and pointers the kernel might follow past their target.
unsafe trait Argument {}

/// Runs one ioctl whose argument is a `T`, which the kernel reads and may change.
///
/// # Safety
/// `request` must be one whose argument the kernel knows as exactly this `T`.
unsafe fn call<T: Argument>(fd: impl AsFd, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: the caller pairs request and type, the borrow gives the kernel memory of that size,
    // and the descriptor is open.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[repr(C)]
struct FileSystemInfo {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    rest: [u64; 124],
}
// SAFETY: integers only, 1024 bytes without padding.
unsafe impl Argument for FileSystemInfo {}

/// The id of the file system that holds `fd`.
pub(crate) fn file_system_id(fd: impl AsFd) -> io::Result<[u8; 16]> {
    let mut info = FileSystemInfo { max_id: 0, num_devices: 0, fsid: [0; 16], rest: [0; 124] };
    // SAFETY: BTRFS_IOC_FS_INFO takes the 1024 bytes of btrfs_ioctl_fs_info_args, which this type
    // is.
    unsafe { call(fd, request::<FileSystemInfo>(READ, 31), &mut info) }?;
    Ok(info.fsid)
}

/// The kernel's directory about the file system `id`; exists while it is mounted anywhere.
pub(crate) fn state_directory(id: [u8; 16]) -> PathBuf {
    let hex = hex::encode(id);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Path::new("/sys/fs/btrfs").join(parts.join("-"))
}

/// How a file system counts what its subvolumes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaMode {
    /// Charges the subvolume that allocated; cheap, kernel 6.7.
    Simple,
    /// Counts shared and exclusive bytes exactly, at a cost for every snapshot.
    Full,
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}
// SAFETY: two integers.
unsafe impl Argument for QuotaControl {}

/// Enables quotas; no effect when they are enabled already.
pub(crate) fn enable_quota(fd: impl AsFd, mode: QuotaMode) -> io::Result<()> {
    let command = match mode {
        QuotaMode::Full => 1,
        QuotaMode::Simple => 4,
    };
    let mut control = QuotaControl { command, status: 0 };
    // SAFETY: BTRFS_IOC_QUOTA_CTL takes btrfs_ioctl_quota_ctl_args, two 64-bit integers.
    unsafe { call(fd, request::<QuotaControl>(READ | WRITE, 40), &mut control) }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Limit {
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

impl Limit {
    /// `u64::MAX` removes a limit, as the kernel defines it.
    fn for_referenced(bytes: u64) -> Self {
        Self { flags: 1, max_referenced: bytes, max_exclusive: 0, reserved_referenced: 0, reserved_exclusive: 0 }
    }
}

#[repr(C)]
struct GroupLimit {
    group: u64,
    limit: Limit,
}
// SAFETY: six integers.
unsafe impl Argument for GroupLimit {}

/// Limits what quota group `group` may reference; the group of a subvolume has the subvolume's
/// number.
pub(crate) fn limit_group(fd: impl AsFd, group: u64, bytes: u64) -> io::Result<()> {
    let mut argument = GroupLimit { group, limit: Limit::for_referenced(bytes) };
    // SAFETY: BTRFS_IOC_QGROUP_LIMIT takes btrfs_ioctl_qgroup_limit_args, six 64-bit integers.
    unsafe { call(fd, request::<GroupLimit>(READ, 43), &mut argument) }
}

#[repr(C)]
struct GroupCreate {
    create: u64,
    group: u64,
}
// SAFETY: two integers.
unsafe impl Argument for GroupCreate {}

/// Creates quota group `group`; EEXIST when it exists.
pub(crate) fn create_group(fd: impl AsFd, group: u64) -> io::Result<()> {
    let mut argument = GroupCreate { create: 1, group };
    // SAFETY: BTRFS_IOC_QGROUP_CREATE takes btrfs_ioctl_qgroup_create_args, two 64-bit integers.
    unsafe { call(fd, request::<GroupCreate>(WRITE, 42), &mut argument) }
}

/// Removes quota group `group`; EBUSY while something is still charged to it.
pub(crate) fn remove_group(fd: impl AsFd, group: u64) -> io::Result<()> {
    let mut argument = GroupCreate { create: 0, group };
    // SAFETY: as in `create_group`.
    unsafe { call(fd, request::<GroupCreate>(WRITE, 42), &mut argument) }
}

#[repr(C)]
struct GroupAssign {
    assign: u64,
    member: u64,
    parent: u64,
}
// SAFETY: three integers.
unsafe impl Argument for GroupAssign {}

/// Makes quota group `member` count in the group `parent`, which is of a higher level; EEXIST when
/// it does already.
pub(crate) fn assign_group(fd: impl AsFd, member: u64, parent: u64) -> io::Result<()> {
    let mut argument = GroupAssign { assign: 1, member, parent };
    // SAFETY: BTRFS_IOC_QGROUP_ASSIGN takes btrfs_ioctl_qgroup_assign_args, three 64-bit integers.
    unsafe { call(fd, request::<GroupAssign>(WRITE, 41), &mut argument) }
}

/// Initial quota settings of a new subvolume: a limit and one parent group.
#[repr(C)]
struct Inherit {
    flags: u64,
    groups: u64,
    referenced_copies: u64,
    exclusive_copies: u64,
    limit: Limit,
    parent: u64,
}

#[repr(C)]
struct VolumeArguments {
    fd: i64,
    transaction: u64,
    flags: u64,
    inherit_size: u64,
    /// Zero, or the address of an [`Inherit`].
    inherit: u64,
    unused: [u64; 2],
    name: [u8; 4040],
}
// SAFETY: integers only, 4096 bytes without padding; `inherit` is set only by `make`, which keeps
// it valid.
unsafe impl Argument for VolumeArguments {}

impl VolumeArguments {
    fn with_name(name: &[u8]) -> io::Result<Self> {
        let mut arguments =
            Self { fd: 0, transaction: 0, flags: 0, inherit_size: 0, inherit: 0, unused: [0; 2], name: [0; 4040] };
        if name.len() > 255 || name.iter().any(|byte| matches!(byte, b'/' | b'\0')) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        arguments.name[..name.len()].copy_from_slice(name);
        Ok(arguments)
    }
}

/// A limit for a new subvolume, and the quota group that adds up all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge {
    pub(crate) limit: u64,
    pub(crate) parent: Option<u64>,
}

/// Creates an empty subvolume `name` in the directory `parent`, limited from its first byte on.
pub(crate) fn create_subvolume(parent: impl AsFd, name: &str, charge: Option<Charge>) -> io::Result<()> {
    // SAFETY: BTRFS_IOC_SUBVOL_CREATE_V2 takes the 4096 bytes of btrfs_ioctl_vol_args_v2, which
    // need no descriptor.
    unsafe { make(parent, request::<VolumeArguments>(WRITE, 24), VolumeArguments::with_name(name.as_bytes())?, charge) }
}

/// Creates the subvolume `name` in the directory `parent` as a copy of the subvolume `source`. The
/// kernel writes dirty data of `source` out first, which may take long.
pub(crate) fn snapshot_subvolume(
    parent: impl AsFd,
    source: impl AsFd,
    name: &str,
    charge: Option<Charge>,
) -> io::Result<()> {
    let arguments =
        VolumeArguments { fd: source.as_fd().as_raw_fd().into(), ..VolumeArguments::with_name(name.as_bytes())? };
    // SAFETY: BTRFS_IOC_SNAP_CREATE_V2 takes the 4096 bytes of btrfs_ioctl_vol_args_v2; the borrow
    // keeps `source` open.
    unsafe { make(parent, request::<VolumeArguments>(WRITE, 23), arguments, charge) }
}

/// Creates a subvolume with the quota settings of `charge`.
///
/// # Safety
/// `request` must be one of the two that create subvolumes, and the descriptor among `arguments`
/// one that it may have.
unsafe fn make(
    parent: impl AsFd,
    request: libc::c_ulong,
    mut arguments: VolumeArguments,
    charge: Option<Charge>,
) -> io::Result<()> {
    const INHERIT: u64 = 1 << 2;
    const SET_LIMITS: u64 = 1;
    let inherit = charge.map(|charge| Inherit {
        flags: SET_LIMITS,
        groups: u64::from(charge.parent.is_some()),
        referenced_copies: 0,
        exclusive_copies: 0,
        limit: Limit::for_referenced(charge.limit),
        parent: charge.parent.unwrap_or(0),
    });
    if let Some(inherit) = &inherit {
        arguments.flags = INHERIT;
        // Without a parent the list at the end is empty, and the kernel requires the size to match.
        arguments.inherit_size = size_of::<Inherit>() as u64 - if inherit.groups == 0 { 8 } else { 0 };
        arguments.inherit = std::ptr::from_ref(inherit) as u64;
    }
    // SAFETY: the caller pairs request and arguments. `inherit` lives until after the call, and the
    // kernel reads no more of it than the size beside the address says.
    unsafe { call(parent, request, &mut arguments) }
}

/// Deletes the subvolume `name` in the directory `parent`. Its entry is removed at once; its space
/// is freed in the background. ENOTEMPTY while subvolumes are nested in it.
pub(crate) fn destroy_subvolume(parent: impl AsFd, name: impl AsRef<[u8]>) -> io::Result<()> {
    let mut arguments = VolumeArguments::with_name(name.as_ref())?;
    // SAFETY: BTRFS_IOC_SNAP_DESTROY_V2 takes the 4096 bytes of btrfs_ioctl_vol_args_v2.
    unsafe { call(parent, request::<VolumeArguments>(WRITE, 63), &mut arguments) }
}

#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}
// SAFETY: integers only, 4096 bytes without padding.
unsafe impl Argument for InodeLookup {}

/// The number of the subvolume that holds `fd`.
pub(crate) fn subvolume_id(fd: impl AsFd) -> io::Result<u64> {
    let mut lookup = InodeLookup { tree: 0, object: FIRST_FREE_OBJECT, name: [0; 4080] };
    // SAFETY: BTRFS_IOC_INO_LOOKUP takes the 4096 bytes of btrfs_ioctl_ino_lookup_args.
    unsafe { call(fd, request::<InodeLookup>(READ | WRITE, 18), &mut lookup) }?;
    Ok(lookup.tree)
}

/// The flags of a subvolume: one bit marks it as read-only.
struct SubvolumeFlags(#[expect(dead_code, reason = "the kernel reads it")] u64);
// SAFETY: one integer.
unsafe impl Argument for SubvolumeFlags {}

/// Makes a read-only subvolume, whose root directory `fd` is, writable again.
pub(crate) fn make_writable(fd: impl AsFd) -> io::Result<()> {
    let mut none = SubvolumeFlags(0);
    // SAFETY: BTRFS_IOC_SUBVOL_SETFLAGS takes one 64-bit integer.
    unsafe { call(fd, request::<SubvolumeFlags>(WRITE, 26), &mut none) }
}

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    /// The inode's number and its subvolume's, each low half first, then the generation.
    inode: [u32; 2],
    tree: [u32; 2],
    generation: u32,
}

/// Opens the directory with the inode number `directory` in subvolume `tree` of the file system
/// that holds `fd`. Uses no path, so that none is too long.
pub(crate) fn open_directory(fd: impl AsFd, tree: u64, directory: u64) -> io::Result<OwnedFd> {
    /// The kernel's FILEID_BTRFS_WITHOUT_PARENT.
    const WITHOUT_PARENT: i32 = 0x4d;
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    // Generation 0 matches any.
    let (inode, tree) = (halves(directory), halves(tree));
    let mut handle = FileHandle { bytes: 20, kind: WITHOUT_PARENT, inode, tree, generation: 0 };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the handle says how many bytes follow its head, and has them; the borrow keeps the
    // descriptor open.
    let opened =
        unsafe { libc::open_by_handle_at(fd.as_fd().as_raw_fd(), std::ptr::from_mut(&mut handle).cast(), flags) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to this process, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Writes everything out and wakes the cleaner, which frees the space of deleted subvolumes;
/// `syncfs` does not.
pub(crate) fn sync(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: BTRFS_IOC_SYNC takes no argument, and the descriptor is open.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), ((MAGIC << 8) | 8) as _) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[repr(C)]
struct TreeSearch {
    tree: u64,
    first_object: u64,
    last_object: u64,
    first_offset: u64,
    last_offset: u64,
    first_transaction: u64,
    last_transaction: u64,
    first_type: u32,
    last_type: u32,
    items: u32,
    unused: u32,
    unused_more: [u64; 4],
    found: [u8; 3992],
}
// SAFETY: integers only, 4096 bytes without padding.
unsafe impl Argument for TreeSearch {}

/// A range of the disk that btrfs has allocated for one kind of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BtrfsChunk {
    pub(crate) holds_metadata: bool,
    /// In the file system's own address space, in bytes.
    pub(crate) logical: u64,
    /// On the disk, in bytes.
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// Calls `take` with every item of one object and type in `tree`, in order: the offset of its key,
/// and its content.
fn search(
    fd: impl AsFd,
    tree: u64,
    object: u64,
    kind: u32,
    mut take: impl FnMut(u64, &[u8]) -> Option<()>,
) -> io::Result<()> {
    let mut next = Some(0);
    while let Some(first_offset) = next {
        let mut search = TreeSearch {
            tree,
            first_object: object,
            last_object: object,
            first_offset,
            last_offset: u64::MAX,
            first_transaction: 0,
            last_transaction: u64::MAX,
            first_type: kind,
            last_type: kind,
            items: u32::MAX,
            unused: 0,
            unused_more: [0; 4],
            found: [0; 3992],
        };
        // SAFETY: BTRFS_IOC_TREE_SEARCH takes the 4096 bytes of btrfs_ioctl_search_args, which this
        // type is.
        unsafe { call(&fd, request::<TreeSearch>(READ | WRITE, 17), &mut search) }?;
        next = None;
        let mut rest = &search.found[..];
        for _ in 0..search.items {
            let (offset, content, after) = split_item(rest).ok_or(io::ErrorKind::InvalidData)?;
            take(offset, content).ok_or(io::ErrorKind::InvalidData)?;
            next = offset.checked_add(1);
            rest = after;
        }
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// Splits off the first item of a search's result: the offset of its key, its content, and the
/// rest.
fn split_item(found: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    const HEADER: usize = 32;
    let length = u32::from_le_bytes(found.get(28..HEADER)?.try_into().expect("4 bytes")) as usize;
    let (content, after) = found.get(HEADER..)?.split_at_checked(length)?;
    Some((word(found, 16)?, content, after))
}

/// The chunks of a file system with one disk and one copy of everything, as the pool's image has.
pub(crate) fn chunks(fd: impl AsFd) -> io::Result<Vec<BtrfsChunk>> {
    const CHUNK_TREE: u64 = 3;
    const CHUNK_ITEM: u32 = 228;
    let mut chunks = Vec::new();
    search(fd, CHUNK_TREE, FIRST_FREE_OBJECT, CHUNK_ITEM, |logical, content| {
        chunks.push(parse_chunk(logical, content)?);
        Some(())
    })?;
    Ok(chunks)
}

fn parse_chunk(logical: u64, content: &[u8]) -> Option<BtrfsChunk> {
    /// Bits of a chunk's type.
    const DATA: u64 = 1;
    // struct btrfs_chunk: length, owner, stripe_len, type, 16 bytes of geometry; then the stripes:
    // devid, offset.
    let (length, kind, start) = (word(content, 0)?, word(content, 24)?, word(content, 56)?);
    Some(BtrfsChunk { holds_metadata: kind & DATA == 0, logical, start, length })
}

/// A subvolume directly below another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nested {
    pub(crate) id: u64,
    /// The subvolume that contains it, and the inode number of the directory there.
    pub(crate) parent: u64,
    pub(crate) directory: u64,
    pub(crate) name: Vec<u8>,
}

/// The subvolumes directly below the subvolume `parent` of the file system that holds `fd`.
pub(crate) fn nested_in(fd: impl AsFd, parent: u64) -> io::Result<Vec<Nested>> {
    const ROOT_TREE: u64 = 1;
    const ROOT_REFERENCE: u32 = 156;
    let mut found = Vec::new();
    search(fd, ROOT_TREE, parent, ROOT_REFERENCE, |id, content| {
        // struct btrfs_root_ref: directory, sequence, length of the name; then the name.
        let name = content.get(18..)?.to_owned();
        found.push(Nested { id, parent, directory: word(content, 0)?, name });
        Some(())
    })?;
    Ok(found)
}

#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    smallest: u64,
}
// SAFETY: three integers.
unsafe impl Argument for TrimRange {}

/// Discards the space that is free now in a range of the file system's own addresses, and the space
/// of the disk that no chunk has, without waiting for the file system to do so by itself.
pub(crate) fn trim(fd: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    const FITRIM: libc::c_ulong = 0xC018_5879;
    let mut range = TrimRange { start, length, smallest: 0 };
    // SAFETY: FITRIM takes fstrim_range, three 64-bit integers.
    unsafe { call(fd, FITRIM, &mut range) }
}

/// `struct btrfs_ioctl_balance_args` without filters: flags, and what the kernel reports.
#[repr(C)]
struct BalanceArguments {
    flags: u64,
    rest: [u64; 127],
}
// SAFETY: integers only, 1024 bytes without padding.
unsafe impl Argument for BalanceArguments {}

/// Moves all metadata to new chunks. The kernel chooses their size: 256 MiB, or 1 GiB on a large
/// file system, where mkfs makes one of 8 MiB.
pub(crate) fn balance_metadata(fd: impl AsFd) -> io::Result<()> {
    const BALANCE: libc::c_ulong = 0xC400_9420;
    const METADATA: u64 = 1 << 2;
    let mut arguments = BalanceArguments { flags: METADATA, rest: [0; 127] };
    // SAFETY: BALANCE_V2 takes btrfs_ioctl_balance_args.
    unsafe { call(fd, BALANCE, &mut arguments) }
}

const _: () = {
    assert!(size_of::<FileSystemInfo>() == 1024);
    assert!(size_of::<BalanceArguments>() == 1024);
    assert!(size_of::<VolumeArguments>() == 4096);
    assert!(size_of::<InodeLookup>() == 4096);
    assert!(size_of::<TreeSearch>() == 4096);
    assert!(size_of::<Inherit>() == 80);
    assert!(size_of::<FileHandle>() == 28);
};
