//! The tools of an agent, each beside the minimum for the same work.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use browser::{Browser, BrowserConfig, CaptureRequest, Origin, Upstream};
use sdk::{Command, Create, Sandbox};
use serde_json::{Value, json};
use tools::{SandboxToolDispatcher, ToolDispatcher};

use super::{Plan, Row, Target};
use crate::remote::{self, run};
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Files of a few hundred bytes in a thousand directories; one in a hundred has the needle.
/// Argument: the number of files.
const TREE: &str = r#"
import os, sys
line = 'some text in which the search finds no match\n'
for number in range(int(sys.argv[1])):
    directory = f'tree/{number % 40}/{number % 1000}'
    os.makedirs(directory, exist_ok=True)
    with open(f'{directory}/{number}.txt', 'w') as file:
        file.write(line * 8 + ('a needle\n' if number % 100 == 0 else line))
"#;
const PAGE: &str =
    "<!doctype html><title>Bench</title><body style='font: 2em sans-serif'><h1>A page</h1><p>Nothing moves here.";

pub(crate) fn tools(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = remote::client(server)?;
        let create = Create::default().timeout(Duration::from_secs(900)).memory_mb(2048);
        let sandbox = client.create(create).await?;
        let measured = all(&sandbox, plan).await;
        sandbox.kill().await?;
        measured
    })
}

async fn all(sandbox: &Sandbox, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let tools = SandboxToolDispatcher::new(sandbox.clone());
    let mut rows = searching(sandbox, &tools, plan).await?;
    rows.extend(files(sandbox, &tools, plan).await?);
    rows.push(bash(sandbox, &tools, plan).await?);
    rows.push(screenshot(sandbox, plan).await?);
    tools.close().await;
    Ok(rows)
}

/// Calls a tool and checks that it succeeded.
async fn call(tools: &SandboxToolDispatcher, name: &str, input: Value) -> anyhow::Result<String> {
    let result = tools.dispatch(name, input).await;
    ensure!(!result.is_error, "{name} failed: {}", result.text());
    Ok(result.text())
}

/// Runs two operations alternately; the first round of each is not counted.
async fn alternate(
    rounds: usize,
    mut ours: impl AsyncFnMut(usize) -> anyhow::Result<()>,
    mut theirs: impl AsyncFnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<(Samples, Samples)> {
    let (mut tool, mut plain) = (Samples::default(), Samples::default());
    for round in 0..=rounds {
        let started = Instant::now();
        theirs(round).await?;
        let middle = Instant::now();
        ours(round).await?;
        if round > 0 {
            plain.push(middle - started);
            tool.push(middle.elapsed());
        }
    }
    Ok((tool, plain))
}

fn ratio(name: &'static str, (tool, plain): &(Samples, Samples), limit: f64, method: &str) -> Row {
    Row {
        name,
        figure: format!("{} (p95 {})", millis(tool.p50()), millis(tool.p95())),
        baseline: format!("{} (p95 {})", millis(plain.p50()), millis(plain.p95())),
        value: tool.p50().as_secs_f64() / plain.p50().as_secs_f64(),
        unit: "x",
        target: Some(Target::AtMost { limit, sane: limit * 10.0 }),
        method: format!("{method} {} rounds, medians.", tool.len()),
    }
}

async fn searching(sandbox: &Sandbox, tools: &SandboxToolDispatcher, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let count = plan.tree_files;
    run(sandbox, Command::exec("python3", ["-c", TREE, &count.to_string()])).await.context("making a tree")?;
    let matching = count / 100;
    let grep = alternate(
        plan.tool_rounds,
        async |_| {
            let text = call(tools, "grep", json!({ "pattern": "a needle", "path": "/home/user/tree" })).await?;
            ensure!(text.contains(&format!("{matching} matches")), "grep found something else: {text:.200}");
            Ok(())
        },
        async |_| {
            let command = Command::exec("rg", ["-n", "--hidden", "a needle", "/home/user/tree"]);
            ensure!(run(sandbox, command).await?.lines().count() == matching, "ripgrep found something else");
            Ok(())
        },
    );
    let grep = grep.await?;
    let glob = alternate(
        plan.tool_rounds,
        async |_| {
            call(tools, "glob", json!({ "pattern": "**/*77.txt", "path": "/home/user/tree" })).await?;
            Ok(())
        },
        async |_| {
            let command = Command::exec("rg", ["--files", "--hidden", "-g", "*77.txt", "/home/user/tree"]);
            ensure!(run(sandbox, command).await?.lines().count() == matching, "ripgrep found something else");
            Ok(())
        },
    );
    let glob = glob.await?;
    let method = |tool: &str, plain: &str| {
        format!(
            "{tool} over a tree of {count} files, one in a hundred matching, against `{plain}` run in the same sandbox."
        )
    };
    Ok(vec![
        ratio("tool: grep", &grep, 1.3, &method("grep", "rg -n --hidden")),
        ratio("tool: glob", &glob, 1.3, &method("glob", "rg --files --hidden -g")),
    ])
}

async fn files(sandbox: &Sandbox, tools: &SandboxToolDispatcher, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let text = "a line of text that is sixty-three bytes long, its end included\n".repeat(16 * 1024);
    let path = "/home/user/big.txt";
    sandbox.files().write(path, text.clone()).await?;
    let rounds = plan.tool_rounds * 4;
    let read = alternate(
        rounds,
        async |_| call(tools, "read_file", json!({ "path": path })).await.map(drop),
        async |_| {
            ensure!(sandbox.files().read(path).await?.len() == text.len(), "the file came back changed");
            Ok(())
        },
    );
    let read = read.await?;

    let small = format!("{}the word is zero\n", &text[..100 * 1024]);
    let path = "/home/user/small.txt";
    sandbox.files().write(path, small.clone()).await?;
    call(tools, "read_file", json!({ "path": path, "offset": 1600 })).await?;
    let words = ["zero", "one"];
    let edit = alternate(
        rounds,
        async |round| {
            let (old, new) = (words[round % 2], words[(round + 1) % 2]);
            let input = json!({ "path": path, "old_string": format!("the word is {old}"), "new_string": format!("the word is {new}") });
            call(tools, "edit_file", input).await.map(drop)
        },
        async |_| {
            let content = sandbox.files().read(path).await?;
            sandbox.files().write("/home/user/other.txt", content).await?;
            Ok(())
        },
    );
    let edit = edit.await?;
    Ok(vec![
        ratio("tool: read_file", &read, 3.0, "A text of 1 MiB, read warm, against one `GET /files`."),
        ratio("tool: edit_file", &edit, 3.0, "One word of a text of 100 KiB, against one `GET` and one `POST` of it."),
    ])
}

async fn bash(sandbox: &Sandbox, tools: &SandboxToolDispatcher, plan: &Plan) -> anyhow::Result<Row> {
    let (tool, plain) = alternate(
        plan.runs / 2,
        async |_| call(tools, "bash", json!({ "command": "echo hi" })).await.map(drop),
        async |_| run(sandbox, Command::new("echo hi")).await.map(drop),
    )
    .await?;
    let overhead = tool.p50().saturating_sub(plain.p50());
    Ok(Row {
        name: "tool: bash, overhead",
        figure: millis(tool.p50()),
        baseline: millis(plain.p50()),
        value: overhead.as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost { limit: 5.0, sane: 200.0 }),
        method: format!("`echo hi` by the tool less `commands.run` of the same. {} rounds, medians.", tool.len()),
    })
}

