//! Sandboxes with older daemons: missing features are typed errors, and fallbacks are used where
//! they exist.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use sandbar_sdk::{CallError, Command, CommandError, Connect, FileError, Sandbox, Watch};
use serde_json::json;

use crate::proxy::{Fault, Proxy};
use testing::Server;

/// A sandbox that claims this daemon version.
async fn with_version(server: &Server, version: &str) -> (Proxy, Sandbox) {
    let sandbox = server.sandbox().await;
    let model = sandbox.model();
    let answer = json!({
        "templateID": model.template_id,
        "sandboxID": model.sandbox_id,
        "clientID": model.client_id,
        "envdVersion": version,
        "envdAccessToken": model.envd_access_token,
    });
    let (proxy, body) = (Proxy::to(server.address()), answer.to_string());
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    proxy.on("/connect", Fault::Answer(format!("{head}connection: close\r\n\r\n{body}")), 1);
    let client = server.builder(&proxy.address).build().expect("valid options");
    let old = client.connect(sandbox.id(), Connect::default()).await.expect("it is there");
    assert_eq!(old.envd_version(), version);
    (proxy, old)
}

#[track_caller]
fn lacks(error: impl Into<Refused>, word: &str) {
    let Refused(error) = error.into();
    assert!(matches!(&error, Some(CallError::Unsupported { message, .. }) if message.contains(word)), "{error:?}");
}

struct Refused(Option<CallError>);

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Self {
        Self(if let CommandError::Call(error) = error { Some(error) } else { None })
    }
}

impl From<FileError> for Refused {
    fn from(error: FileError) -> Self {
        Self(if let FileError::Call(error) = error { Some(error) } else { None })
    }
}

#[tokio::test]
async fn missing_daemon_features_are_unsupported() {
    let server = Server::shared(&[]);
    let (_proxy, old) = with_version(&server, "0.1.3").await;
    lacks(old.commands().run("true").await.expect_err("it has no such flag"), "0.3.0");
    let open = old.commands().start(Command::new("whoami; cat").stdin()).await.expect("its input may be open");
    lacks(open.close_stdin().await.expect_err("it has no such call"), "0.5.2");
    let files = old.files();
    lacks(files.watch("/tmp", Watch::default().recursive()).await.expect_err("only one level"), "0.1.4");
    lacks(files.watch("/tmp", Watch::default().include_entry()).await.expect_err("only names"), "0.6.3");
    lacks(files.watch("/tmp", Watch::default().network_mounts()).await.expect_err("only local"), "0.6.4");
    lacks(old.files().with_metadata("a", "b").write("x", "x").await.expect_err("it keeps none"), "0.6.2");
    old.kill().await.expect("it ends");
}

#[tokio::test]
async fn old_daemons_receive_files_as_forms() {
    let server = Server::shared(&[]);
    let (_proxy, old) = with_version(&server, "0.5.6").await;
    let files = old.files();
    let name = "wïth \"quotes\".txt";
    assert_eq!(files.write(name, "in a form").await.expect("it is written").name, name);
    assert_eq!(files.read_text(name).await.expect("it is there"), "in a form");
    let chunks = stream::iter(["one ", "two "].map(|text| Ok::<_, std::io::Error>(Bytes::from(text))));
    files.write_stream(name, chunks).await.expect("it is written");
    assert_eq!(files.read_text(name).await.expect("it is there"), "one two ");
    files.write_many([(name, "many"), ("plain", "many"), ("empty", "")]).await.expect("all are written");
    assert_eq!(files.read_text(name).await.expect("it is there"), "many");
    assert!(files.read("empty").await.expect("it is there").is_empty());

    // Before daemons had a default user, clients named one.
    let (_proxy, older) = with_version(&server, "0.3.9").await;
    let output = older.commands().run(Command::new("whoami").timeout(Duration::MAX)).await.expect("it runs");
    assert_eq!(output.stdout_text(), "user\n");
    let link = older.files().download_url("x", sandbar_sdk::Expiry::Never).expect("a link");
    assert!(link.contains("username=user"), "{link}");
    for sandbox in [old, older] {
        sandbox.kill().await.expect("it ends");
    }
}
