//! Contract of `bash`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandbar_tools::{ErrorCode, Progress, Step, Watch};
use serde_json::json;
use testing::{SOON, eventually_async};

use crate::fixture::Fixture;

/// Upper bound for a trivial command on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

crate::contract!(in [memory, server, plain]: [
    output_and_exit_code_are_returned,
    exit_codes_map_to_failures,
    directory_and_exported_variables_carry_over,
    child_that_holds_the_pipe_does_not_block,
    every_shell_exit_is_reported,
    stdin_is_closed,
    unterminated_here_document_does_not_hang,
    timeout_kills_all_and_keeps_the_output,
    timeout_kills_processes_outside_the_group,
    endless_output_is_killed,
    long_command_runs,
    colours_are_stripped_and_progress_stays,
    characters_survive_chunk_boundaries,
    removed_directory_is_reported,
    directory_applies_to_one_call,
    restart_resets_the_shell,
    long_output_is_cut_and_spilled,
    notice_reports_a_killed_command,
    notice_reports_a_dropped_middle,
    short_task_shows_the_end_of_its_log,
    background_task_has_log_and_exit_report,
    immediate_background_failure_is_reported,
    cancelled_call_returns_and_leaves_no_process,
    slow_command_is_detached,
    waiting_for_the_lock_counts_as_waiting,
    invalid_commands_are_explained,
    special_characters_are_passed_through,
    control_marks_stay_out_of_the_output,
    cancelling_at_any_step_leaves_no_process,
    random_texts_round_trip,
]);

async fn output_and_exit_code_are_returned(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "echo out; echo err >&2" })).await;
    assert!(!run.is_error);
    assert_eq!(run.structured.to_value()["stdout"], "out\n");
    assert_eq!(run.structured.to_value()["stderr"], "err\n");
    assert_eq!(run.structured.to_value()["exit_code"], 0);
    assert!(run.text().ends_with("\n[exit 0]"), "{}", run.text());
    assert_eq!(fixture.ok("bash", json!({ "cmd": "true" })).await, "(no output)\n[exit 0]");
    assert_eq!(fixture.ok("bash", json!({ "command": "printf 'no end'" })).await, "no end\n[exit 0]");
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd" })).await, "/home/user\n[exit 0]");
}

async fn exit_codes_map_to_failures(fixture: &Fixture) {
    if let Some(memory) = fixture.in_memory() {
        memory.on("grep", [Step::Exit(1)]);
    }
    let failed = fixture.fails("bash", json!({ "command": "echo so; exit 3" }), ErrorCode::CommandFailed).await;
    assert_eq!(failed, "so\n[exit 3]");
    let answer = fixture.call("bash", json!({ "command": "echo a | grep b" })).await;
    assert!(!answer.is_error, "{answer:?}");
    assert_eq!(answer.text(), "(no output)\n[exit 1]");
    let missing = fixture.fails("bash", json!({ "command": "no-such-program" }), ErrorCode::CommandFailed).await;
    assert!(
        missing.contains("\n[no-such-program is not installed or not in PATH") && missing.ends_with("\n[exit 127]"),
        "{missing}"
    );
}

async fn directory_and_exported_variables_carry_over(fixture: &Fixture) {
    fixture
        .ok(
            "bash",
            json!({ "command": "mkdir -p deep/er && cd deep/er && export GREETING='hello  fixture' OTHER=1; LOCAL=2" }),
        )
        .await;
    let run =
        fixture.call("bash", json!({ "command": "pwd; echo \"$GREETING\"; echo \"[$LOCAL]\"; unset OTHER" })).await;
    assert_eq!(run.structured.to_value()["stdout"], "/home/user/deep/er\nhello  fixture\n[]\n");
    assert_eq!(run.structured.to_value()["cwd"], "/home/user/deep/er");
    assert_eq!(fixture.ok("bash", json!({ "command": "echo \"<$OTHER>\"" })).await, "<>\n[exit 0]");
    // Also from a command that exits early.
    fixture.fails("bash", json!({ "command": "cd ..; export LAST=yes; exit 4" }), ErrorCode::CommandFailed).await;
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd; echo $LAST" })).await, "/home/user/deep\nyes\n[exit 0]");
}

