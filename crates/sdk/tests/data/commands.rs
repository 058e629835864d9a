//! Commands against the real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use sandbar_sdk::{CallError, Chunk, Command, CommandError, Connect, Event, ProcessName, Signal};

use testing::{Server, eventually_async};

#[tokio::test]
async fn a_command_returns_exit_stdout_and_stderr() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();

    let output = commands.run("echo out; echo err >&2; exit 3").await.expect("it runs");
    assert_eq!((output.stdout_text().as_ref(), output.stderr_text().as_ref()), ("out\n", "err\n"));
    assert_eq!((output.exit.code, output.exit.exited, output.success()), (3, true, false));
    assert_eq!(output.exit.status, "exit status 3");

    let killed = commands.run("kill -9 $$").await.expect("it runs");
    assert_eq!((killed.exit.code, killed.exit.exited), (-1, false));
    assert_eq!(killed.exit.error.as_deref(), Some("signal: killed"));

    // Without a shell.
    let exact = commands.run(Command::exec("printf", ["%s|", "a b", "$HOME", "it's", "ü\n"])).await.expect("it runs");
    assert_eq!(exact.stdout_text(), "a b|$HOME|it's|ü\n|");

    let mut bytes = Vec::new();
    let exit = commands.run_with("head -c 3 /dev/zero", |chunk| bytes.extend_from_slice(chunk.bytes())).await;
    assert_eq!((exit.expect("it runs").success(), bytes), (true, vec![0; 3]));
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn command_options_apply() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();
    let text = async |command: Command| commands.run(command).await.expect("it runs").stdout_text().into_owned();

    let asked = Command::new("echo $(pwd) $(whoami) $A $B").cwd("/tmp").user("root").env("A", "1").envs([("B", "2")]);
    assert_eq!(text(asked).await, "/tmp root 1 2\n");
    assert_eq!(text("echo $(pwd) $(whoami) $A$B".into()).await, "/home/user user\n");
    // An empty standard input is EOF.
    assert_eq!(text("cat; echo done".into()).await, "done\n");

    let error = commands.run(Command::exec("/no/such/program", [""; 0])).await.expect_err("it does not exist");
    assert!(matches!(error, CommandError::NotStartable { .. }), "{error:?}");
    let error = commands.run(Command::new("pwd").cwd("/no/such/place")).await.expect_err("it does not exist");
    assert!(
        matches!(&error, CommandError::NotStartable { message, .. } if message.contains("/no/such/place")),
        "{error:?}"
    );
    let error = commands.run(Command::new("pwd").user("nobody-here")).await.expect_err("it does not exist");
    assert!(matches!(error, CommandError::Call(CallError::Unauthorized { .. })), "{error:?}");
    assert!(error.to_string().contains(sandbox.id().as_str()), "{error}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn stdin_is_open_only_on_request() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();

    let cat = commands.start(Command::new("cat").stdin()).await.expect("it starts");
    let process = cat.process();
    let big = vec![b'x'; 3 * 1024 * 1024];
    let (sent, output) = tokio::join!(
        async {
            process.send_stdin("hello\n").await?;
            process.send_stdin(big.clone()).await?;
            process.close_stdin().await
        },
        cat.wait()
    );
    sent.expect("it is taken");
    let output = output.expect("it ends");
    assert!(output.success() && output.stdout.len() == big.len() + 6 && output.stdout.starts_with(b"hello\nx"));

    let deaf = commands.start("sleep 100").await.expect("it starts");
    let error = deaf.send_stdin("x").await.expect_err("its input is closed");
    assert!(matches!(error, CommandError::InputRefused { .. }), "{error:?}");
    assert!(deaf.kill().await.expect("it is there") && !commands.kill(9_999).await.expect("no such process"));
    let error = commands.send_stdin(9_999, "x").await.expect_err("no such process");
    assert!(matches!(error, CommandError::NotFound { process: ProcessName::Pid(9_999), .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_process_is_listed_found_and_reattached() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();

    let line = "for i in $(seq 1 1000); do echo $i; sleep 0.05; done";
    let started = commands.start(Command::new(line).tag("count").cwd("/tmp")).await.expect("it starts");
    let pid = started.pid();
    drop(started); // The process continues.
    let listed = commands.list().await.expect("a list");
    let found = listed.iter().find(|info| info.pid == pid).expect("it is listed");
    assert_eq!((found.tag.as_deref(), found.cwd.as_deref()), (Some("count"), Some("/tmp")));
    assert_eq!((found.program.as_str(), found.arguments[2].as_str()), ("/bin/bash", line));

    let mut by_pid = commands.connect(pid).await.expect("it runs");
    let mut by_tag = commands.connect_tag("count").await.expect("it runs");
    assert_eq!(by_tag.pid(), pid);
    let (one, other) = (by_pid.next().await.expect("it speaks"), by_tag.next().await.expect("it speaks"));
    assert!(matches!((one, other), (Some(Chunk::Stdout(_)), Some(Chunk::Stdout(_)))));

    by_tag.signal(Signal::Terminate).await.expect("it is there");
    assert_eq!(by_pid.wait_exit().await.expect("it ends").status, "signal: terminated");
    // The server keeps the exit for a while.
    let late = commands.connect(pid).await.expect("it is known").wait().await.expect("its end is known");
    assert_eq!((late.exit.code, late.exit.exited), (-1, false));
    assert_eq!(by_tag.reconnect().await.expect("it is known").wait_exit().await.expect("known").code, -1);
    assert!(!commands.kill(pid).await.expect("it ended"));
    let gone = eventually_async("it is not listed", Duration::from_secs(5), async || {
        commands.list().await.expect("a list").iter().all(|info| info.pid != pid).then_some(())
    });
    gone.await;

    for error in [commands.connect(9_999).await.map(drop), commands.connect_tag("unused").await.map(drop)] {
        let error = error.expect_err("no such process");
        assert!(matches!(error, CommandError::NotFound { .. }), "{error:?}");
    }
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn the_server_kills_a_process_at_its_timeout() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();
    let started = Instant::now();
    let limit = Duration::from_millis(700);

    let error = commands.run(Command::new("echo $$ > pid; exec sleep 100").timeout(limit)).await.expect_err("too long");
    assert!(
        matches!(error, CommandError::DeadlineExceeded { after, may_still_run: None, .. } if after == limit),
        "{error:?}"
    );
    assert!(started.elapsed() >= limit && started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let looked = commands.run("kill -0 $(cat pid)").await.expect("it runs");
    assert!(!looked.success(), "the process still runs");

    // Also without a connected client.
    let left = commands.start(Command::exec("sleep", ["100"]).timeout(limit)).await.expect("it starts");
    let pid = left.pid();
    drop(left);
    eventually_async("the process ends", Duration::from_secs(10), async || {
        commands.list().await.expect("a list").iter().all(|info| info.pid != pid).then_some(())
    })
    .await;
    // The client that started it sees the timeout, others see the signal.
    assert!(!commands.connect(pid).await.expect("known").wait().await.expect("its end is known").exit.exited);
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn output_streams_unbounded_and_collects_bounded() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();
    const SIZE: usize = 50_000_000;

    let running = commands.start(format!("head -c {SIZE} /dev/zero | tr '\\0' x")).await.expect("it starts");
    let mut events = std::pin::pin!(running.into_stream());
    let (mut bytes, mut exit) = (0, None);
    while let Some(event) = events.try_next().await.expect("it streams") {
        match event {
            Event::Output(Chunk::Stdout(chunk)) => {
                assert!(chunk.iter().all(|&byte| byte == b'x'));
                bytes += chunk.len();
            }
            Event::Output(other) => panic!("{other:?}"),
            Event::Exit(end) => exit = Some(end),
        }
    }
    assert_eq!((bytes, exit.expect("an end").code), (SIZE, 0));

    let error = commands.run(Command::new("echo $$ > pid; exec yes").output_limit(100_000)).await.expect_err("endless");
    let CommandError::OutputTooLarge { pid, limit: 100_000, .. } = error else { panic!("{error:?}") };
    eventually_async("the process is killed", Duration::from_secs(5), async || {
        commands.list().await.expect("a list").iter().all(|info| info.pid != pid).then_some(())
    })
    .await;
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn many_commands_run_at_once() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let runs = (0..50).map(|number| {
        let sandbox = sandbox.clone();
        async move { sandbox.commands().run(format!("echo {number}")).await.map(|output| output.stdout) }
    });
    let outputs = futures::future::try_join_all(runs).await.expect("all run");
    for (number, output) in outputs.iter().enumerate() {
        assert_eq!(output, format!("{number}\n").as_bytes());
    }
    sandbox.kill().await.expect("it ends");
}

/// A forwarding proxy that counts connections.
async fn counted(server: &Server) -> (String, Arc<AtomicUsize>, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let (count, target) = (Arc::new(AtomicUsize::new(0)), server.address().to_owned());
    let counting = Arc::clone(&count);
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            let mut server = tokio::net::TcpStream::connect(&target).await.expect("the server listens");
            connections.spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (address, count, task)
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::shared(&[]);
    let direct = server.sandbox().await;
    let (address, count, task) = counted(&server).await;
    let client = server.builder(&address).build().expect("valid options");
    let sandbox = client.connect(direct.id(), Connect::default()).await.expect("it is there");
    for number in 0..20 {
        let output = sandbox.commands().run(format!("echo {number}")).await.expect("it runs");
        assert_eq!(output.stdout_text(), format!("{number}\n"));
        sandbox.files().write("x", output.stdout).await.expect("it is written");
        sandbox.files().read("x").await.expect("it is there");
        sandbox.files().stat("x").await.expect("it is there");
        let error = sandbox.commands().connect(9_999).await.expect_err("no such process");
        assert!(matches!(error, CommandError::NotFound { .. }), "{error:?}");
    }
    assert!(count.load(Ordering::SeqCst) <= 3, "{count:?} connections");
    task.abort();
    sandbox.kill().await.expect_err("the way is gone");
    direct.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_dropped_run_continues_until_its_timeout() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let commands = sandbox.commands();
    let run = commands.run(Command::new("sleep 100").tag("given-up").timeout(Duration::from_secs(3)));
    let waited = tokio::time::timeout(Duration::from_secs(1), run).await;
    assert!(waited.is_err(), "{waited:?}");
    let mut left = commands.connect_tag("given-up").await.expect("it still runs");
    assert!(!left.wait_exit().await.expect("its end is known").exited);
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn debug_output_redacts_secrets() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let token = sandbox.access_token().expect("it is secured").expose().to_owned();
    let command = Command::new("sleep 100").env("KEY", "valuesecret");
    let shown = format!("{command:?} {sandbox:?} {:?}", sandbox.client());
    let running = sandbox.commands().start(command).await.expect("it starts");
    let listed = sandbox.commands().list().await.expect("a list");
    let shown = format!("{shown} {running:?} {listed:?} {:?}", sandbox.files());
    assert!(!shown.contains("valuesecret") && !shown.contains(&token) && !shown.contains(server.key()), "{shown}");
    sandbox.kill().await.expect("it ends");
}
