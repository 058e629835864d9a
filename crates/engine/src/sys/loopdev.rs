//! Loop devices: a file as a block device.
//!
//! Every device is attached with "autoclear": it detaches itself when the last user (a mount, an
//! open descriptor) is gone, also when the process that attached it was killed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};

const SET_UP: libc::c_ulong = 0x4C0A;
const GET_STATUS: libc::c_ulong = 0x4C05;
const GET_FREE: libc::c_ulong = 0x4C82;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// Direct I/O needs the device's blocks to be multiples of the disk's; btrfs never writes less than
/// this.
const BLOCK: u32 = 4096;
/// Other processes attach devices too, and may take the free one first.
const ATTEMPTS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    device: u64,
    inode: u64,
    own_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 128],
    key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    status: Status,
    reserved: [u64; 8],
}

const BLANK: Status = Status {
    device: 0,
    inode: 0,
    own_device: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encryption: [0; 2],
    flags: 0,
    names: [0; 128],
    key: [0; 32],
    init: [0; 2],
};

const _: () = assert!(size_of::<Status>() == 232 && size_of::<Configuration>() == 304);

/// An attached device, held open: it stays attached at least as long as this lives.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The device to which `backing` is attached already, by whichever process and in whichever mount
/// namespace.
pub(crate) fn find(backing: &File) -> io::Result<Option<LoopDevice>> {
    let wanted = backing.metadata()?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Only attached devices have this directory, so the idle ones need not be opened.
        if !entry.path().join("loop").is_dir() {
            continue;
        }
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        // A device that vanishes after the listing counts as not found.
        let Ok((path, file)) = open(&name) else { continue };
        let Ok(status) = status(&file) else { continue };
        let same_device = major(status.device) == major(wanted.dev()) && minor(status.device) == minor(wanted.dev());
        if same_device && status.inode == wanted.ino() {
            return Ok(Some(LoopDevice { path, _open: file }));
        }
    }
    Ok(None)
}

/// Attaches `backing` to a free device, with direct I/O where its file system allows it.
pub(crate) fn attach(backing: &File) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let (path, device) = open(&format!("loop{}", free_number(&control)?))?;
        let attached = match configure(&device, backing, AUTOCLEAR | DIRECT_IO) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => configure(&device, backing, AUTOCLEAR),
            other => other,
        };
        match attached {
            Ok(()) => return Ok(LoopDevice { path, _open: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Opens device `name`, and creates its node where no device manager has.
fn open(name: &str) -> io::Result<(PathBuf, File)> {
    let path = Path::new("/dev").join(name);
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let numbers = fs::read_to_string(format!("/sys/block/{name}/dev"))?;
            let (major, minor) = numbers
                .trim()
                .split_once(':')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                .ok_or(io::ErrorKind::InvalidData)?;
            match mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(major, minor)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => open()?,
                Err(error) => return Err(error.into()),
            }
        }
        other => other?,
    };
    Ok((path, file))
}

fn free_number(control: &File) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument, and the borrow keeps the descriptor open.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE as _) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

fn status(device: &File) -> io::Result<Status> {
    let mut status = BLANK;
    // SAFETY: LOOP_GET_STATUS64 fills the 232 bytes of loop_info64, which `Status` is; any bits are
    // valid in it.
    match unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS as _, std::ptr::from_mut(&mut status)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(status),
    }
}

fn configure(device: &File, backing: &File, flags: u32) -> io::Result<()> {
    let fd = u32::try_from(backing.as_raw_fd()).expect("an open descriptor is not negative");
    let configuration = Configuration { fd, block_size: BLOCK, status: Status { flags, ..BLANK }, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads the 304 bytes of loop_config, which `Configuration` is; both
    // descriptors are borrowed.
    match unsafe { libc::ioctl(device.as_raw_fd(), SET_UP as _, std::ptr::from_ref(&configuration)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
