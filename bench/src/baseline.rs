//! Baselines without Sandbar: processes started directly, and a plain HTTP server that copies to a
//! file.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;

use crate::sandbox::{COMMAND, Run, Sandbox};

/// The user of commands in a sandbox.
const SANDBOX_USER: u32 = 1000;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const BLOCK: usize = 256 * 1024;

const PROFILE: &str = "/etc/profile";

/// A login shell outside that reads the same files as in the sandbox: the user's files from a
/// separate home directory, and the sandbox's `/etc/profile` bound over the host's. Debian's starts
/// `id` for every shell, which doubles the baseline.
pub(crate) struct Shell {
    home: TempDir,
}

impl Shell {
    pub(crate) fn like(sandbox: &mut Sandbox<'_>) -> anyhow::Result<Self> {
        let home = TempDir::with_prefix("sandbar-bench-home-")?;
        std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for name in [".bash_profile", ".bash_login", ".profile", ".bashrc"] {
            if let Some(content) = sandbox.read_file(name)? {
                std::fs::write(home.path().join(name), content)?;
            }
        }
        let inside = sandbox.read_file(PROFILE)?.context("the sandbox has no /etc/profile")?;
        let copy = home.path().join("profile");
        std::fs::write(&copy, &inside)?;
        let bound = Command::new("mount").arg("--bind").arg(&copy).arg(PROFILE).status().context("cannot run mount")?;
        let shell = Self { home };
        ensure!(bound.success() && std::fs::read_to_string(PROFILE)? == inside, "cannot bind the sandbox's {PROFILE}");
        Ok(shell)
    }

    /// Starts the same login shell directly, as the same user with the same variables.
    pub(crate) fn spawn(&self) -> anyhow::Result<Run> {
        let mut command = Command::new("/bin/bash");
        command.args(["-l", "-c", COMMAND]).uid(SANDBOX_USER).gid(SANDBOX_USER);
        self.time(command)
    }

    /// Starts the same login shell in new namespaces, by `unshare`, as root.
    pub(crate) fn unshare(&self) -> anyhow::Result<Run> {
        let mut command = Command::new("unshare");
        command.args(["-mpfiun", "/bin/bash", "-l", "-c", COMMAND]);
        self.time(command)
    }

    fn time(&self, mut command: Command) -> anyhow::Result<Run> {
        let home = self.home.path();
        command.env_clear().envs([("PATH", PATH), ("USER", "user"), ("LOGNAME", "user"), ("E2B_SANDBOX", "true")]);
        command.env("HOME", home).current_dir(home);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = Instant::now();
        let mut child = command.spawn().context("cannot start the baseline command")?;
        let mut output = child.stdout.take().context("the baseline command has no output")?;
        let mut text = [0; 64];
        let count = output.read(&mut text)?;
        let first_output = started.elapsed();
        output.read_to_end(&mut Vec::new())?;
        let status = child.wait()?;
        let end = started.elapsed();
        ensure!(status.success() && &text[..count] == b"hi\n", "the baseline command failed: {status}");
        Ok(Run { first_output, end })
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // A mount that stays is visible to this program only, which ends soon.
        let _ = Command::new("umount").arg(PROFILE).stderr(Stdio::null()).status();
    }
}

/// A server on the loopback that only writes a request's body to a file and reads it back.
pub(crate) struct CopyServer {
    pub(crate) address: SocketAddr,
    file: PathBuf,
    // Dropping the runtime ends the server's tasks.
    _runtime: tokio::runtime::Runtime,
}

impl CopyServer {
    pub(crate) fn start(directory: &Path) -> anyhow::Result<Self> {
        let file = directory.join("sandbar-bench-plain-copy");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(listener, file.clone()));
        Ok(Self { address, file, _runtime: runtime })
    }
}

impl Drop for CopyServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

async fn serve(listener: tokio::net::TcpListener, file: PathBuf) {
    while let Ok((stream, _)) = listener.accept().await {
        let file = file.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| copy(request, file.clone()));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

async fn copy(request: Request<Incoming>, file: PathBuf) -> Result<Response<Body>, Infallible> {
    let done = match *request.method() {
        Method::POST => receive(request.into_body(), &file).await,
        _ => send(&file),
    };
    Ok(done.unwrap_or_else(|error| {
        let mut response = Response::new(Full::new(Bytes::from(error.to_string())).map_err(|e| match e {}).boxed());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    }))
}

/// Writes on the server's own thread: the fastest way for a plain server, so a strict baseline.
async fn receive(mut body: Incoming, path: &Path) -> std::io::Result<Response<Body>> {
    let mut file = File::create(path)?;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(std::io::Error::other)?.into_data() {
            file.write_all(&data)?;
        }
    }
    Ok(Response::new(Full::new(Bytes::from_static(b"ok")).map_err(|e| match e {}).boxed()))
}

fn send(path: &Path) -> std::io::Result<Response<Body>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let blocks = futures::stream::unfold(file, |mut file| async move {
        let mut block = vec![0; BLOCK];
        match file.read(&mut block) {
            Ok(0) => None,
            Ok(count) => {
                block.truncate(count);
                Some((Ok(Frame::data(Bytes::from(block))), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    let body = BodyExt::boxed(StreamBody::new(blocks));
    let mut response = Response::new(body);
    response.headers_mut().insert(hyper::header::CONTENT_LENGTH, length.into());
    Ok(response)
}

/// A rate in MiB per second.
pub(crate) fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / (1024.0 * 1024.0) / time.as_secs_f64()
}
