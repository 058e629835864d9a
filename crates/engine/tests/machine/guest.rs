//! A minimal guest: process 1 that runs one shell command per connection.
//!
//! A request is the command, ended by the client's half-close; the answer is its output, then `\0`
//! and its exit code.

use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

pub(crate) fn main() -> ! {
    std::fs::write("/run/descriptors", descriptors()).unwrap();
    #[expect(unsafe_code, reason = "inherited descriptors have a number and no owner")]
    // SAFETY: the engine promises a listener on 3, and nothing else in this process has touched it.
    let listener = unsafe { UnixListener::from_raw_fd(3) };
    loop {
        if let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || serve(stream));
        }
    }
}

/// The open descriptors, without the directory that lists them.
fn descriptors() -> String {
    let mut all: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let target = std::fs::read_link(entry.path()).unwrap();
            let target = target.to_str().unwrap();
            // The number of a socket is arbitrary.
            let target = if target.starts_with("socket:") { "socket" } else { target };
            format!("{} {target}\n", entry.file_name().to_str().unwrap())
        })
        .filter(|line| !line.contains("/proc/"))
        .collect();
    all.sort();
    all.concat()
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