async fn child_that_holds_the_pipe_does_not_block(fixture: &Fixture) {
    for command in
        ["sleep 1000 & echo started", "(sleep 1000; echo late) & echo started", "setsid sleep 1000 & echo started"]
    {
        let begun = Instant::now();
        let run = fixture.call("bash", json!({ "command": command })).await;
        assert!(begun.elapsed() < SHORT_TIMEOUT, "{command} took {:?}", begun.elapsed());
        assert!(run.text().starts_with("started\n") && run.text().ends_with("\n[exit 0]"), "{}", run.text());
        if !command.starts_with("setsid") {
            assert!(run.text().contains("[Still running in the background: pid "), "{}", run.text());
        }
    }
}

async fn every_shell_exit_is_reported(fixture: &Fixture) {
    for (command, code) in [("exit 7", 7), ("kill -9 $$", 137), ("false", 1), ("true && false || exit 5", 5)] {
        let run = fixture.call("bash", json!({ "command": command })).await;
        assert_eq!(run.structured.to_value()["exit_code"], code, "{command}: {run:?}");
        assert!(run.text().ends_with(&format!("[exit {code}]")), "{}", run.text());
    }
    let killed = fixture.call("bash", json!({ "command": "kill -9 $$" })).await;
    assert!(killed.text().contains("[killed by SIGKILL, often out of memory]"), "{}", killed.text());
    let quote = fixture.call("bash", json!({ "command": "echo 'unfinished" })).await;
    assert_eq!(quote.structured.to_value()["exit_code"], 2);
    assert!(quote.text().contains("line 1: unexpected EOF while looking for matching `''"), "{}", quote.text());
}

async fn stdin_is_closed(fixture: &Fixture) {
    let begun = Instant::now();
    let run =
        fixture.call("bash", json!({ "command": "read answer; echo \"got <$answer>\"; cat; cat /dev/tty" })).await;
    assert!(begun.elapsed() < SHORT_TIMEOUT);
    assert_eq!(run.structured.to_value()["stdout"], "got <>\n");
    assert_eq!(run.structured.to_value()["stderr"], "cat: /dev/tty: No such device or address\n");
}

async fn unterminated_here_document_does_not_hang(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "cat > a.txt <<'EOF'\nhello $HOME" })).await;
    assert_eq!(run.structured.to_value()["exit_code"], 0);
    assert_eq!(fixture.get("/home/user/a.txt").await, "hello $HOME\n");
    assert_eq!(fixture.ok("bash", json!({ "command": "echo alive" })).await, "alive\n[exit 0]");
}

async fn timeout_kills_all_and_keeps_the_output(fixture: &Fixture) {
    let begun = Instant::now();
    let run = fixture.call("bash", json!({ "command": "echo first; sleep 4321 & sleep 4321", "timeout": 1 })).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(run.code, Some(ErrorCode::Timeout));
    assert_eq!(run.structured.to_value()["timed_out"], true);
    assert_eq!(run.structured.to_value()["stdout"], "first\n");
    let text = run.text();
    assert!(text.starts_with("first\n[Timed out after 1 s and was killed with its "), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("[exit ")), "{text}");
    assert_eq!(fixture.processes("sleep 4321").await, 0);
    // The next command is not affected.
    assert_eq!(fixture.ok("bash", json!({ "command": "echo again" })).await, "again\n[exit 0]");
}

async fn timeout_kills_processes_outside_the_group(fixture: &Fixture) {
    let command = "setsid sleep 4322 & sleep 4322";
    fixture.fails("bash", json!({ "command": command, "timeout": 1 }), ErrorCode::Timeout).await;
    assert_eq!(fixture.processes("sleep 4322").await, 0);
}