async fn screenshot(sandbox: &Sandbox, plan: &Plan) -> anyhow::Result<Row> {
    const PORT: u16 = 3000;
    sandbox.files().write("site/index.html", PAGE).await?;
    let serve = Command::exec("python3", ["-m", "http.server", "3000", "--bind", "127.0.0.1"]);
    let serving = sandbox.commands().start(serve.cwd("/home/user/site").no_timeout()).await?;
    let wait = "for _ in $(seq 100); do curl -sf localhost:3000 >/dev/null && exit 0; sleep 0.1; done; exit 1";
    run(sandbox, Command::new(wait)).await.context("waiting for the page")?;

    let edge = sandbox.client().api_url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let edge_port = edge.rsplit(':').next().unwrap_or("80");
    let origin: Origin = format!("http://{PORT}-{}.localhost:{edge_port}", sandbox.id()).parse()?;
    let profiles = tempfile::TempDir::new()?;
    std::fs::set_permissions(profiles.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let browser = Browser::start(BrowserConfig::new(profiles.path()))?;
    let mut samples = Samples::default();
    for round in 0..=plan.tool_rounds {
        let request = CaptureRequest::new(origin.clone(), Upstream::direct(&origin));
        let started = Instant::now();
        let capture = browser.capture(request).await?;
        let taken = started.elapsed();
        let shown = capture.screenshots.iter().all(|shot| !shot.blank && shot.http_status == Some(200));
        ensure!(capture.screenshots.len() == 2 && shown, "the page was not shown");
        if round > 0 {
            samples.push(taken);
        }
    }
    browser.close().await;
    serving.kill().await?;
    Ok(Row {
        name: "tool: screenshot pair",
        figure: format!("{} (p95 {})", millis(samples.p50()), millis(samples.p95())),
        baseline: String::new(),
        value: samples.p50().as_secs_f64(),
        unit: "s",
        target: Some(Target::AtMost { limit: 2.5, sane: 60.0 }),
        method: format!(
            "Desktop and mobile picture of a static page served by the sandbox, through the edge, browser warm. {} rounds, \
             median.",
            samples.len()
        ),
    })
}
