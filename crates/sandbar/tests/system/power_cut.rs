//! Power cuts: what a server has acknowledged is on the disk. After each acknowledged call the test
//! copies what the block device has; each copy is then mounted in place of the disk and served, and
//! must hold everything acknowledged until then.
//!
//! Takes root, loop devices, ext4 and btrfs.

use crate::support::{Program, Sandbox, Server, eventually, repeats};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use testing::{Disk, PowerCut};

const DISK_BYTES: u64 = 6 << 30;

/// Looks for what was acknowledged, through the server that was started after the power cut.
type Check = Box<dyn Fn(&Server)>;

/// A server on a disk that may lose its power.
struct Machine {
    server: Server,
    disk: Disk,
    /// What was acknowledged, and what the disk had then; oldest first.
    acknowledged: Vec<(String, Check, PowerCut)>,
}

impl Machine {
    fn start(arguments: &[&str]) -> Self {
        let disk = Disk::new(DISK_BYTES);
        let server = Server::on(&disk.path().join("data"), arguments);
        Self { server, disk, acknowledged: Vec::new() }
    }

    /// The call has been answered: from here on no power cut may take what it did.
    fn acknowledge(&mut self, what: impl Into<String>, check: impl Fn(&Server) + 'static) {
        let cut = self.disk.cut();
        self.acknowledged.push((what.into(), Box::new(check), cut));
    }

    /// Has the power fail after every acknowledged call, one after the other, and looks for all
    /// until then.
    fn check(mut self) {
        let mut checks: Vec<(String, Check)> = Vec::new();
        for (what, check, cut) in std::mem::take(&mut self.acknowledged) {
            self.server.down();
            self.disk.restore(cut);
            self.server.start_again();
            checks.push((what, check));
            let after = &checks.last().expect("it was pushed").0;
            for (what, check) in &checks {
                eprintln!("power cut after: {after}; looking for: {what}");
                check(&self.server);
            }
        }
    }

    fn program(&self, word: &'static str) -> Program {
        let home = self.disk.path().join("home");
        let program = Program::new(word).at(&self.server).variable("XDG_DATA_HOME", home.join("data"));
        program.variable("XDG_CONFIG_HOME", home.join("config"))
    }
}

fn pause(server: &Server, sandbox: &Sandbox, memory: bool) {
    let reply = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": memory })));
    assert_eq!(reply.status, 204, "{}", reply.text());
}

/// The sandbox, resumed if the power cut paused it.
fn resumed(server: &Server, sandbox: &Sandbox) -> Sandbox {
    let reply = server.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    sandbox.at(&server.address)
}

fn content_of(sandbox: &Sandbox, path: &str) -> String {
    let reply = sandbox.read(path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.text()
}

struct Volume {
    id: String,
    token: String,
}

impl Volume {
    fn create(server: &Server, name: &str) -> Self {
        let reply = server.call("POST", "/volumes", Some(json!({ "name": name })));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let text = |key: &str| reply.json()[key].as_str().expect("a text").to_owned();
        Self { id: text("volumeID"), token: text("token") }
    }

    fn call(&self, server: &Server, method: &str, target: &str, body: &[u8]) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token);
        let target = format!("/volumecontent/{}/{target}", self.id);
        let headers = [("Authorization", bearer.as_str())];
        let reply = crate::support::http::request(&server.address, method, &target, &headers, body).expect("an answer");
        (reply.status, reply.text())
    }

    fn put(&self, server: &Server, path: &str, content: &str) {
        let (status, text) = self.call(server, "PUT", &format!("file?path={path}&force=true"), content.as_bytes());
        assert_eq!(status, 201, "{text}");
    }

    /// Demands that the file has this content, or that there is none.
    fn expect(&self, server: &Server, path: &str, content: Option<&str>) {
        let (status, text) = self.call(server, "GET", &format!("file?path={path}"), b"");
        match content {
            Some(content) => assert_eq!((status, text.as_str()), (200, content), "{path}"),
            None => assert_eq!(status, 404, "{path}: {text}"),
        }
    }
}