async fn endless_output_is_killed(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "yes | head -c 1G", "timeout": 300 })).await;
    assert_eq!(run.code, Some(ErrorCode::OutputLimit), "{}", run.text());
    let text = run.text();
    assert!(text.chars().count() <= 50_000);
    assert!(
        text.starts_with("y\ny\n") && text.contains("output truncated at 50000 chars"),
        "{}",
        &text[text.len() - 600..]
    );
    assert!(run.structured.to_value()["output_bytes"].as_u64().is_some_and(|bytes| bytes > 256 << 20));
    // The file has the first and the last 4 MiB, and the notice says so.
    let missing = run.structured.to_value()["bytes_dropped"].as_u64().expect("a number");
    assert!(missing > 200 << 20);
    let notice = notice(&text);
    assert!(notice.contains(" chars. Start and end of the output until it was killed: /"), "{notice}");
    assert!(notice.contains(&format!("; {missing} bytes between them were not kept")), "{notice}");
    assert!(notice.ends_with("The command did not finish: it was killed.]"), "{notice}");
    assert_eq!(fixture.processes("yes").await, 0);
}

async fn long_command_runs(fixture: &Fixture) {
    let long = "ü".repeat(100_000);
    let run = fixture.call("bash", json!({ "command": format!("printf %s '{long}' > long.txt; echo done") })).await;
    assert_eq!(run.text(), "done\n[exit 0]");
    assert_eq!(fixture.get("/home/user/long.txt").await, long);
}

async fn colours_are_stripped_and_progress_stays(fixture: &Fixture) {
    let command = r"printf '\033[1;31mred\033[0m 10%%\r 50%%\r100%%\n'";
    let run = fixture.call("bash", json!({ "command": command })).await;
    assert_eq!(run.text(), "red 10%\r 50%\r100%\n[exit 0]");
}

async fn characters_survive_chunk_boundaries(fixture: &Fixture) {
    let text = "→é😀".repeat(20_000);
    fixture.put("/home/user/t.txt", text.clone()).await;
    let run = fixture.call("bash", json!({ "command": "cat t.txt > copy.txt; head -c 4000 t.txt" })).await;
    assert!(!run.structured.to_value()["stdout"].as_str().expect("text").contains('\u{fffd}'));
    assert_eq!(fixture.get("/home/user/copy.txt").await, text);
    let strange = fixture.call("bash", json!({ "command": r"printf 'a\377b'" })).await;
    assert_eq!(strange.text(), "a\\xffb\n[exit 0]");
}

async fn removed_directory_is_reported(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "mkdir gone && cd gone" })).await;
    fixture.ok("bash", json!({ "command": "rm -r /home/user/gone", "workdir": "/tmp" })).await;
    let text = fixture.ok("bash", json!({ "command": "pwd" })).await;
    assert!(text.starts_with("/home/user\n[Working directory /home/user/gone no longer exists"), "{text}");
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd" })).await, "/home/user\n[exit 0]");
}

async fn directory_applies_to_one_call(fixture: &Fixture) {
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd", "workdir": "/tmp" })).await, "/tmp\n[exit 0]");
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd" })).await, "/home/user\n[exit 0]");
    let text =
        fixture.fails("bash", json!({ "command": "echo ran", "workdir": "/no/where" }), ErrorCode::NotFound).await;
    assert!(text.contains("/no/where does not exist") && !text.contains("ran\n"), "{text}");
}

async fn restart_resets_the_shell(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "cd /tmp; export A=1" })).await;
    fixture.ok("bash", json!({ "restart": true })).await;
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd; echo \"<$A>\"" })).await, "/home/user\n<>\n[exit 0]");
}

