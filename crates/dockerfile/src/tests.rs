//! Table tests: Dockerfiles and their plans.

use crate::{Action, CopyFrom, DockerfileError, Options, Origin, Plan, plan};

fn read(text: &str) -> Result<Plan, DockerfileError> {
    plan(text, &Options { platform: "linux/amd64".to_owned(), ..Options::default() })
}

/// Renders one line per step, without the two steps that open every stage and the two that close
/// the last one.
fn render(plan: &Plan) -> String {
    let mut lines = Vec::new();
    for stage in &plan.stages {
        let name = stage.name.as_ref().map(|name| format!(" AS {name}")).unwrap_or_default();
        lines.push(match &stage.origin {
            Origin::Image(image) => format!("FROM {image}{name}"),
            Origin::Stage(index) => format!("FROM #{index}{name}"),
        });
        for step in &stage.steps {
            let line = match &step.action {
                Action::Run(line) => format!("RUN {line}"),
                Action::Env(pairs) => format!("ENV {pairs:?}"),
                Action::Workdir(path) => format!("WORKDIR {path}"),
                Action::User(name) => format!("USER {name}"),
                Action::Copy(copy) => {
                    let from = match copy.from {
                        CopyFrom::Context => String::new(),
                        CopyFrom::Stage(index) => format!(" #{index}"),
                    };
                    let unpack = if copy.unpack { " unpacked" } else { "" };
                    let owner = copy.owner.as_ref().map(|owner| format!(" {owner}")).unwrap_or_default();
                    let mode = copy.mode.map(|mode| format!(" {mode:o}")).unwrap_or_default();
                    format!("COPY{from}{unpack} {:?} {}{owner}{mode}", copy.sources, copy.destination)
                }
            };
            if !["USER root", "WORKDIR /", "USER user", "WORKDIR /home/user"].contains(&line.as_str()) {
                lines.push(line);
            }
        }
    }
    lines.extend(plan.start_command.iter().map(|start| format!("START {start}")));
    lines.extend((!plan.ports.is_empty()).then(|| format!("PORTS {:?}", plan.ports)));
    lines.join("\n")
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let plan = read(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(render(&plan).trim_end(), expected.trim(), "{text}");
}

#[test]
fn instructions_become_steps() {
    check(
        r#"# syntax=docker/dockerfile:1
# a comment
FROM python:3.12 AS base
LABEL a="b c" d=e
RUN apt-get update && \
    # why not

    apt-get install -y git
COPY --chown=user:user --chmod=0755 a.py "b c.py" /app/
COPY ["d e", "/x/"]
ENV A=1 B="two words" C='$A' D=\$A
ENV OLD the rest
RUN ["echo", "it's", "a b"]
EXPOSE 80 443/tcp 53/udp 9000-9002
WORKDIR /app
ENTRYPOINT ["python"]
CMD ["-m", "http.server"]
"#,
        r#"
FROM python:3.12 AS base
RUN apt-get update &&     apt-get install -y git
COPY ["a.py", "b c.py"] /app/ user:user 755
COPY ["d e"] /x/
ENV [("A", "1"), ("B", "two words"), ("C", "\\$A"), ("D", "\\$A")]
ENV [("OLD", "the rest")]
RUN echo 'it'"'"'s' 'a b'
WORKDIR /app
START python -m http.server
PORTS [80, 443, 9000, 9001, 9002]"#,
    );
}

#[test]
fn only_needed_stages_are_planned() {
    check(
        "FROM a AS one\nRUN make\nFROM b AS unused\nRUN no\nFROM one AS two\nRUN more\nFROM c\nCOPY --from=two /x /y\nCOPY --from=0 /p /q\n\
         COPY --from=nginx:1 /etc/nginx /n/\nCOPY --from=nginx:1 /e /f",
        "
FROM a AS one
RUN make
FROM #0 AS two
RUN more
FROM nginx:1
FROM c
COPY #1 [\"/x\"] /y
COPY #0 [\"/p\"] /q
COPY #2 [\"/etc/nginx\"] /n/
COPY #2 [\"/e\"] /f",
    );
    let options = Options { target: Some("One".to_owned()), ..Options::default() };
    let only = plan("FROM a AS one\nRUN x\nFROM one\nRUN y", &options).expect("a plan");
    assert_eq!(render(&only), "FROM a AS one\nRUN x");
}

#[test]
fn variables_expand_where_docker_expands_them() {
    check(
        "ARG V=3\nARG SUFFIX\nFROM node:${V}${SUFFIX:-.1}${SUFFIX:+no}\nARG V\nARG W=w$V\nENV P=/a/$V PATH=/x:$PATH Q=${P}\nENV R=$P/r S=${PATH}:y\n\
         ENV V=env\nWORKDIR $R\nCOPY $W/*.txt ${P}/\nRUN echo $V $W\nUSER app$V\nADD --chown=$W x.tar.gz .",
        r#"
FROM node:3.1
ENV [("P", "/a/3"), ("PATH", "/x:${PATH}"), ("Q", "${P}")]
ENV [("R", "/a/3/r"), ("S", "${PATH}:y")]
ENV [("V", "env")]
WORKDIR /a/3/r
COPY ["w3/*.txt"] /a/3/
RUN export W=w3; echo $V $W
USER appenv
COPY unpacked ["x.tar.gz"] ./ w3"#,
    );
    let build_args = [("TOKEN".to_owned(), "it's".to_owned())].into();
    let options = Options { build_args, ..Options::default() };
    let plan = plan("FROM a\nARG TOKEN=default\nRUN use", &options).expect("a plan");
    assert_eq!(render(&plan), "FROM a\nRUN export TOKEN='it'\"'\"'s'; use");
}

#[test]
fn platform_arguments_are_predefined() {
    check("FROM --platform=$BUILDPLATFORM a\nARG TARGETARCH\nRUN x", "FROM a\nRUN export TARGETARCH=amd64; x");
}

#[test]
fn here_documents_become_scripts() {
    check("FROM a\nRUN <<EOF\necho one\n# two\n\necho $three\nEOF", "FROM a\nRUN echo one\n# two\n\necho $three\n");
    check(
        "FROM a\nRUN cat <<-'X' > /f && cat <<Y\n\tbody\n\tX\nb\nY",
        "FROM a\nRUN cat <<-'X' > /f && cat <<Y\nbody\nX\nb\nY\n",
    );
    check("FROM a\nRUN echo $((1<<2)) '<<EOF'", "FROM a\nRUN echo $((1<<2)) '<<EOF'");
    let plan = read("FROM a\nRUN <<EOF\n#!/usr/bin/env python3\nprint('x')\nEOF").expect("a plan");
    assert!(render(&plan).contains("chmod +x"), "{}", render(&plan));
}

#[test]
fn start_commands_support_shell_and_exec_form() {
    for (text, expected) in [
        ("CMD serve --port 80 | tee log", "serve --port 80 | tee log"),
        ("ENTRYPOINT run it\nCMD [\"x\"]", "run it"),
        ("ENTRYPOINT [\"a b\"]\nCMD c d", "'a b' /bin/sh -c 'c d'"),
        ("SHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nCMD a | b", "/bin/bash -o pipefail -c 'a | b'"),
        ("CMD [\"x\"]\nCMD [\"y\", \"\"]", "y ''"),
    ] {
        let plan = read(&format!("FROM a\n{text}")).expect(text);
        assert_eq!(plan.start_command.as_deref(), Some(expected), "{text}");
    }
    assert_eq!(read("FROM a\nCMD []").expect("a plan").start_command, None);
    check("FROM a\nSHELL [\"/bin/bash\", \"-c\"]\nRUN a 'b'", "FROM a\nRUN /bin/bash -c 'a '\"'\"'b'\"'\"''");
}

#[test]
fn the_last_stage_ends_with_sandbox_defaults() {
    let last = |text: &str| {
        let mut steps = read(text).expect(text).stages.pop().expect("a stage").steps;
        steps.drain(..2);
        steps.into_iter().map(|step| step.action).collect::<Vec<_>>()
    };
    let (user, home) = (Action::User("user".to_owned()), Action::Workdir("/home/user".to_owned()));
    assert_eq!(last("FROM a"), [user.clone(), home.clone()]);
    assert_eq!(last("FROM a\nUSER root:root"), [Action::User("root".to_owned()), home]);
    assert_eq!(last("FROM a\nWORKDIR /x"), [Action::Workdir("/x".to_owned()), user]);
}

#[test]
fn escape_directives_and_crlf_are_supported() {
    check("# escape=`\r\nFROM a\r\nRUN one `\r\n  two\r\n", "FROM a\nRUN one   two");
    check("\u{feff}from a as B\nrun x", "FROM a AS b\nRUN x");
}

#[test]
fn unsupported_instructions_are_errors_with_a_position() {
    for (text, line, column, length, message) in [
        ("", 1, 1, 1, "no FROM"),
        ("RUN x", 1, 1, 3, "FROM before it"),
        ("FROM", 1, 1, 4, "at least one argument"),
        ("FROM a b", 1, 8, 1, "IMAGE AS NAME"),
        ("FROM scratch", 1, 6, 7, "need a shell"),
        ("FROM $NONE", 1, 6, 5, "names no image"),
        ("FROM --platform=windows/amd64 a", 1, 6, 24, "linux/amd64"),
        ("FROM a AS x\nFROM b AS X", 2, 11, 1, "already"),
        ("FROM a\n\n  ONBUILD RUN x", 3, 3, 7, "ONBUILD"),
        ("FROM a\nVOLUME /x", 2, 1, 6, "VOLUME"),
        ("FROM a\nHEALTHCHECK NONE", 2, 1, 11, "HEALTHCHECK"),
        ("FROM a\nRUNN x", 2, 1, 4, "no instruction RUNN"),
        ("FROM a\nRUN --mount=type=cache,target=/x y", 2, 5, 28, "--mount"),
        ("FROM a\nRUN <<EOF\nx", 2, 5, 5, "no line is 'EOF'"),
        ("FROM a\nRUN []", 2, 5, 2, "needs a command"),
        ("FROM a\nCOPY x", 2, 1, 4, "destination"),
        ("FROM a\nCOPY x y /z", 2, 6, 6, "'/z/'"),
        ("FROM a\nCOPY ../x /z", 2, 6, 4, "out of the build context"),
        ("FROM a\nCOPY --link x /z", 2, 6, 6, "--link"),
        ("FROM a\nCOPY --chmod=u+x x /z", 2, 6, 11, "octal"),
        ("FROM a\nCOPY --from=3 x /z", 2, 6, 8, "no stage 3"),
        ("FROM a AS s\nCOPY --from=s x /z", 2, 6, 8, "itself"),
        ("FROM a\nCOPY \\\n  x \\\n  $HOME/y", 4, 3, 5, "no ARG or ENV"),
        ("FROM a\nCOPY <<EOF /f\nx\nEOF", 2, 6, 5, "written in the Dockerfile"),
        ("FROM a\nADD https://x.example/y /z", 2, 5, 19, "URL"),
        ("FROM a\nADD --from=x y /z", 2, 5, 8, "--from"),
        ("FROM a\nENV A=\"b", 2, 7, 1, "quote"),
        ("FROM a\nENV A", 2, 5, 1, "value"),
        ("FROM a\nENV A=${B", 2, 7, 3, "only ${NAME}"),
        ("FROM a\nENV A=${B:?x}", 2, 7, 4, "only ${NAME}"),
        ("FROM a\nARG 1x", 2, 5, 2, "name of an ARG"),
        ("FROM a\nUSER 1000", 2, 6, 4, "numbers"),
        ("FROM a\nUSER a:b", 2, 6, 3, "group"),
        ("FROM a\nEXPOSE http", 2, 8, 4, "no port"),
        ("FROM a\nSHELL bash", 2, 7, 4, "JSON"),
    ] {
        let error = read(text).expect_err(text);
        assert_eq!((error.line, error.column, error.length), (line, column, length), "{text}\n{error}");
        assert!(error.message.contains(message), "{text}\n{error}");
    }
}

#[test]
fn an_error_shows_carets_below_its_position() {
    let error = read("FROM a\n\tCOPY --link a b").expect_err("it cannot be built");
    let expected = "Dockerfile:2:7: COPY --link is not supported\n  |\n2 | \tCOPY --link a b\n  | \t     ^^^^^^";
    assert_eq!(error.to_string(), expected);
    let options = Options { build_args: [("X".to_owned(), String::new())].into(), ..Options::default() };
    assert!(plan("FROM a", &options).expect_err("no ARG declares it").message.contains("--build-arg X"));
}

#[test]
fn values_that_double_are_refused() {
    let doubled: String = (0..40).map(|_| "ENV A=$A$A\n").collect();
    let error = read(&format!("FROM a\nENV A=0123456789\n{doubled}")).expect_err("40 times");
    assert!(error.message.contains("131072 bytes"), "{error}");
    assert_eq!((error.line, error.column), (16, 9), "{error}");
    let arguments: String = (0..40).map(|_| "ARG A=$A$A\n").collect();
    read(&format!("ARG A=0123456789\n{arguments}FROM a")).expect_err("40 times");
}

#[test]
fn an_error_quotes_the_beginning_of_a_long_value() {
    let doubled: String = (0..12).map(|_| "ENV A=$A$A\n").collect();
    let error = read(&format!("FROM a\nENV A=0123456789\n{doubled}USER $A")).expect_err("no user");
    assert!(error.message.starts_with("USER needs the name of a user, which '0123456789"), "{error}");
    assert!(error.message.ends_with('…') && error.message.chars().count() == 501, "{error}");
}

#[test]
fn a_plan_is_bounded_however_short_its_file_is() {
    let value = "v".repeat(100_000);
    let head = format!("FROM a AS s0\nARG A={value}\n");
    let stages: String = (1..100).map(|number| format!("FROM s{} AS s{number}\n", number - 1)).collect();
    for text in [
        head.clone() + &"RUN a\n".repeat(100),
        head.replace("ARG", "ENV") + &stages,
        format!("FROM a\nSHELL [\"{value}\"]\n{}", "RUN a\n".repeat(100)),
        format!("FROM a\nSHELL [\"{value}\"]\n{}", "CMD a\n".repeat(100)),
        "FROM a\n".to_owned() + &"EXPOSE 1-65535\n".repeat(100),
    ] {
        let error = read(&text).expect_err("it grows");
        assert!(error.message.contains("the build takes more than 4194304 bytes"), "{}", error.message);
    }
    let many: String = (0..2000).map(|number| format!("FROM a AS s{number}\n")).collect();
    assert!(read(&many).expect_err("many").message.contains("1000 stages"));
    let sources: String = (0..2000).map(|number| format!("COPY --from=i{number} a b\n")).collect();
    assert!(read(&format!("FROM a\n{sources}")).expect_err("many").message.contains("1000 stages"));
}

#[test]
fn variables_within_variables_are_bounded() {
    let nested = |depth: usize| format!("FROM a\nENV A={}x{}", "${B:-".repeat(depth), "}".repeat(depth));
    read(&nested(16)).expect("16 of them");
    let error = read(&nested(150_000)).expect_err("it would overflow the stack");
    assert!(error.message.contains("more than 16 variables"), "{}", error.message);
}

#[test]
fn a_port_that_is_exposed_twice_counts_once() {
    check("FROM a\nEXPOSE 80 80 79-81", "FROM a\nPORTS [79, 80, 81]");
}

#[test]
fn arbitrary_text_never_panics() {
    for text in [
        "FROM \"",
        "FROM a\nENV",
        "FROM a\nCOPY [\"",
        "\\",
        "FROM a\\",
        "FROM ä AS ü",
        "FROM a\nRUN <<'",
        "FROM a\nENV ü=$ü${",
        "#escape=",
    ] {
        let _ = read(text).map_err(|error| error.to_string());
    }
}
