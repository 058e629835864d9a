//! Maintenance of workspaces that no process has open, and their checkpoints before the server
//! ends.

use super::{Down, User, text_of};
use crate::support::program::text;
use crate::support::{Program, eventually};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use uuid::Uuid;
use workspace::records::{Creation, DatabaseRecords, OrphanRecord, OrphanRecords as _, Payer, UsageRecords as _};
use workspace::{METADATA, ORPHAN_GRACE};

/// More than twice the lifetime of a sandbox of the plan below, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A user whose local provider ends a sandbox after half a minute.
fn user_with_short_lifetimes() -> User {
    let user = User::with_settings(|program| program);
    user.configure(
        "listen = \"127.0.0.1:0\"\n[[providers]]\nname = \"local\"\nkind = \"local\"\n\
         [providers.plan]\nlongest_lifetime_seconds = 30\n",
    );
    user
}

/// Ends the server of a user by SIGKILL.
fn kill_server(user: &User) {
    let note = std::fs::read(user.home.path().join("data/sandbar/server.json")).expect("a server runs");
    let note: serde_json::Value = serde_json::from_slice(&note).expect("JSON");
    testing::signal(note["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid"), "KILL");
}

/// Waits until `show` reports that no server answers. `show` starts no server.
fn wait_until_unreachable(user: &User) {
    eventually("no server answers for it", TIMEOUT, || {
        (text_of(&user.workspace.json(&["show", "shop"]), "state") == "unreachable").then_some(())
    });
}

#[test]
fn unattended_workspaces_are_rotated_and_saved_at_their_end() {
    let user = user_with_short_lifetimes();
    let _down = Down(&user);
    let first = text_of(&user.workspace.json(&["create", "long"]), "sandboxID");
    user.exec("long", "echo kept >file");
    user.workspace.must(&["create", "short", "--ttl", "45s"]);
    user.exec("short", "echo last >file");

    // `show` takes no lease and extends no timeout.
    eventually("another sandbox has the workspace", TIMEOUT, || (user.sandbox("long") != first).then_some(()));
    assert_eq!(user.exec("long", "cat file"), "kept\n");
    eventually("the end of the other one's time", TIMEOUT, || {
        (text_of(&user.workspace.json(&["show", "short"]), "state") == "stopped").then_some(())
    });
    let over = user.workspace.fails(1, &["exec", "short", "--", "true"]);
    assert!(over.contains("its time was over") && over.contains("restore"), "{over}");
    user.workspace.must(&["restore", "short"]);
    assert_eq!(user.exec("short", "cat file"), "last\n");
}

#[test]
fn down_saves_workspaces_first_with_and_without_a_server() {
    let user = User::with_settings(|program| program);
    user.configure("listen = \"127.0.0.1:0\"\n");
    let _down = Down(&user);
    let id = text_of(&user.workspace.json(&["create", "shop"]), "sandboxID");
    user.exec("shop", "echo one >file");
    let ended = user.down.json(&[]);
    assert_eq!(
        (text_of(&ended["saved"][0], "workspace"), text_of(&ended["saved"][0], "sandboxID")),
        ("shop".into(), id),
        "{ended}"
    );
    assert_eq!((&ended["unsaved"], &ended["sandboxesEnded"]), (&serde_json::json!([]), &1.into()), "{ended}");
    assert_eq!(text_of(&user.workspace.json(&["list"])[0], "state"), "stopped", "nothing runs, and nothing costs");
    let back = user.workspace.run(&["exec", "shop", "-c", "cat file"]);
    assert_eq!(text(&back.stdout), "one\n", "it comes back with what was in no snapshot before");
    assert!(text(&back.stderr).contains("was ended after its files were saved"), "{back:?}");

    user.exec("shop", "echo two >file");
    kill_server(&user);
    wait_until_unreachable(&user);
    let ended = user.down.run(&[]);
    assert!(ended.status.success() && text(&ended.stdout).contains("saved workspace shop"), "{ended:?}");
    assert_eq!(user.exec("shop", "cat file"), "two\n", "a server was started to save it");

    // The sandbox of this workspace was killed by another command: `down` starts no server to find
    // it.
    let lost = text_of(&user.workspace.json(&["create", "lost"]), "sandboxID");
    let sandbox = Program::new("sandbox").variable("XDG_DATA_HOME", user.home.path().join("data"));
    sandbox.must(&["kill", &lost]);
    user.down.must(&[]);
    let again = user.down.must(&[]);
    assert!(again.contains("no server was running"), "{again}");
    assert_eq!(user.exec("shop", "cat file"), "two\n");

    // A user whose records do not have the workspace.
    let data = user.home.path().join("data/sandbar");
    let stranger = User::with_settings(|program| program.variable("SANDBAR_DATA", &data));
    let refused = stranger.down.fails(1, &[]);
    assert!(
        refused.contains("nothing was ended") && refused.contains("shop") && refused.contains("--yes"),
        "{refused}"
    );
    assert_eq!(user.exec("shop", "cat file"), "two\n", "nothing was");
    let ended = stranger.down.json(&["--yes"]);
    assert_eq!(text_of(&ended["unsaved"][0], "workspace"), "shop", "{ended}");
}