async fn long_output_is_cut_and_spilled(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "seq 1 30000; echo 'error: in the end' >&2" })).await;
    let text = run.text();
    assert!(text.chars().count() <= 50_000, "{}", text.chars().count());
    assert!(text.starts_with("1\n2\n3\n") && text.contains("\n30000\n"));
    assert!(notice(&text).contains(" chars. Full output: /") && text.ends_with("[exit 0]"), "{}", notice(&text));
    assert!(notice(&text).ends_with(" The command has ended; do not re-run it to see the rest.]"), "{}", notice(&text));
    let facts = run.structured.to_value();
    let stdout = facts["stdout"].as_str().expect("a text");
    assert!(stdout.ends_with("do not re-run it to see the rest.]") && stdout.contains("stdout and stderr together"));
    assert_eq!(text.matches("output truncated at 50000 chars").count(), 2);
    let facts = run.structured.to_value();
    let path = facts["output_path"].as_str().expect("a file");
    let whole = fixture.ok("read_file", json!({ "path": path, "offset": 15_000, "limit": 1 })).await;
    assert!(whole.starts_with("15000\t15000"), "{whole}");
    // Spilled output is not found by other searches.
    let found = fixture.ok("glob", json!({ "pattern": "**/*.log", "path": "/tmp" })).await;
    assert!(found.starts_with("[glob: no files matched]"), "{found}");
}

/// The notice about a cut; it occurs twice, identically.
#[track_caller]
fn notice(text: &str) -> &str {
    let notices: Vec<&str> =
        text.lines().filter(|line| line.starts_with("[… ") && line.contains("truncated at")).collect();
    assert_eq!(notices.len(), 2, "{}", &text[text.len().saturating_sub(2000)..]);
    assert_eq!(notices[0], notices[1]);
    notices[0]
}

async fn notice_reports_a_killed_command(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "seq 1 30000; sleep 4324", "timeout": 2 })).await;
    assert_eq!(run.code, Some(ErrorCode::Timeout));
    let text = run.text();
    let notice = notice(&text);
    assert!(notice.contains(" chars. Output until it was killed: /"), "{notice}");
    assert!(notice.ends_with(" The command did not finish: it was killed.]"), "{notice}");
    assert!(text.contains("\n[Timed out after 2 s and was killed"), "{}", &text[text.len() - 500..]);
    let facts = run.structured.to_value();
    let path = facts["output_path"].as_str().expect("a file");
    let whole = fixture.ok("read_file", json!({ "path": path, "offset": -1 })).await;
    assert!(whole.starts_with("30000\t30000"), "{whole}");
}

async fn notice_reports_a_dropped_middle(fixture: &Fixture) {
    if fixture.is_memory() {
        // Its programs write everything at once.
        return;
    }
    let run = fixture.call("bash", json!({ "command": "seq 1 2000000" })).await;
    let text = run.text();
    let missing = run.structured.to_value()["bytes_dropped"].as_u64().expect("a number");
    assert!(missing > 4 << 20, "{missing}");
    let notice = notice(&text);
    assert!(notice.contains(" chars. Start and end of the output: /"), "{notice}");
    assert!(notice.contains(&format!("; {missing} bytes between them were not kept")), "{notice}");
    assert!(
        notice
            .ends_with(" The command has ended; to see the rest, run it again with its output redirected to a file.]")
    );
}

async fn short_task_shows_the_end_of_its_log(fixture: &Fixture) {
    let input = json!({ "command": "seq 1 100000; echo last words; exit 3", "run_in_background": true });
    let text = fixture.fails("bash", input, ErrorCode::CommandFailed).await;
    assert!(text.contains("\n100000\nlast words\n"), "{}", &text[text.len() - 800..]);
    assert!(
        notice(&text).contains(" of 100001; ") && notice(&text).contains(" chars. Full output: /"),
        "{}",
        notice(&text)
    );
}