#[test]
fn power_cut_takes_nothing_of_sandboxes_and_templates() {
    let mut machine = Machine::start(&["--no-studio"]);
    let key = machine.server.key.clone();
    machine.acknowledge("the API key", move |server| assert_eq!(server.key, key));

    for round in 0..repeats(1, 10) {
        let running = machine.server.create();
        machine.acknowledge(format!("{round}: create"), {
            let running = running.clone();
            move |server| drop(resumed(server, &running).must("user", "echo usable"))
        });

        let frozen = machine.server.create();
        assert_eq!(frozen.write("/home/user/deep/file", b"frozen").status, 200);
        frozen.must("user", "echo more >>/home/user/deep/file; ln -s deep/file link; head -c 5M /dev/zero >big");
        pause(&machine.server, &frozen, true);
        machine.acknowledge(format!("{round}: write and pause with memory"), {
            let frozen = frozen.clone();
            move |server| {
                let frozen = resumed(server, &frozen);
                assert_eq!(content_of(&frozen, "/home/user/link"), "frozenmore\n");
                assert_eq!(frozen.must("user", "stat -c %s big").trim(), "5242880");
            }
        });

        let stopped = machine.server.create();
        assert_eq!(stopped.write("/home/user/file", b"stopped").status, 200);
        pause(&machine.server, &stopped, false);
        machine.acknowledge(format!("{round}: write and pause of files"), {
            let stopped = stopped.clone();
            move |server| assert_eq!(content_of(&resumed(server, &stopped), "/home/user/file"), "stopped")
        });

        assert_eq!(running.write("/home/user/file", b"kept").status, 200);
        let reply = machine.server.call("POST", &format!("/sandboxes/{}/snapshots", running.id), Some(json!({})));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let snapshot = reply.json()["snapshotID"].as_str().expect("an id").to_owned();
        machine.acknowledge(format!("{round}: snapshot"), move |server| {
            let copy = server.create_with(json!({ "templateID": snapshot }));
            assert_eq!(content_of(&copy, "/home/user/file"), "kept");
        });

        let copy = machine.server.call("POST", &format!("/sandboxes/{}/fork", stopped.id), Some(json!({})));
        assert!(copy.status < 300, "{} {}", copy.status, copy.text());

        let context = tempfile::tempdir().expect("a directory");
        let dockerfile = "FROM e2bdev/base\nCOPY file /file\nRUN echo built >/built\n";
        std::fs::write(context.path().join("Dockerfile"), dockerfile).expect("our own directory");
        std::fs::write(context.path().join("file"), format!("round {round}")).expect("our own directory");
        let (directory, name) = (context.path().display().to_string(), format!("template-{round}"));
        machine.program("template").must(&["build", "--name", &name, &directory]);
        machine.acknowledge(format!("{round}: template build"), move |server| {
            let built = server.create_with(json!({ "templateID": name }));
            assert_eq!(built.must("user", "cat /file /built"), format!("round {round}built\n"));
        });
    }
    machine.check();
}