/// The studio has its own records of workspaces, in the server's data directory.
#[test]
fn down_saves_the_studio_s_workspaces_and_records_their_end() {
    let user = User::with_settings(|program| program);
    user.configure("listen = \"127.0.0.1:0\"\n");
    let _down = Down(&user);
    user.workspace.must(&["create", "shop"]);
    let data = user.home.path().join("data/sandbar");
    let studio = User::with_settings(|program| program.variable("SANDBAR_DATA", &data));
    let place = data.join("studio").display().to_string();
    studio.configure(&format!(
        "[records]\nurl = \"sqlite://{place}/records.sqlite\"\n[objects]\nurl = \"file://{place}/objects\"\n"
    ));
    let job = text_of(&studio.workspace.json(&["create", "job"]), "sandboxID");
    studio.exec("job", "echo built >file");

    let ended = user.down.json(&[]);
    let saved: Vec<String> = (0..2).map(|at| text_of(&ended["saved"][at], "workspace")).collect();
    assert!(saved.contains(&"job".to_owned()) && saved.contains(&"shop".to_owned()), "{ended}");
    let shown = studio.workspace.json(&["list"]);
    assert_eq!(
        (text_of(&shown[0], "workspace"), text_of(&shown[0], "state")),
        ("job".into(), "stopped".into()),
        "{shown}"
    );
    assert!(!shown.to_string().contains(&job), "nothing runs, and nothing costs: {shown}");
    let back = studio.workspace.run(&["exec", "job", "-c", "cat file"]);
    assert_eq!(text(&back.stdout), "built\n", "{back:?}");
    assert!(text(&back.stderr).contains("was ended after its files were saved"), "{back:?}");
}

/// Opens the records of a user.
async fn open_records(user: &User) -> DatabaseRecords {
    let url = format!("sqlite://{}", user.home.path().join("data/sandbar/workspaces/records.sqlite").display());
    DatabaseRecords::open(&url.into()).await.expect("the user's records")
}

/// Records a creation that began `age` ago, and creates its sandbox, which no record of a workspace
/// names. Returns the sandbox's id.
fn create_orphan(user: &User, sandbox: &Program, of: &str, provider: &str, age: SignedDuration) -> String {
    let id = Uuid::new_v4();
    let payer = Payer { project: of.to_owned(), job: None };
    let provider = provider.parse().expect("a name");
    let creation = Creation { id, at: Timestamp::now() - age, provider, payer, sandbox: None };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let records = open_records(user).await;
        records.begin_creation(&creation).await.expect("noted");
        records.close().await.expect("closed");
    });
    let pairs = [format!("{METADATA}={of}"), format!("sandbar.creation={id}")];
    sandbox.must(&["create", "--timeout", "1h", "-m", &pairs[0], "-m", &pairs[1]]).trim().to_owned()
}

/// Changes the records as if a day had passed since a sweep found the orphans.
fn age_orphans(user: &User) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let records = open_records(user).await;
        for orphan in records.orphans().await.expect("read") {
            let (seen_at, watched) = (orphan.seen_at - ORPHAN_GRACE, orphan.watched + ORPHAN_GRACE);
            records.record_orphan(&OrphanRecord { seen_at, watched, ..orphan }).await.expect("written");
        }
        records.close().await.expect("closed");
    });
}

#[test]
fn an_orphan_is_paused_reported_and_killed_after_a_day() {
    let user = User::with_settings(|program| program);
    user.configure("listen = \"127.0.0.1:0\"\n");
    let _down = Down(&user);
    let own = text_of(&user.workspace.json(&["create", "shop"]), "sandboxID");
    let sandbox = Program::new("sandbox").variable("XDG_DATA_HOME", user.home.path().join("data"));
    let old = create_orphan(&user, &sandbox, "gone", "local", SignedDuration::from_mins(10));
    let new = create_orphan(&user, &sandbox, "gone", "local", SignedDuration::ZERO);
    let leftover = create_orphan(&user, &sandbox, "shop", "local", SignedDuration::from_mins(10));

    let take_over = || {
        kill_server(&user);
        wait_until_unreachable(&user);
        assert_eq!(user.exec("shop", "echo hi"), "hi\n", "another server takes over");
    };
    take_over();
    eventually("the orphan is reported", TIMEOUT, || {
        text(&user.workspace.run(&["list"]).stderr).contains(&format!("attach gone {old}")).then_some(())
    });
    assert_eq!(text_of(&sandbox.json(&["info", &old]), "state"), "paused");
    assert_eq!(text_of(&sandbox.json(&["info", &leftover]), "state"), "running", "its workspace has a record");
    let doctor = Program::new("doctor").variable("XDG_DATA_HOME", user.home.path().join("data")).run(&["--json"]);
    assert!(text(&doctor.stdout).contains(&old), "{doctor:?}");

    age_orphans(&user);
    take_over();
    let there = || sandbox.must(&["list", "--quiet"]).lines().map(str::to_owned).collect::<Vec<_>>();
    eventually("the orphan is ended", TIMEOUT, || (!there().contains(&old)).then_some(()));
    let there = there();
    assert!(there.contains(&own) && there.contains(&new), "another process may still be making it: {there:?}");
    assert!(there.contains(&leftover), "its workspace has a record: {there:?}");
}