async fn background_task_has_log_and_exit_report(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "export WORD=serving; mkdir app; cd app" })).await;
    let command = "pwd; echo $WORD; sleep 2; echo more; exit 4 &";
    let started = fixture.call("bash", json!({ "command": command, "run_in_background": true })).await;
    assert!(started.text().starts_with("Started background task b1 (pid "), "{}", started.text());
    let task = &started.structured.to_value()["background"];
    assert_eq!(task["running"], true);
    let log = task["output_path"].as_str().expect("a log").to_owned();
    let text = fixture.ok("read_file", json!({ "path": log, "offset": -50 })).await;
    assert!(text.starts_with("1\t/home/user/app\n2\tserving"), "{text}");
    eventually_async("the task ends and the next command says so", SOON, async || {
        let text = fixture.ok("bash", json!({ "command": "true" })).await;
        text.contains("[Background task b1 has ended with exit code 4. Output: ")
    })
    .await;
    assert!(fixture.ok("read_file", json!({ "path": log })).await.contains("3\tmore"));
    // Reported once.
    assert_eq!(fixture.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");
}

async fn immediate_background_failure_is_reported(fixture: &Fixture) {
    let input = json!({ "command": "echo no config; exit 2", "run_in_background": true });
    let text = fixture.fails("bash", input, ErrorCode::CommandFailed).await;
    assert!(
        text.starts_with("no config\n[Background task b1 ended at once.") && text.ends_with("\n[exit 2]"),
        "{text}"
    );
    assert_eq!(fixture.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");
}

async fn cancelled_call_returns_and_leaves_no_process(fixture: &Fixture) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&lines);
    let watch = Watch {
        progress: Some(Arc::new(move |progress: Progress| {
            received.lock().push(progress.last_line);
        })),
        ..Watch::default()
    };
    let cancel = watch.cancel.clone();
    let call = fixture.call_watched("bash", json!({ "command": "echo begun; sleep 4323 & sleep 4323" }), watch);
    let stop = async {
        eventually_async("progress is received", SOON, async || lines.lock().contains(&"begun".to_owned())).await;
        cancel.cancel();
    };
    let (run, ()) = tokio::join!(call, stop);
    assert_eq!(run.code, Some(ErrorCode::Cancelled));
    assert!(run.text().starts_with("begun\n[Stopped by the user"), "{}", run.text());
    assert_eq!(fixture.processes("sleep 4323").await, 0);
    // A call that was cancelled before its start is not started.
    let watch = Watch::default();
    watch.cancel.cancel();
    let run = fixture.call_watched("bash", json!({ "command": "touch begun.txt" }), watch).await;
    assert_eq!(run.text(), "Not executed: cancelled.");
}

async fn slow_command_is_detached(fixture: &Fixture) {
    let watch = Watch { detach_after: Some(Duration::from_secs(1)), ..Watch::default() };
    let run = fixture.call_watched("bash", json!({ "command": "echo one; sleep 3; echo two; exit 6" }), watch).await;
    assert!(!run.is_error, "{run:?}");
    assert!(
        run.text().starts_with("one\n[Still running after 1 s, so it goes on as background task b1."),
        "{}",
        run.text()
    );
    let group = run.structured.to_value()["background"]["pgid"].as_u64().expect("a group");
    assert!(group > 1 && run.structured.to_value()["background"]["pid"] == group, "{run:?}");
    let log = run.structured.to_value()["background"]["output_path"].as_str().expect("a log").to_owned();
    eventually_async("the rest is in the log", SOON, async || fixture.get(&log).await == "one\ntwo\n").await;
}

async fn waiting_for_the_lock_counts_as_waiting(fixture: &Fixture) {
    let watch = Watch { detach_after: Some(Duration::from_secs(1)), ..Watch::default() };
    let first = fixture.call("bash", json!({ "command": "sleep 4; echo first" }));
    let second = async {
        // The first call holds the lock by then: calls are served in order of arrival.
        tokio::task::yield_now().await;
        fixture.call_watched("bash", json!({ "command": "echo second >/home/user/second" }), watch).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.text(), "first\n[exit 0]");
    assert_eq!(second.code, Some(ErrorCode::Timeout), "{second:?}");
    assert!(second.text().starts_with("Not executed: an earlier command of this session still runs"), "{second:?}");
    fixture.fails("read_file", json!({ "path": "/home/user/second" }), ErrorCode::NotFound).await;
}