#[test]
fn power_cut_takes_nothing_of_volumes() {
    let mut machine = Machine::start(&["--no-studio"]);
    for round in 0..repeats(1, 20) {
        let volume = std::rc::Rc::new(Volume::create(&machine.server, &format!("volume-{round}")));
        let acknowledge = |machine: &mut Machine, what: &str, path: &'static str, content: Option<&'static str>| {
            let volume = std::rc::Rc::clone(&volume);
            machine.acknowledge(format!("{round}: {what}"), move |server| volume.expect(server, path, content));
        };
        volume.put(&machine.server, "/deep/er/file", "one");
        acknowledge(&mut machine, "volume create and write", "/deep/er/file", Some("one"));
        volume.put(&machine.server, "/second", "111");
        machine.acknowledge(format!("{round}: write"), {
            let volume = std::rc::Rc::clone(&volume);
            move |server| {
                let (status, text) = volume.call(server, "GET", "file?path=/second", b"");
                assert!(status == 200 && (text == "111" || text == "222"), "{status} {text}");
            }
        });
        volume.put(&machine.server, "/second", "222");
        acknowledge(&mut machine, "overwrite", "/second", Some("222"));
        let (status, text) = volume.call(&machine.server, "POST", "dir?path=/made/below&force=true", b"");
        assert_eq!(status, 201, "{text}");
        machine.acknowledge(format!("{round}: directory"), {
            let volume = std::rc::Rc::clone(&volume);
            move |server| assert_eq!(volume.call(server, "GET", "path?path=/made/below", b"").0, 200)
        });
        volume.put(&machine.server, "/third", "3");
        let (status, text) = volume.call(&machine.server, "DELETE", "path?path=/third", b"");
        assert_eq!(status, 204, "{text}");
        acknowledge(&mut machine, "removal", "/third", None);
    }
    machine.check();
}

fn repository(directory: &Path) {
    let script = r#"set -e; cd "$0"; git init -q -b main; git config user.email t@example.com; git config user.name T
        echo '<h1>Shop</h1>' >index.html; git add .; git commit -qm one"#;
    let made = std::process::Command::new("/bin/sh").args(["-c", script]).arg(directory).output().expect("a shell");
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn power_cut_takes_nothing_of_workspaces() {
    let mut machine = Machine::start(&["--no-studio"]);
    let source = tempfile::tempdir().expect("a directory");
    repository(source.path());
    for round in 0..repeats(1, 5) {
        let name = format!("shop-{round}");
        let workspace = machine.program("workspace");
        workspace.must(&["create", &name, "--repo", source.path().to_str().expect("text")]);
        let says = |machine: &Machine, line: &'static str, expected: &'static str| {
            let (workspace, name) = (machine.program("workspace"), name.clone());
            move |_: &Server| assert_eq!(workspace.must(&["exec", &name, "-c", line]), expected)
        };
        let check = says(&machine, "cat index.html", "<h1>Shop</h1>\n");
        machine.acknowledge(format!("{round}: workspace create"), check);

        workspace.must(&["exec", &name, "-c", "echo late >late; echo outside >/tmp/outside"]);
        workspace.must(&["pause", &name]);
        let check = says(&machine, "cat late index.html", "late\n<h1>Shop</h1>\n");
        machine.acknowledge(format!("{round}: workspace pause"), check);
    }
    machine.check();
}

#[test]
fn power_cut_takes_no_acknowledged_job() {
    let mut machine = Machine::start(&[]);
    let token = std::fs::read_to_string(machine.server.file("studio/token")).expect("the first user's token");
    for round in 0..repeats(1, 10) {
        let call = {
            let token = token.clone();
            move |server: &Server, method: &str, path: &str, body: &str| {
                let bearer = format!("Bearer {}", token.trim());
                let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
                crate::support::http::request(&server.address, method, path, &headers, body.as_bytes())
                    .expect("an answer")
            }
        };
        let body = json!({ "name": format!("round-{round}"), "goal": "a page" }).to_string();
        let reply = call(&machine.server, "POST", "/api/generation", &body);
        assert_eq!(reply.status, 202, "{}", reply.text());
        let job: Value = reply.json();
        let id = job["job_id"].as_str().unwrap_or_else(|| panic!("job_id in {job}")).to_owned();
        machine.acknowledge(format!("{round}: job"), move |server| {
            let reply = eventually("the studio answers", Duration::from_secs(20), || {
                let reply = call(server, "GET", &format!("/api/generation/{id}/status"), "");
                (reply.status < 500).then_some(reply)
            });
            assert_eq!(reply.status, 200, "{}", reply.text());
        });
    }
    machine.check();
}