/// A user sets the variables that a server prints, and a second server has the same records.
#[test]
fn two_names_and_two_servers_end_no_workspace() {
    let user = User::with_settings(|program| program);
    user.configure("listen = \"127.0.0.1:0\"\n");
    let _down = Down(&user);
    let own = text_of(&user.workspace.json(&["create", "shop"]), "sandboxID");
    user.exec("shop", "echo unsaved >file");
    let data = user.home.path().join("data/sandbar");
    let note: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data.join("server.json")).expect("a server runs")).expect("JSON");
    let url = text_of(&note, "url").replace("127.0.0.1", "localhost");
    let printed = |program: Program| {
        let program = program.variable("XDG_DATA_HOME", user.home.path().join("data"));
        let program = program.variable("XDG_CONFIG_HOME", user.home.path().join("config"));
        let program = program.variable("E2B_API_KEY", text_of(&note, "api_key")).variable("E2B_API_URL", &url);
        program.variable("E2B_SANDBOX_URL", &url)
    };
    let pasted = printed(Program::new("workspace"));
    let second = pasted.json(&["create", "pasted"]);
    assert_eq!(text_of(&second, "provider"), "local", "the printed variables name this machine: {second}");
    assert_eq!(user.exec("pasted", "echo hi"), "hi\n", "also without the variables");

    // A second server with the same records, which knows the first one as a provider of another
    // name.
    let sandbox = Program::new("sandbox").variable("XDG_DATA_HOME", user.home.path().join("data"));
    let old = create_orphan(&user, &sandbox, "gone", "e2b", SignedDuration::from_mins(10));
    let other = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary directory");
    let other_data = other.path().to_str().expect("text");
    let _other_down = DownAt(&user, other_data);
    let third = pasted.json(&["--data", other_data, "create", "third", "--provider", "local"]);
    let third = text_of(&third, "sandboxID");
    let elsewhere = Program::new("sandbox").variable("SANDBAR_DATA", other.path());
    let others = create_orphan(&user, &elsewhere, "away", "local", SignedDuration::from_mins(10));
    let restart_second = || {
        let note: serde_json::Value =
            serde_json::from_slice(&std::fs::read(other.path().join("server.json")).expect("it runs")).expect("JSON");
        testing::signal(note["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid"), "KILL");
        pasted.must(&["--data", other_data, "exec", "third", "--", "true"]);
    };
    let listed = || text(&user.workspace.run(&["list"]).stderr);
    let running = |program: &Program, id: &str| text_of(&program.json(&["info", id]), "state");
    // The first server lives, and has swept when it started: only the second one sweeps now.
    restart_second();
    eventually("the second server reports its own", TIMEOUT, || {
        listed().contains(&format!("attach away {others}")).then_some(())
    });
    age_orphans(&user);
    restart_second();
    eventually("the second server has swept twice", TIMEOUT, || {
        (!elsewhere.must(&["list", "--quiet"]).contains(&others)).then_some(())
    });
    assert!(!listed().contains(&old), "only the server that has it sweeps it: {}", listed());
    let states = [&old, &own, &user.sandbox("pasted")].map(|id| running(&sandbox, id));
    assert_eq!(states, ["running", "running", "running"]);
    kill_server(&user);
    wait_until_unreachable(&user);
    assert_eq!(user.exec("shop", "cat file"), "unsaved\n");
    eventually("the first server reports it", TIMEOUT, || {
        listed().contains(&format!("attach gone {old}")).then_some(())
    });
    eventually("it is paused", TIMEOUT, || (running(&sandbox, &old) == "paused").then_some(()));
    assert_eq!(
        (running(&sandbox, &own), running(&sandbox, &user.sandbox("pasted"))),
        ("running".into(), "running".into())
    );
    assert_eq!(running(&elsewhere, &third), "running");
}

/// Ends the server of another data directory, on drop.
struct DownAt<'a>(&'a User, &'a str);

impl Drop for DownAt<'_> {
    fn drop(&mut self) {
        let _ = self.0.down.run(&["--yes", "--data", self.1]);
    }
}
