//! Sandboxes survive pauses, timeouts, crashes of the server at any moment, and many at once.

use crate::support::{Holdings, Sandbox, Server, eventually, repeats};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

fn pause(server: &Server, sandbox: &Sandbox, memory: bool) {
    let reply = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": memory })));
    assert_eq!(reply.status, 204, "{}", reply.text());
}

fn connect(server: &Server, sandbox: &Sandbox) -> Value {
    let reply = server.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    reply.json()
}

fn info(server: &Server, sandbox: &Sandbox) -> Value {
    let reply = server.call("GET", &format!("/sandboxes/{}", sandbox.id), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn list(server: &Server) -> HashMap<String, String> {
    let reply = server.call("GET", "/v2/sandboxes", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    reply.json().as_array().expect("a list").iter().map(|one| (text(&one["sandboxID"]), text(&one["state"]))).collect()
}

#[test]
fn every_byte_survives_pause_and_resume() {
    let server = Server::start();
    let sandbox = server.create();
    let mut written: Vec<(String, Vec<u8>)> = Vec::new();
    for cycle in 0..repeats(10, 100) {
        let path = format!("/home/user/cycle/{cycle}");
        let content: Vec<u8> = (0..(cycle * 7919 + 1)).map(|byte| (byte * 31 + cycle) as u8).collect();
        assert_eq!(sandbox.write(&path, &content).status, 200);
        written.push((path, content));
        sandbox.must(
            "user",
            &format!("echo {cycle} >> /home/user/log; mkdir -p d/{cycle}; ln -sf ../../log d/{cycle}/link"),
        );
        pause(&server, &sandbox, cycle % 2 == 0);
        assert_eq!(info(&server, &sandbox)["state"], "paused");
        assert_eq!(connect(&server, &sandbox)["envdAccessToken"], json!(sandbox.token));
        for (path, content) in &written {
            assert_eq!(&sandbox.read(path).body, content, "{path} after cycle {cycle}");
        }
        let log: Vec<String> = (0..=cycle).map(|number| number.to_string()).collect();
        assert_eq!(sandbox.must("user", &format!("cat d/{cycle}/link")).lines().collect::<Vec<_>>(), log);
    }
}

#[test]
fn memory_is_kept_by_a_memory_pause_and_only_by_that() {
    let server = Server::start();
    let sandbox = server.create();
    let boot_id = || sandbox.read("/proc/sys/kernel/random/boot_id").text();
    let first = boot_id();
    assert_eq!(first.trim().len(), 36, "{first:?}");
    let mut sleeper = sandbox.start_as("user", "exec sleep 3600");
    let pid = sleeper.pid();
    pause(&server, &sandbox, true);
    assert_eq!(sandbox.request(49983, "GET", "/health", &[], b"").status, 502);
    assert!(sleeper.next_event().is_err(), "a stream over the pause is broken, not ended");
    connect(&server, &sandbox);
    assert_eq!(boot_id(), first);
    sandbox.must("user", &format!("kill -0 {pid}"));
    pause(&server, &sandbox, false);
    connect(&server, &sandbox);
    assert_ne!(boot_id(), first);
    assert!(!sandbox.run("pgrep -x sleep").ok());
}

#[test]
fn timeouts_end_sandboxes_on_time() {
    let server = Server::start();
    let before = Instant::now();
    let ending = server.create_with(json!({ "templateID": "base", "timeout": 6 }));
    let pausing = server.create_with(json!({ "templateID": "base", "timeout": 6, "autoPause": true }));
    let created = Instant::now();
    pausing.must("user", "echo kept > kept");
    let alive = |sandbox: &Sandbox| sandbox.request(49983, "GET", "/health", &[], b"").status == 204;
    for sandbox in [&ending, &pausing] {
        let reply = sandbox.request(49983, "GET", "/health", &[], b"");
        assert_eq!(reply.status, 204, "{:?} after create: {}", before.elapsed(), reply.text());
    }
    eventually("the first has left", Duration::from_secs(9), || (!alive(&ending)).then_some(()));
    assert!(before.elapsed() >= Duration::from_secs(6), "ended after {:?}", before.elapsed());
    eventually("both have left", Duration::from_secs(6), || (!alive(&pausing)).then_some(()));
    assert!(created.elapsed() < Duration::from_secs(7), "ended only after {:?}", created.elapsed());
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", ending.id), None).status, 404);
    assert_eq!(info(&server, &pausing)["state"], "paused");
    connect(&server, &pausing);
    assert_eq!(pausing.must("user", "cat kept").trim(), "kept");
}

#[test]
fn a_killed_server_loses_nothing() {
    let mut server = Server::start();
    let holdings = Holdings::for_server(&server);
    let (running, frozen, stopped) = (server.create(), server.create(), server.create());
    for sandbox in [&running, &frozen, &stopped] {
        sandbox.must("user", "echo work > work");
    }
    let pid = running.start_as("user", "exec sleep 3600").pid();
    let frozen_pid = frozen.start_as("user", "exec sleep 3600").pid();
    pause(&server, &frozen, true);
    pause(&server, &stopped, false);
    let before: Vec<Value> = [&running, &frozen, &stopped].map(|sandbox| info(&server, sandbox)).into();

    server.kill_9();
    server.start_again();
    let [running, frozen, stopped] = [&running, &frozen, &stopped].map(|sandbox| sandbox.at(&server.address));
    let after: Vec<Value> = [&running, &frozen, &stopped].map(|sandbox| info(&server, sandbox)).into();
    for (before, after) in before.iter().zip(&after) {
        for key in ["sandboxID", "state", "startedAt", "endAt", "envdAccessToken"] {
            assert_eq!(before[key], after[key], "{key}");
        }
    }
    running.must("user", &format!("kill -0 {pid} && cat work"));
    connect(&server, &frozen);
    frozen.must("user", &format!("kill -0 {frozen_pid} && cat work"));
    connect(&server, &stopped);
    stopped.must("user", "cat work");
    for sandbox in [&running, &frozen, &stopped] {
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    }
    assert_eq!(holdings.all(), Vec::<String>::new());
}

#[test]
fn a_timeout_that_passed_without_a_server_is_honoured() {
    let mut server = Server::start();
    let holdings = Holdings::for_server(&server);
    let ending = server.create_with(json!({ "templateID": "base", "timeout": 1 }));
    let pausing = server.create_with(json!({ "templateID": "base", "timeout": 1, "autoPause": true }));
    pausing.must("user", "echo kept > kept");
    let ends = Instant::now() + Duration::from_millis(1200);
    server.kill_9();
    eventually("the leases have ended", Duration::from_secs(2), || (Instant::now() > ends).then_some(()));
    server.start_again();
    let pausing = pausing.at(&server.address);
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", ending.id), None).status, 404);
    assert_eq!(info(&server, &pausing)["state"], "paused");
    connect(&server, &pausing);
    assert_eq!(pausing.must("user", "cat kept").trim(), "kept");
    assert_eq!(holdings.sandboxes(), BTreeSet::from([pausing.id]));
}

#[test]
fn a_server_killed_at_any_moment_leaves_only_usable_sandboxes() {
    let mut server = Server::start();
    let holdings = Holdings::for_server(&server);
    for round in 0..repeats(4, 40) {
        let (address, key) = (server.address.clone(), server.key.clone());
        let busy: Vec<_> = (0..4)
            .map(|worker| {
                let (address, key) = (address.clone(), key.clone());
                std::thread::spawn(move || create_and_end(&address, &key, worker))
            })
            .collect();
        // A fixed sleep per round, so that the moment of the crash varies.
        std::thread::sleep(Duration::from_millis(20 + (round as u64 * 37) % 180));
        server.kill_9();
        for worker in busy {
            worker.join().expect("a worker ends when the server is gone");
        }
        server.start_again();
        for (id, state) in list(&server) {
            let token =
                info(&server, &Sandbox::new(&server.address, id.clone(), String::new()))["envdAccessToken"].clone();
            let sandbox = Sandbox::new(&server.address, id, token.as_str().expect("a token").to_owned());
            if state == "paused" {
                connect(&server, &sandbox);
            }
            assert_eq!(sandbox.must("user", "echo usable").trim(), "usable", "round {round}");
        }
        assert_eq!(holdings.sandboxes(), list(&server).into_keys().collect(), "round {round}");
        for id in list(&server).keys() {
            assert_eq!(server.call("DELETE", &format!("/sandboxes/{id}"), None).status, 204);
        }
        assert_eq!(holdings.all(), Vec::<String>::new(), "round {round}");
    }
}

/// Creates, pauses and kills sandboxes until the server is gone.
fn create_and_end(address: &str, key: &str, worker: usize) {
    let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
    let call = |method: &str, path: &str, body: &[u8]| testing::http::request(address, method, path, &headers, body);
    for step in worker.. {
        let Ok(reply) = call("POST", "/v2/sandboxes", br#"{"templateID":"base"}"#) else { return };
        if !reply.complete || reply.status != 201 {
            return;
        }
        let id = reply.json()["sandboxID"].as_str().expect("an id").to_owned();
        let next = match step % 3 {
            0 => call("POST", &format!("/sandboxes/{id}/pause"), br#"{"memory":true}"#),
            1 => call("POST", &format!("/sandboxes/{id}/pause"), br#"{"memory":false}"#),
            _ => call("DELETE", &format!("/sandboxes/{id}"), b""),
        };
        if next.is_err() {
            return;
        }
    }
}

#[test]
fn many_sandboxes_live_side_by_side() {
    let server = Server::start();
    let holdings = Holdings::for_server(&server);
    let count = repeats(60, 200);
    let sandboxes: Vec<Sandbox> = (0..count).map(|_| server.create()).collect();
    for (number, sandbox) in sandboxes.iter().enumerate() {
        sandbox.must("user", &format!("echo {number} > number"));
    }
    for (number, sandbox) in sandboxes.iter().enumerate() {
        assert_eq!(sandbox.read("/home/user/number").text().trim(), number.to_string());
    }
    let reply = server.call("GET", "/v2/sandboxes?limit=1", None);
    assert_eq!(reply.header("x-total-running"), Some(count.to_string().as_str()));
    for sandbox in &sandboxes {
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    }
    assert_eq!(holdings.all(), Vec::<String>::new());
}

#[test]
fn killing_a_sandbox_breaks_its_streams() {
    let server = Server::start();
    let sandbox = server.create();
    let mut running = sandbox.start_as("user", "echo started; exec sleep 3600");
    running.pid();
    let killed = Instant::now();
    assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    assert!(running.collect().is_err(), "the stream is cut, not ended");
    assert!(killed.elapsed() < Duration::from_secs(2), "cut after {:?}", killed.elapsed());
    let reply = sandbox.request(49983, "GET", "/health", &[], b"");
    assert_eq!((reply.status, reply.json()["message"].as_str()), (502, Some("The sandbox was not found")));
}
