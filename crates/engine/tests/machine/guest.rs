//! The part of the guest, as small as it can be: process 1 that runs one shell command a connection.
//!
//! A request is the command, ended by the client's half-close; the answer is what it printed, then `\0` and its exit code.

use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

pub(crate) fn main() -> ! {
    #[expect(unsafe_code, reason = "inherited descriptors have a number and no owner")]
    // SAFETY: the engine promises a listener on 3, and nothing else in this process has touched it.
    let listener = unsafe { UnixListener::from_raw_fd(3) };
    loop {
        if let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || serve(stream));
        }
    }
}

fn serve(mut stream: UnixStream) -> Option<()> {
    let mut command = String::new();
    stream.read_to_string(&mut command).ok()?;
    let output = Command::new("/bin/bash")
        .arg("-c")
        .arg(format!("exec 2>&1\n{command}"))
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    stream.write_all(&output.stdout).ok()?;
    stream.write_all(format!("\0{}", output.status.code().unwrap_or(-1)).as_bytes()).ok()
}