async fn invalid_commands_are_explained(fixture: &Fixture) {
    let text = fixture.fails("bash", json!({ "command": "ls", "timeout": 120_000 }), ErrorCode::InvalidInput).await;
    assert!(
        text.contains("it is in seconds and 3600 seconds are the most. For 120000 milliseconds send 120"),
        "{text}"
    );
    let text = fixture.fails("bash", json!({ "command": "[{\"cmd\": \"ls\"}]" }), ErrorCode::InvalidInput).await;
    assert!(text.contains("JSON"), "{text}");
    fixture.fails("bash", json!({ "command": "a\0b" }), ErrorCode::InvalidInput).await;
    fixture.fails("bash", json!({}), ErrorCode::InvalidInput).await;
}

async fn special_characters_are_passed_through(fixture: &Fixture) {
    for text in [
        "$(touch broken)",
        "`touch broken`",
        "'; touch broken; '",
        "\\",
        "*",
        "~",
        "-n",
        "%s\\n",
        "a\nb",
        "\"$HOME\"",
        "ä→😀",
    ] {
        let quoted = format!("'{}'", text.replace('\'', "'\\''"));
        let run = fixture.call("bash", json!({ "command": format!("printf %s {quoted}") })).await;
        assert_eq!(run.structured.to_value()["stdout"], text);
        let run = fixture.call("bash", json!({ "command": "pwd", "workdir": text })).await;
        assert!(run.is_error || text == "~", "{text}: {run:?}");
    }
    assert!(fixture.ok("glob", json!({ "pattern": "broken" })).await.starts_with("[glob: no files matched]"));
}

async fn control_marks_stay_out_of_the_output(fixture: &Fixture) {
    // Output that looks like a mark belongs to the command.
    let run = fixture.call("bash", json!({ "command": r"printf '\036abc=0\n'; echo x" })).await;
    assert_eq!(run.structured.to_value()["stdout"], "\u{1e}abc=0\nx\n");
}

