//! The studio under load: reads of a build's status at a steady rate, while watchers follow
//! timelines on which events happen. Nothing may be dropped: every read is answered, and every
//! watcher receives every event of its build.
//!
//! Reads are sent when they are due, not when the one before was answered, so that the figures show
//! a server that falls behind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Plan, Row, Target};
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Number of builds; the first user has as many credits.
const JOBS: usize = 10;
/// The reads share this many connections: enough that none waits for another, few enough to be
/// clients of one program.
const CONNECTIONS: usize = 20;
/// Limit of every wait for an event that must happen.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn studio(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let token = server.token.clone().context("the server has no studio")?;
    let caller = Arc::new(Caller { address: server.address, token });
    let load = runtime.block_on(measure(&caller, plan))?;
    let (p99, empty, timers) = (load.reads.percentile(0.99), load.empty.percentile(0.99), load.timers.percentile(0.99));
    Ok(vec![Row {
        name: "studio, p99",
        figure: millis(p99),
        baseline: format!("{} a timer, {} an empty answer", millis(timers), millis(empty)),
        value: p99.as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost { limit: 50.0, sane: 5_000.0 }),
        method: format!(
            "{} reads of a build's status a second, {} in all, while {} watchers follow the timelines of {JOBS} builds, on which \
             {} events happened meanwhile. Nothing was dropped: every read was answered with 200, every watcher saw every event. \
             Half of the reads took {}; a watcher heard of an event {} after the call that made it was sent, {} at the 99th percentile. The baselines \
             are how late a timer of the same rate rang during the same seconds, which is what the machine itself keeps waiting, and `/health` of the same \
             server at the same rate, before, without watchers.",
            plan.studio_rate,
            load.reads.len(),
            plan.studio_watchers,
            load.events,
            millis(load.reads.p50()),
            millis(load.heard.p50()),
            millis(load.heard.percentile(0.99)),
        ),
    }])
}

/// The measured samples.
struct Load {
    empty: Samples,
    /// How late timers fired while the reads were sent.
    timers: Samples,
    reads: Samples,
    /// From the start of the call that caused an event until a watcher received it.
    heard: Samples,
    events: usize,
}

