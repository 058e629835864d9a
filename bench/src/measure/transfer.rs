//! Files up and down, against a plain HTTP server that copies to a file.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{Plan, Row, Target};
use crate::baseline::{CopyServer, rate};
use crate::http::Connection;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::Samples;

const MIB: usize = 1024 * 1024;
const BOUNDARY: &str = "sandbar-bench-boundary";

pub(crate) fn transfer(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let (directory, place) = server.pool_directory();
    let copy = CopyServer::start(&directory)?;
    let mut plain = Connection::open(copy.address)?;
    let mut sandbox = Sandbox::create(server, server.connect()?)?;
    let block: Vec<u8> = (0..MIB).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let size = plan.transfer_mib * MIB;

    let mut samples: [Samples; 5] = Default::default();
    let [plain_up, octets_up, form_up, plain_down, down] = &mut samples;
    for round in 0..=plan.transfer_rounds {
        let taken = [
            upload(&mut plain, "/", &[], size, &block, Form::Octets)?,
            {
                let (headers, connection) = sandbox.files();
                upload(connection, "/files?path=bench.bin", &headers, size, &block, Form::Octets)?
            },
            {
                let (headers, connection) = sandbox.files();
                upload(connection, "/files?path=bench.bin", &headers, size, &block, Form::Multipart)?
            },
            download(&mut plain, "/", &[], size)?,
            {
                let (headers, connection) = sandbox.files();
                download(connection, "/files?path=bench.bin", &headers, size)?
            },
        ];
        // The first round creates both files; the others overwrite them, as the target requires a
        // copy into a file.
        if round > 0 {
            for (samples, time) in [&mut *plain_up, octets_up, form_up, plain_down, down].into_iter().zip(taken) {
                samples.push(time);
            }
        }
    }
    sandbox.run_command("rm bench.bin; echo removed").context("removing the uploaded file")?;
    sandbox.kill()?;

    let row = |name, samples: &Samples, baseline: &Samples, what: &str| {
        let (ours, theirs) = (rate(size as u64, samples.p50()), rate(size as u64, baseline.p50()));
        Row {
            name,
            figure: format!("{ours:.0} MiB/s"),
            baseline: format!("{theirs:.0} MiB/s"),
            value: 100.0 * ours / theirs,
            unit: "%",
            target: Some(Target::AtLeast { limit: 50.0, sane: 5.0 }),
            method: format!(
                "{what}, {} MiB, {} rounds, alternately with the same bytes copied by a plain hyper server on the loopback \
                 into a file on {place}, without overlay or quota. Median rates; no fsync on either side.",
                plan.transfer_mib,
                samples.len()
            ),
        }
    };
    Ok(vec![
        row("upload, octet-stream", octets_up, plain_up, "`POST /files` with `application/octet-stream`"),
        row("upload, multipart", form_up, plain_up, "`POST /files` with `multipart/form-data`"),
        row("download", down, plain_down, "`GET /files`"),
    ])
}

#[derive(Clone, Copy)]
enum Form {
    Octets,
    Multipart,
}

fn upload(
    connection: &mut Connection,
    path: &str,
    headers: &[(&str, &str)],
    size: usize,
    block: &[u8],
    form: Form,
) -> anyhow::Result<Duration> {
    let (head, tail, kind) = match form {
        Form::Octets => (String::new(), String::new(), "application/octet-stream".to_owned()),
        Form::Multipart => (
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"bench.bin\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            ),
            format!("\r\n--{BOUNDARY}--\r\n"),
            format!("multipart/form-data; boundary={BOUNDARY}"),
        ),
    };
    let mut headers = headers.to_vec();
    headers.push(("Content-Type", &kind));
    let started = Instant::now();
    let length = (head.len() + size + tail.len()) as u64;
    connection.begin("POST", path, &headers, length, head.as_bytes())?;
    for _ in 0..size / block.len() {
        connection.more(block)?;
    }
    connection.more(tail.as_bytes())?;
    connection.answer()?.expect(200).context("upload")?;
    Ok(started.elapsed())
}

fn download(
    connection: &mut Connection,
    path: &str,
    headers: &[(&str, &str)],
    size: usize,
) -> anyhow::Result<Duration> {
    let mut buffer = vec![0; MIB];
    let started = Instant::now();
    let mut response = connection.send("GET", path, headers, b"")?;
    ensure!(response.status == 200, "download answered {}", response.status);
    let mut total = 0;
    loop {
        match response.read(&mut buffer)? {
            0 => break,
            count => total += count,
        }
    }
    ensure!(total == size, "download gave {total} of {size} bytes");
    Ok(started.elapsed())
}
