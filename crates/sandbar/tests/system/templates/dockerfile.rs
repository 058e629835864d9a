//! Builds from Dockerfiles, from the context on disk to a sandbox of the template.

use super::{build, cli, create, write};
use crate::support::program::text;
use crate::support::{Server, eventually};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::time::Duration;

const DOCKERFILE: &str = r#"ARG BASE=e2bdev/base
FROM ${BASE}:any AS make
ARG GREETING=hello
WORKDIR /work
COPY source/*.txt ./
RUN <<EOF
cat *.txt > joined
echo "$GREETING" >> joined
EOF

FROM e2bdev/base
ENV PLACE=/app PATH=/app/bin:$PATH
WORKDIR $PLACE
COPY --from=make --chown=user:user --chmod=0640 /work/joined made/
COPY . all/
ADD archive.tar.gz unpacked/
RUN ["sh", "-c", "echo $PLACE > place"]
RUN printf '#!/bin/sh\necho tool\n' > /usr/local/bin/tool && chmod +x /usr/local/bin/tool
LABEL a=b
EXPOSE 8123
CMD ["python3", "-m", "http.server", "8123"]
"#;

#[test]
fn a_dockerfile_with_stages_becomes_a_template() {
    let (server, place) = (Server::start(), tempfile::tempdir().expect("a directory"));
    let context = place.path().join("App Dir");
    write(
        &context,
        &[
            ("Dockerfile", DOCKERFILE),
            (".dockerignore", "ignored\nsource/b*\n"),
            ("ignored", "no"),
            ("source/a.txt", "a\n"),
            ("source/b.txt", "no\n"),
            ("source/c.md", "no"),
        ],
    );
    write(place.path(), &[("secret", "the host's")]);
    symlink("../secret", context.join("out")).expect("a link");
    symlink("/etc/shadow", context.join("absolute")).expect("a link");
    let mut archive = tar::Builder::new(File::create(context.join("archive.tar.gz")).expect("a file"));
    let mut header = tar::Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o600);
    archive.append_data(&mut header, "inner/file", &b"x\n"[..]).expect("an entry");
    archive.into_inner().expect("an archive");
    let directory = context.display().to_string();

    build(&server, &["--build-arg", "GREETING=hej", &directory]);
    let sandbox = create(&server, "app-dir");
    let must = |command: &str| sandbox.must("user", command);
    assert_eq!(must("cat /app/made/joined; stat -c '%U %a' /app/made/joined"), "a\nhej\nuser 640\n");
    assert_eq!(
        must("pwd; cat place; tool; echo $GREETING; echo ${PATH%%:*}; whoami"),
        "/app\n/app\ntool\n\n/app/bin\nuser\n"
    );
    assert_eq!(
        must("ls -A all | sort | tr '\\n' ' '; ls all/source"),
        ".dockerignore Dockerfile absolute archive.tar.gz out source a.txt\nc.md\n"
    );
    let unpacked = sandbox.must("root", "cd /app/unpacked/inner; cat file; stat -c '%U %a' file");
    assert_eq!(unpacked, "x\nroot 600\n", "as the archive says");
    // Links stay links, and lead to no file of the host.
    assert!(!sandbox.run("cat /app/all/out").ok());
    assert!(must("curl -fs http://127.0.0.1:8123/place").contains("/app"), "the start command runs");

    // A repeated build takes every step from the cache. A changed step is built again with all
    // steps after it, and with none before it.
    let cached = |log: &str| log.lines().filter(|line| line.starts_with("CACHED")).count();
    let steps = |log: &str| log.lines().filter(|line| line.contains("] ") && line.starts_with(['C', '['])).count();
    let again = build(&server, &["--build-arg", "GREETING=hej", &directory]);
    let env_and_last = steps(&again) - cached(&again);
    assert!(env_and_last <= 1, "only settings may follow the last kept step: {again}");
    let changed = DOCKERFILE.replace("echo tool", "echo other");
    write(&context, &[("Dockerfile", &changed)]);
    // The Dockerfile is in the context that a step copies, so only steps before that one are
    // cached.
    let partly = build(&server, &["--build-arg", "GREETING=hej", &directory]);
    assert!(
        partly.contains("CACHED") && partly.lines().any(|line| line.starts_with('[') && line.contains("RUN printf")),
        "{partly}"
    );
    assert_eq!(create(&server, "app-dir").must("user", "tool"), "other\n");

    let listed = cli(&server).json(&["list"]);
    let names: Vec<&Value> = listed.as_array().expect("a list").iter().map(|one| &one["aliases"][0]).collect();
    assert!(names.contains(&&Value::from("app-dir")), "{listed}");
    assert!(cli(&server).must(&["show", "app-dir"]).contains("default"));
    let used = cli(&server).fails(1, &["delete", "app-dir"]);
    assert!(used.contains("used by"), "{used}");
}

#[test]
fn a_failed_step_is_shown_in_the_dockerfile() {
    let (server, place) = (Server::start(), tempfile::tempdir().expect("a directory"));
    let context = place.path().display().to_string();
    let attempt = |dockerfile: &str, code: i32| {
        write(place.path(), &[("Dockerfile", dockerfile)]);
        cli(&server).fails(code, &["build", "--name", "broken", &context])
    };
    let message = attempt("FROM e2bdev/base\nRUN echo before\nRUN echo said && exit 7\n", 1);
    assert!(
        message.contains("Dockerfile:3:") && message.contains("exit status 7") && message.contains("said"),
        "{message}"
    );
    let message = attempt("FROM e2bdev/base\nVOLUME /data\n", 1);
    assert!(
        message.contains("Dockerfile:2:1:") && message.contains("\n2 | VOLUME /data") && message.contains("^^^^^^"),
        "{message}"
    );
    let message = attempt("FROM e2bdev/base\nCOPY absent /x\n", 1);
    assert!(message.contains("absent"), "{message}");
    // No failed build made a template.
    let create = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "broken" })));
    assert_eq!(create.status, 404, "{}", create.text());
    write(place.path(), &[("Dockerfile", "FROM e2bdev/base\nRUN exit 3\n")]);
    let failed = cli(&server).run(&["--json", "build", "--name", "broken", &context]);
    let last = text(&failed.stdout).lines().last().map(str::to_owned).expect("a line");
    let error: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!((&error["error"]["step"], &error["error"]["line"]), (&Value::from("3"), &Value::from(2)), "{last}");
}

#[test]
fn a_step_of_an_unknown_user_fails_in_e2b_s_words() {
    let server = Server::start();
    let made = server.call("POST", "/v3/templates", Some(json!({ "name": "ghost" }))).json();
    let named = |field: &str| made[field].as_str().unwrap_or_else(|| panic!("{field} in {made}"));
    let build = format!("templates/{}/builds/{}", named("templateID"), named("buildID"));
    let steps = json!([{ "type": "RUN", "args": ["whoami", "root123"], "force": true }]);
    let start = json!({ "fromImage": "e2bdev/base", "steps": steps });
    assert_eq!(server.call("POST", &format!("/v2/{build}"), Some(start)).status, 202);
    let ended = eventually("the build ends", Duration::from_secs(60), || {
        let status = server.call("GET", &format!("/{build}/status"), None).json();
        (status["status"] == "error" || status["status"] == "ready").then_some(status)
    });
    assert_eq!(
        ended["reason"]["message"],
        "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
        "{ended}"
    );
}