async fn measure(caller: &Arc<Caller>, plan: &Plan) -> anyhow::Result<Load> {
    let count = plan.studio_rate * plan.studio_seconds;
    let empty = reads(caller, plan.studio_rate, count / 4, &["/health".to_owned()]).await?;

    let mut jobs = Vec::new();
    for number in 0..JOBS {
        let asked = json!({"name": format!("load {number}"), "goal": "Be looked at.", "model": "scripted:demo"});
        let started = caller.call(Method::POST, "/api/generation", Some(asked)).await?;
        jobs.push(started["job_id"].as_str().context("a job without an id")?.to_owned());
    }
    let connected = Arc::new(AtomicUsize::new(0));
    let mut watchers = JoinSet::new();
    for number in 0..plan.studio_watchers {
        watchers.spawn(watch(Arc::clone(caller), jobs[number % JOBS].clone(), Arc::clone(&connected)));
    }
    let deadline = Instant::now() + TIMEOUT;
    while connected.load(Ordering::Relaxed) < plan.studio_watchers {
        ensure!(Instant::now() < deadline, "only {} watchers got through", connected.load(Ordering::Relaxed));
        if let Some(ended) = watchers.try_join_next() {
            ended??;
            bail!("a watcher's stream has ended");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let paths: Vec<String> = jobs.iter().map(|job| format!("/api/generation/{job}/status")).collect();
    let happening = happen(caller, &jobs, Duration::from_secs(plan.studio_seconds as u64));
    let (reads, asked, timers) =
        tokio::join!(reads(caller, plan.studio_rate, count, &paths), happening, timers(plan.studio_rate, count));
    let (reads, asked) = (reads?, asked?);

    let mut heard = Samples::default();
    let mut events = [0; JOBS];
    while let Some(seen) = watchers.join_next().await {
        let Seen { job, last, at } = seen??;
        let number = jobs.iter().position(|known| *known == job).context("a job of ours")?;
        ensure!(events[number] == 0 || events[number] == last, "two watchers of one build saw different ends");
        events[number] = last;
        heard.push(at.saturating_duration_since(asked[number]));
    }
    Ok(Load { empty, timers, reads, heard, events: events.iter().sum() })
}

/// Waits for timers at the same rate.
async fn timers(rate: usize, count: usize) -> Samples {
    let begin = Instant::now() + Duration::from_millis(100);
    let mut late = Samples::default();
    for number in 0..count {
        let due = begin + Duration::from_secs_f64(number as f64 / rate as f64);
        sleep_until(due).await;
        late.push(due.elapsed());
    }
    late
}

/// Reads at a steady rate, on kept connections. A sample lasts from when a read is due until its
/// answer is complete.
async fn reads(caller: &Arc<Caller>, rate: usize, count: usize, paths: &[String]) -> anyhow::Result<Samples> {
    let begin = Instant::now() + Duration::from_millis(100);
    let paths: Arc<[String]> = paths.into();
    let mut readers = JoinSet::new();
    for first in 0..CONNECTIONS {
        let (caller, paths) = (Arc::clone(caller), Arc::clone(&paths));
        readers.spawn(async move {
            let mut connection = caller.connect().await?;
            let mut samples = Vec::new();
            for number in (first..count).step_by(CONNECTIONS) {
                let due = begin + Duration::from_secs_f64(number as f64 / rate as f64);
                sleep_until(due).await;
                let answer = caller.send(&mut connection, Method::GET, &paths[number % paths.len()], None).await?;
                ensure!(answer.status() == 200, "a read was answered with {}", answer.status());
                answer.into_body().collect().await?;
                samples.push(due.elapsed());
            }
            anyhow::Ok(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = readers.join_next().await {
        samples??.into_iter().for_each(|sample| all.push(sample));
    }
    Ok(all)
}

/// Cancels one build after the other, spread over the time; returns when each request was sent.
async fn happen(caller: &Caller, jobs: &[String], within: Duration) -> anyhow::Result<Vec<Instant>> {
    let begin = Instant::now();
    let mut asked = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        sleep_until(begin + within.mul_f64((number as f64 + 0.5) / jobs.len() as f64)).await;
        asked.push(Instant::now());
        caller.call(Method::POST, &format!("/api/jobs/{job}/cancel"), None).await?;
    }
    Ok(asked)
}

/// What a watcher received.
struct Seen {
    job: String,
    /// The number of the last event; no number before it is missing.
    last: usize,
    /// When the watcher received the cancellation.
    at: Instant,
}

/// Watches a build from its first event until it is cancelled and its credit refunded.
async fn watch(caller: Arc<Caller>, job: String, connected: Arc<AtomicUsize>) -> anyhow::Result<Seen> {
    let mut connection = caller.connect().await?;
    let answer = caller.send(&mut connection, Method::GET, &format!("/api/jobs/{job}/events"), None).await?;
    ensure!(answer.status() == 200, "a watcher was answered with {}", answer.status());
    let mut body = answer.into_body();
    let (mut text, mut last, mut cancelled) = (String::new(), 0, None);
    loop {
        let frame = timeout(TIMEOUT, body.frame()).await.context("a stream without a sign of life")?;
        let frame = frame.context("a stream has ended")??;
        text.push_str(std::str::from_utf8(frame.data_ref().context("a stream of bytes")?)?);
        while let Some((block, rest)) = text.split_once("\n\n") {
            if let Some(data) = block.lines().find_map(|line| line.strip_prefix("data:")) {
                let event: Value = serde_json::from_str(data)?;
                let seq = usize::try_from(event["seq"].as_u64().context("an event without a number")?)?;
                ensure!(seq == last + 1, "event {seq} came after {last}");
                if last == 0 {
                    connected.fetch_add(1, Ordering::Relaxed);
                }
                last = seq;
                if event["status"] == "cancelled" {
                    cancelled = Some(Instant::now());
                }
                // The last event of a cancelled build.
                if let (Some(at), true) = (cancelled, event["type"] == "credit") {
                    return Ok(Seen { job, last, at });
                }
            }
            text = rest.to_owned();
        }
    }
}

/// A client of the studio with a token.
struct Caller {
    address: SocketAddr,
    token: String,
}

impl Caller {
    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.address).await.context("the server takes no more connections")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Ends when the sender is dropped.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn send(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string().into()),
            None => request.body(Full::default()),
        };
        timeout(TIMEOUT, connection.send_request(request?)).await.context("no answer")?.context("the answer broke off")
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut connection = self.connect().await?;
        let answer = self.send(&mut connection, method, path, body).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&text));
        Ok(serde_json::from_slice(&text)?)
    }
}
