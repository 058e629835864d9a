//! The unpacker: one request, one answer.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::process::exit;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::archive::read_contents;
use crate::error::ImageError;
use crate::layer::apply;
use crate::request::{Answer, Completed, Failure, Layer, Request};
use crate::tree::{Limits, Owners, Tree};

/// It exits with this when its memory is used up, and with the next when a check of its own failed.
pub const EXHAUSTED: i32 = 100;
pub const PANICKED: i32 = 101;

/// Serves one request of [`launcher::confined::call`].
pub fn main() -> ! {
    // An abort, which follows a panic here, would be ignored: see `sys`.
    std::panic::set_hook(Box::new(|_| exit(PANICKED)));
    // It is run by the number of a descriptor, which would be its name.
    let _ = rustix::thread::set_name(c"sandbar-unpack");
    launcher::confined::run(|request, files, mut answer: File| {
        let done: Answer = serve(request, files).map_err(Failure::from);
        // The server has gone, or gets half an answer, which it notices.
        let _ = serde_json::to_vec(&done).map(|bytes| answer.write_all(&bytes));
    })
}

fn serve(request: Request, files: Vec<OwnedFd>) -> Result<Completed, ImageError> {
    let mut files = files.into_iter().map(File::from).map(Some).collect::<Vec<_>>();
    match request {
        Request::Contents => read_contents(take(&mut files, 0)?).map(Completed::Contents),
        Request::Unpack { layers, owners, limits } => unpack(&layers, files, owners, limits),
    }
}

fn take(files: &mut [Option<File>], number: usize) -> Result<File, ImageError> {
    let missing = || ImageError::Malformed("a file of the request is missing".to_owned());
    files.get_mut(number).and_then(Option::take).ok_or_else(missing)
}

/// Unpacks into this process's root.
fn unpack(
    layers: &[Layer],
    mut files: Vec<Option<File>>,
    owners: Owners,
    limits: Limits,
) -> Result<Completed, ImageError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, "/", flags, Mode::empty()).map_err(std::io::Error::from);
    let mut tree = Tree::new(root.map_err(ImageError::io("open the tree"))?, owners, limits);
    for (number, layer) in layers.iter().enumerate() {
        let name = match layer.diff_id {
            Some(_) => format!("layer {} of {}", number + 1, layers.len()),
            None => "the archive".to_owned(),
        };
        let mut file = take(&mut files, layer.file)?;
        match layer.place {
            // Closed here, so that the room of a layer whose name is gone is free again.
            None => apply(file, &name, layer.diff_id.as_deref(), &mut tree)?,
            Some(place) => {
                file.seek(SeekFrom::Start(place.at)).map_err(ImageError::io(format!("find {name}")))?;
                apply((&file).take(place.size), &name, layer.diff_id.as_deref(), &mut tree)?;
                files[layer.file] = Some(file);
            }
        }
    }
    Ok(Completed::Unpacked(tree.done()))
}