async fn cancelling_at_any_step_leaves_no_process(fixture: &Fixture) {
    // In memory after every single step; on a sandbox, where steps are not countable, after some
    // delays.
    for step in 0..40_u64 {
        let watch = Watch::default();
        let cancel = watch.cancel.clone();
        let command = "echo a; sleep 4326 & sleep 4326; echo b";
        let mut call = Box::pin(fixture.call_watched("bash", json!({ "command": command, "timeout": 30 }), watch));
        if fixture.is_memory() {
            for _ in 0..step {
                tokio::select! {
                    biased;
                    run = &mut call => panic!("it ended by itself: {run:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
        } else {
            if step % 5 > 0 {
                continue;
            }
            let wait = tokio::time::timeout(Duration::from_millis(step * 2), &mut call).await;
            assert!(wait.is_err(), "it ended by itself");
        }
        cancel.cancel();
        let run = call.await;
        assert_eq!(run.code, Some(ErrorCode::Cancelled), "after {step}: {run:?}");
        eventually_async("nothing is left", SOON, async || fixture.processes("sleep 4326").await == 0).await;
    }
    assert_eq!(fixture.ok("bash", json!({ "command": "echo alive" })).await, "alive\n[exit 0]");
}

async fn random_texts_round_trip(fixture: &Fixture) {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for round in 0..12 {
        let text = "[^\u{0}\n\r]{1,40}".new_tree(&mut runner).expect("a text").current();
        let quoted = format!("'{}'", text.replace('\'', "'\\''"));
        fixture.put(&format!("/home/user/r/text{round}.txt"), format!("{text}\n")).await;
        let run = fixture
            .call("bash", json!({ "command": format!("export T={quoted}; cat /home/user/r/text{round}.txt") }))
            .await;
        if !text.contains('\u{1b}') && !text.contains('\u{9b}') {
            assert_eq!(run.structured.to_value()["stdout"], format!("{text}\n"));
        }
        let found = fixture.call("grep", json!({ "pattern": text, "literal": true, "path": "/home/user/r" })).await;
        assert_eq!(
            found.structured.to_value()["total_matches"].as_u64().map(|count| count > 0),
            Some(true),
            "{text:?}: {found:?}"
        );
        fixture.put("/home/user/edited.txt", format!("<{text}>")).await;
        fixture
            .ok("edit_file", json!({ "path": "/home/user/edited.txt", "old_string": text, "new_string": "-" }))
            .await;
        assert_eq!(fixture.get("/home/user/edited.txt").await, "<->");
    }
}

mod on_a_sandbox {
    use super::*;

    crate::contract!(in [server, plain]: [
        shell_options_do_not_affect_the_wrapper,
        environment_is_non_interactive,
    helper_processes_end_with_the_command,
    exec_keeps_the_exit_code,
        two_megabyte_command_runs,
        background_log_is_limited,
        sudo_processes_are_killed,
        silent_prompt_is_reported,
        closing_the_session_kills_its_tasks,
        lost_sandbox_returns_an_error_result,
    ]);
}

async fn shell_options_do_not_affect_the_wrapper(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "set -x; set -euo noclobber; cd /usr; export A=1" })).await;
    assert_eq!(run.structured.to_value()["stderr"], "++ set -euo noclobber\n++ cd /usr\n++ export A=1\n++ A=1\n");
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd; echo $A" })).await, "/usr\n1\n[exit 0]");
    let run = fixture.call("bash", json!({ "command": "set -e; cd /; false; echo no" })).await;
    assert_eq!(run.structured.to_value()["exit_code"], 1);
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd" })).await, "/\n[exit 0]");
    fixture.call("bash", json!({ "command": "cd /tmp; exec sh -c 'exit 3'" })).await;
    assert_eq!(fixture.ok("bash", json!({ "command": "trap 'echo bye' EXIT; cd /usr/lib" })).await, "bye\n[exit 0]");
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd; echo \"$# $*\"" })).await, "/usr/lib\n0 \n[exit 0]");
    let run = fixture.call("bash", json!({ "command": "export MANY=$'two\\nlines' PATH=$PATH:/opt/x" })).await;
    assert!(!run.is_error);
    let run = fixture.call("bash", json!({ "command": "echo \"$MANY\"; echo $PATH" })).await;
    let facts = run.structured.to_value();
    let text = facts["stdout"].as_str().expect("text");
    assert!(text.starts_with("two\nlines\n") && text.ends_with(":/opt/x\n"), "{text}");
}

/// The helper processes of a command end with it; processes that the command left running stay.
async fn helper_processes_end_with_the_command(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "sleep 4326 & echo started" })).await;
    assert_eq!(fixture.processes("^sleep 4326").await, 1);
    for ours in ["^/usr/bin/timeout -k", "search-[0-9a-f]+ --run", "^/bin/sh -c # Which background"] {
        eventually_async("nothing of ours is left", SOON, async || fixture.processes(ours).await == 0).await;
    }
    assert_eq!(fixture.processes("^sleep 4326").await, 1);
}

async fn exec_keeps_the_exit_code(fixture: &Fixture) {
    for (command, code) in [("exec sh -c 'exit 3'", 3), ("set -e; false; echo not here", 1), ("kill -TERM $$", 143)] {
        let run = fixture.call("bash", json!({ "command": command })).await;
        assert_eq!(run.structured.to_value()["exit_code"], code, "{command}: {run:?}");
        assert_eq!(run.structured.to_value()["stdout"], "", "{command}");
    }
    let lines: String = (0..2000).map(|number| format!("line {number} of a long document, with $HOME\n")).collect();
    let document = format!("cat >long.txt <<'END'\n{lines}END\nwc -l <long.txt");
    assert_eq!(fixture.ok("bash", json!({ "command": document })).await, "2000\n[exit 0]");
    assert_eq!(fixture.get("/home/user/long.txt").await, lines);
}

