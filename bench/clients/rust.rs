//! Our own client at the same work as the official ones: `sandbar-bench-client TASK COUNT [FILE]`.
//! It prints one line of JSON.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use rustix::time::{ClockId, clock_gettime};
use sdk::{Client, Create, Sandbox};
use serde_json::json;
use tokio::fs::File;
use tokio_util::io::ReaderStream;

/// Limit of concurrent small files.
const WINDOW: usize = 16;
/// One sandbox cannot run five hundred shells at once.
const SANDBOXES: usize = 5;
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, count, file) = match arguments.as_slice() {
        [task, count] => (task, count.parse()?, ""),
        [task, count, file] => (task, count.parse()?, file.as_str()),
        _ => bail!("usage: sandbar-bench-client TASK COUNT [FILE]"),
    };
    let client = Client::from_env()?;
    let (spent, samples) = match task.as_str() {
        "commands" => commands(&client, count).await?,
        "concurrent" => (concurrent(&client, count).await?, Vec::new()),
        "upload" => (upload(&client, file).await?, Vec::new()),
        "download" => (download(&client, count, file).await?, Vec::new()),
        "files" => (files(&client, count).await?, Vec::new()),
        other => bail!("no task {other:?}"),
    };
    println!("{}", json!({ "wall": spent.wall.as_secs_f64(), "cpu": spent.cpu.as_secs_f64(), "samples": samples }));
    Ok(())
}

/// Elapsed time and processor time of this process during a piece of work.
struct Spent {
    wall: Duration,
    cpu: Duration,
}

async fn spent<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(Spent, T)> {
    let (started, cpu) = (Instant::now(), processor_time());
    let result = work.await?;
    Ok((Spent { wall: started.elapsed(), cpu: processor_time() - cpu }, result))
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

async fn create(client: &Client) -> anyhow::Result<Sandbox> {
    Ok(client.create(Create::default().timeout(Duration::from_secs(600))).await?)
}

async fn run(sandbox: &Sandbox) -> anyhow::Result<()> {
    let output = sandbox.commands().run("echo hi").await?;
    ensure!(output.stdout_text() == "hi\n", "the command printed {:?}", output.stdout_text());
    Ok(())
}

async fn commands(client: &Client, count: usize) -> anyhow::Result<(Spent, Vec<f64>)> {
    let sandbox = create(client).await?;
    for _ in 0..5 {
        run(&sandbox).await?;
    }
    let result = spent(async {
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let started = Instant::now();
            run(&sandbox).await?;
            samples.push(started.elapsed().as_secs_f64());
        }
        Ok(samples)
    });
    let result = result.await?;
    sandbox.kill().await?;
    Ok(result)
}

async fn concurrent(client: &Client, count: usize) -> anyhow::Result<Spent> {
    let sandboxes: Vec<Sandbox> = stream::iter(0..SANDBOXES).then(|_| create(client)).try_collect().await?;
    for sandbox in &sandboxes {
        run(sandbox).await?;
    }
    let all = futures::future::try_join_all((0..count).map(|number| run(&sandboxes[number % SANDBOXES])));
    let (spent, _) = spent(all).await?;
    for sandbox in sandboxes {
        sandbox.kill().await?;
    }
    Ok(spent)
}

async fn upload(client: &Client, file: &str) -> anyhow::Result<Spent> {
    let sandbox = create(client).await?;
    run(&sandbox).await?;
    let (spent, ()) = spent(send(&sandbox, file)).await?;
    sandbox.kill().await?;
    Ok(spent)
}

async fn send(sandbox: &Sandbox, file: &str) -> anyhow::Result<()> {
    let content = File::open(file).await.with_context(|| format!("cannot open {file}"))?;
    let content = ReaderStream::with_capacity(content, 256 * 1024);
    sandbox.within(TRANSFER_TIMEOUT).files().write_stream("big", content).await?;
    Ok(())
}

async fn download(client: &Client, size: usize, file: &str) -> anyhow::Result<Spent> {
    let sandbox = create(client).await?;
    send(&sandbox, file).await?;
    let (spent, got) = spent(async {
        let mut content = sandbox.within(TRANSFER_TIMEOUT).files().read_stream("big").await?;
        let mut got = 0;
        while let Some(chunk) = content.try_next().await? {
            got += chunk.len();
        }
        Ok(got)
    })
    .await?;
    ensure!(got == size, "{got} bytes came of {size}");
    sandbox.kill().await?;
    Ok(spent)
}

async fn files(client: &Client, count: usize) -> anyhow::Result<Spent> {
    let small = "x".repeat(1024);
    let sandbox = create(client).await?;
    run(&sandbox).await?;
    let one = async |number: usize| {
        let path = format!("small/{number}");
        sandbox.files().write(&path, small.clone()).await?;
        let got = sandbox.files().read_text(&path).await?;
        ensure!(got == small, "file {number} came back changed");
        anyhow::Ok(())
    };
    let all = stream::iter(0..count).map(Ok).try_for_each_concurrent(WINDOW, one);
    let (spent, ()) = spent(all).await?;
    sandbox.kill().await?;
    Ok(spent)
}