async fn environment_is_non_interactive(fixture: &Fixture) {
    let run = fixture
        .call(
            "bash",
            json!({ "command": "echo $TERM $PAGER $GIT_TERMINAL_PROMPT $DEBIAN_FRONTEND; test -t 0 || echo no tty" }),
        )
        .await;
    assert_eq!(run.structured.to_value()["stdout"], "dumb cat 0 noninteractive\nno tty\n");
}

async fn two_megabyte_command_runs(fixture: &Fixture) {
    let command = format!("wc -c <<'EOF'\n{}\nEOF\necho end", "x".repeat(2_000_000));
    assert_eq!(fixture.ok("bash", json!({ "command": command })).await, "2000001\nend\n[exit 0]");
}

async fn background_log_is_limited(fixture: &Fixture) {
    let input = json!({ "command": "yes | head -c 70M; echo after; sleep 1000", "run_in_background": true });
    let started = fixture.call("bash", input).await;
    let log = started.structured.to_value()["background"]["output_path"].as_str().expect("a log").to_owned();
    eventually_async("the log is full", SOON, async || {
        let entry = fixture.sandbox().files().stat(&log).await.expect("the log is there");
        assert!(entry.size <= 64 << 20);
        entry.size == 64 << 20
    })
    .await;
    // The full log does not block the command.
    eventually_async("the command goes on", SOON, async || fixture.processes("^sleep 1000").await > 0).await;
}

async fn sudo_processes_are_killed(fixture: &Fixture) {
    fixture.fails("bash", json!({ "command": "sudo sleep 4324", "timeout": 1 }), ErrorCode::Timeout).await;
    assert_eq!(fixture.processes("sleep 4324").await, 0);
}

async fn silent_prompt_is_reported(fixture: &Fixture) {
    let ask = "printf 'Ok to proceed? (y) '; sleep 1000";
    let text = fixture.fails("bash", json!({ "command": ask, "timeout": 1 }), ErrorCode::Timeout).await;
    assert!(text.contains("[It appears to be waiting for input; use a non-interactive flag.]"), "{text}");
    let text = fixture
        .fails("bash", json!({ "command": "echo building; sleep 1000", "timeout": 1 }), ErrorCode::Timeout)
        .await;
    assert!(!text.contains("waiting for input"), "{text}");
}

async fn closing_the_session_kills_its_tasks(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "sleep 4325", "run_in_background": true })).await;
    assert!(fixture.processes("sleep 4325").await > 0);
    fixture.tools().close().await;
    assert_eq!(fixture.processes("sleep 4325").await, 0);
}

async fn lost_sandbox_returns_an_error_result(fixture: &Fixture) {
    let run = fixture.call("bash", json!({ "command": "echo begun; sleep 1000" }));
    let end = async {
        eventually_async("the command runs", SOON, async || fixture.processes("^sleep 1000").await > 0).await;
        fixture.sandbox().kill().await.expect("it ends");
    };
    let (run, ()) = tokio::join!(run, end);
    assert_eq!(run.code, Some(ErrorCode::SandboxUnavailable), "{run:?}");
    assert!(run.text().starts_with("begun\n"), "{}", run.text());
    for (tool, input) in [
        ("read_file", json!({ "path": "/x" })),
        ("grep", json!({ "pattern": "x" })),
        ("bash", json!({ "command": "true" })),
        ("write_file", json!({ "path": "/x", "content": "" })),
    ] {
        fixture.fails(tool, input, ErrorCode::SandboxUnavailable).await;
    }
}
