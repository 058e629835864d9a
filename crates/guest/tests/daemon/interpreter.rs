//! Code interpreters over real HTTP, with the machine's own python3, node and bash.

use std::io::{BufRead as _, BufReader, Write as _};

use protocol::guest::INTERPRETER_PREFIX;
use serde_json::{Value, json};
use testing::{SOON, eventually};

use crate::common::{TestGuest, head};

const JSON: (&str, &str) = ("content-type", "application/json");

/// The result of an execution.
#[derive(Debug, Default)]
struct Ran {
    stdout: String,
    stderr: String,
    results: Vec<Value>,
    error: Option<Value>,
    count: Option<u64>,
}

impl Ran {
    fn read(text: &str) -> Self {
        let mut ran = Self::default();
        let mut ended = false;
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
            assert!(!ended, "nothing comes after the end: {line}");
            match line["type"].as_str().expect("every line has a type") {
                "stdout" => ran.stdout += line["text"].as_str().expect("text"),
                "stderr" => ran.stderr += line["text"].as_str().expect("text"),
                "result" => ran.results.push(line),
                "error" => assert!(ran.error.replace(line).is_none(), "one error at most"),
                "number_of_executions" => ran.count = line["execution_count"].as_u64(),
                "end_of_execution" => ended = true,
                other => panic!("{other}: {line}"),
            }
        }
        assert!(ended, "it ends: {text}");
        ran
    }

    /// One representation of the last expression's value.
    fn main(&self, form: &str) -> Value {
        let main = self.results.iter().find(|result| result["is_main_result"] == true);
        main.map_or(Value::Null, |main| main[form].clone())
    }

    #[track_caller]
    fn error(&self) -> (&str, &str) {
        let error = self.error.as_ref().unwrap_or_else(|| panic!("an error: {self:?}"));
        (error["name"].as_str().expect("a name"), error["value"].as_str().expect("a value"))
    }
}

impl TestGuest {
    fn interpreter(&self, method: &str, path: &str, body: &Value) -> testing::http::Reply {
        self.request(method, &format!("{INTERPRETER_PREFIX}{path}"), &[JSON], body.to_string().as_bytes())
    }

    fn execute(&self, request: &Value) -> Ran {
        let response = self.interpreter("POST", "/execute", request);
        assert_eq!(response.status, 200, "{}", response.text());
        Ran::read(&response.text())
    }

    fn python(&self, code: &str) -> Ran {
        self.execute(&json!({"code": code}))
    }

    fn in_language(&self, language: &str, code: &str) -> Ran {
        self.execute(&json!({"code": code, "language": language}))
    }
}

#[test]
fn python_keeps_state_and_returns_values_in_all_formats() {
    let guest = TestGuest::start();
    let ran = guest.python("x = 41\nprint('hello')\nimport sys; print('oops', file=sys.stderr)\nx + 1");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.count), ("hello\n", "oops\n", Some(1)));
    assert_eq!(ran.main("text"), "42");
    let ran = guest.python("x += 1; x;");
    assert_eq!((ran.results.len(), ran.count), (0, Some(2)), "a semicolon asks for silence");
    assert_eq!(guest.python("{'a': [1, x]}").main("json"), json!({"a": [1, 42]}));
    let ran = guest.python(
        "class Rich:\n  def _repr_html_(self): return '<b>ü</b>'\n  def _repr_png_(self): return b'\\x89PNG'\n\
         display(Rich(), 'and text')\nRich()",
    );
    assert_eq!((ran.main("html"), ran.main("png")), (json!("<b>ü</b>"), json!("iVBORw==")));
    let shown: Vec<&Value> = ran.results.iter().map(|result| &result["is_main_result"]).collect();
    assert_eq!(shown, [false, false, true]);
    assert_eq!(guest.python("import asyncio\nawait asyncio.sleep(0, 'awaited')").main("text"), "'awaited'");
    let ran = guest.python("!echo from a shell");
    assert_eq!((ran.stdout.as_str(), ran.results.len()), ("from a shell\n", 0));
    assert_eq!(guest.python("import os\n_ = os.system('echo from a child')").stdout, "from a child\n");
    assert_eq!(guest.python("print('\\u2028', '😀' * 3)").stdout, "\u{2028} 😀😀😀\n");
    let pwd = guest.python("import os\nos.getcwd(), os.getuid(), __name__").main("text");
    assert_eq!(pwd, format!("('{}', 1000, '__main__')", guest.home().display()));
}

#[test]
fn errors_have_tracebacks_and_keep_the_state() {
    let guest = TestGuest::start();
    let ran = guest.python("kept = 1\ndef f():\n  return 1 / 0\nprint('before')\nf()");
    assert_eq!((ran.error(), ran.stdout.as_str()), (("ZeroDivisionError", "division by zero"), "before\n"));
    let traceback = ran.error.as_ref().expect("an error")["traceback"].as_str().expect("text").to_owned();
    assert!(traceback.contains("<cell 1>\", line 3, in f") && traceback.contains("return 1 / 0"), "{traceback}");
    assert!(!traceback.contains("<string>"), "the driver's own frames are hidden: {traceback}");
    assert_eq!(guest.python("if").error().0, "SyntaxError");
    assert_eq!(guest.python("raise SystemExit(3)").error(), ("SystemExit", "3"));
    assert_eq!(guest.python("kept").main("text"), "1");
    let ran = guest.python("import os; os._exit(7)");
    assert_eq!(ran.error(), ("InterpreterEnded", "it ended (exit status 7)"));
    assert_eq!(guest.python("kept").error().0, "NameError", "a new one knows nothing of the old");
    guest.run("pkill -9 -f '^python3 -c'");
    // Reported by the run during which it exited, or by the next one.
    let ran = guest.python("1");
    let reported = format!("{}{}", ran.stderr, ran.error.unwrap_or_default());
    assert!(reported.contains("signal: killed") && reported.contains("variables are lost"), "{reported}");
}

#[test]
fn javascript_and_bash_keep_their_state() {
    let guest = TestGuest::start();
    let js = |code: &str| guest.in_language("js", code);
    assert_eq!(js("const a = 20; let b = 1; console.log('out'); console.error('err')").stdout, "out\n");
    assert_eq!(js("b += 21; a + b").main("text"), "42");
    assert_eq!(js("({ a, list: [1, 2] })").main("json"), json!({"a": 20, "list": [1, 2]}));
    assert_eq!(js("await new Promise((done) => setTimeout(() => done('later'), 5))").main("text"), "later");
    assert_eq!(js("import { basename as name } from 'node:path'\nname('/a/b')").main("text"), "b");
    assert_eq!(js("null.x").error().0, "TypeError");
    assert_eq!(js("if (").error().0, "SyntaxError");
    let shown = js("({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<i>x</i>' }) })");
    assert_eq!(shown.main("html"), "<i>x</i>");

    let bash = |code: &str| guest.in_language("bash", code);
    assert_eq!(bash("x=5; cd /usr; f() { echo f $x; }; echo out; echo err >&2").stderr, "err\n");
    assert_eq!(bash("f; pwd").stdout, "f 5\n/usr\n");
    assert_eq!(bash("(exit 3)").error(), ("ExitCode", "3"));
    assert_eq!(bash("exit 4").error(), ("InterpreterEnded", "it ended (exit status 4)"));
    assert_eq!(bash("echo ${x-gone}").stdout, "gone\n");
}

#[test]
fn variables_of_a_run_do_not_persist() {
    let guest = TestGuest::start_with(|config| {
        config.env_vars.insert("GIVEN".into(), "sandbox".into());
    });
    for (language, code) in [
        ("python", "import os\nprint(os.environ.get('GIVEN'), os.environ.get('ONCE'))"),
        ("javascript", "console.log(process.env.GIVEN, process.env.ONCE ?? 'None')"),
        ("bash", "echo $GIVEN ${ONCE-None}"),
    ] {
        let env = json!({"GIVEN": "run", "ONCE": "a 'b'"});
        let ran = guest.execute(&json!({"code": code, "language": language, "env_vars": env}));
        assert_eq!(ran.stdout, "run a 'b'\n", "{language}");
        assert_eq!(guest.in_language(language, code).stdout, "sandbox None\n", "{language}");
    }
    let bad = guest.interpreter("POST", "/execute", &json!({"code": "1", "env_vars": {"A B": "x"}}));
    assert_eq!((bad.status, bad.text().as_str()), (400, "'A B' cannot be the name of a variable"));
}

#[test]
fn contexts_are_isolated_restarted_and_removed() {
    let guest = TestGuest::start();
    let made = guest.interpreter("POST", "/contexts", &json!({"cwd": "/usr"})).json();
    assert_eq!((made["language"].as_str(), made["cwd"].as_str()), (Some("python"), Some("/usr")));
    let id = made["id"].as_str().expect("an id");
    let run = |code: &str| guest.execute(&json!({"code": code, "context_id": id, "language": null}));
    assert_eq!(run("x = 1\nimport os\nos.getcwd()").main("text"), "'/usr'");
    assert_eq!(guest.python("x").error().0, "NameError");
    let listed = guest.interpreter("GET", "/contexts", &Value::Null).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "with the default one: {listed}");
    assert_eq!(guest.interpreter("POST", &format!("/contexts/{id}/restart"), &Value::Null).status, 204);
    assert_eq!((run("x").error().0.to_owned(), run("1").count), ("NameError".into(), Some(2)));
    assert_eq!(guest.interpreter("DELETE", &format!("/contexts/{id}"), &Value::Null).status, 204);
    for (method, path) in [("DELETE", format!("/contexts/{id}")), ("POST", format!("/contexts/{id}/restart"))] {
        let gone = guest.interpreter(method, &path, &Value::Null);
        assert_eq!((gone.status, gone.text()), (404, format!("Context {id} not found")));
    }
    let both = guest.interpreter("POST", "/execute", &json!({"code": "1", "context_id": id, "language": "python"}));
    assert_eq!((both.status, both.text().as_str()), (400, "give a context or a language, not both"));
    let strange = guest.interpreter("POST", "/contexts", &json!({"language": "cobol"}));
    assert_eq!((strange.status, strange.text().contains("'cobol' is not available")), (400, true));
    let nowhere = guest.interpreter("POST", "/contexts", &json!({"cwd": "/no/where"}));
    assert_eq!((nowhere.status, nowhere.text().as_str()), (400, "cwd '/no/where' does not exist"));
    eventually("the removed one's process ends", SOON, || {
        (guest.run("pgrep -c -f '^python3 -c'").out().trim() == "1").then_some(())
    });
}

/// Starts code, waits until it has printed `ready`, and disconnects.
fn leave(guest: &TestGuest, language: &str, code: &str) {
    let body = json!({"code": code, "language": language}).to_string();
    let mut stream = guest.connect();
    let head = head("POST", &format!("{INTERPRETER_PREFIX}/execute"), &[JSON], Some(body.len()));
    stream.write_all(&[&head, body.as_bytes()].concat()).expect("sent");
    let lines = BufReader::new(stream).lines().map(|line| line.expect("it goes on"));
    assert!(lines.map_while(|line| (!line.contains("ready")).then_some(())).count() < 100);
}

#[test]
fn code_is_interrupted_when_its_client_disconnects() {
    let guest = TestGuest::start();
    for (language, code, after, expected) in [
        ("python", "x = 1\nprint('ready')\nimport time\ntime.sleep(600)", "print(x)", "1\n"),
        ("javascript", "var x = 1; console.log('ready'); while (true) {}", "console.log(x)", "1\n"),
        ("javascript", "var y = 2; console.log('ready'); await new Promise(() => {})", "console.log(y)", "2\n"),
        ("bash", "x=1; echo ready; sleep 600; echo never", "echo $x", "1\n"),
        // It ignores the interrupt, so it is killed and its state is lost.
        ("bash", "x=2; trap '' INT URG; echo ready; while :; do :; done", "echo ${x-gone}", "gone\n"),
    ] {
        leave(&guest, language, code);
        let ran = guest.in_language(language, after);
        assert_eq!(ran.stdout, expected, "{language}: {code}: {ran:?} {:?}", guest.log(0));
    }
}

/// Interrupts a shell at any point: before its command, starting it, waiting for it, between two
/// commands.
#[test]
fn a_shell_keeps_its_state_whenever_it_is_interrupted() {
    let guest = TestGuest::start();
    let rounds = if std::env::var_os("SANDBAR_SOAK").is_some() { 1000 } else { 3 };
    let cells = [
        "echo ready; sleep 600; echo never",
        "echo ready; while :; do /bin/true; done",
        "echo ready; while :; do :; done",
        "sh -c 'until grep -q State:.S /proc/$PPID/status; do :; done; echo ready; exec sleep 600'; echo never",
    ];
    guest.in_language("bash", "x=1");
    for round in 0..rounds {
        for code in cells {
            leave(&guest, "bash", code);
            let ran = guest.in_language("bash", "echo $x");
            assert_eq!(ran.stdout, "1\n", "round {round}: {code}: {ran:?} {:?}", guest.log(0));
        }
    }
}

#[test]
fn code_runs_with_a_token_only_and_never_from_inside() {
    let guest = TestGuest::start_with(|config| config.access_token = Some("secret".into()));
    let code = json!({"code": "6 * 7"}).to_string();
    let refused = guest.interpreter("POST", "/execute", &json!({"code": "1"}));
    assert_eq!((refused.status, refused.text().contains("X-Access-Token")), (401, true));
    let path = format!("{INTERPRETER_PREFIX}/execute");
    let ran = guest.request("POST", &path, &[JSON, ("x-access-token", "secret")], code.as_bytes());
    assert_eq!(Ran::read(&ran.text()).main("text"), "42");
    let path = format!("{INTERPRETER_PREFIX}/contexts");
    for (line, headers, status) in [
        ("POST", &[][..], 401),
        ("GET", &[], 401),
        ("GET", &[("x-access-token", "wrong")], 401),
        ("GET", &[("x-access-token", "wrong"), ("sandbar-known-peer", "1")], 401),
        ("GET", &[("x-access-token", "secret")], 200),
        ("GET", &[("sandbar-known-peer", "1")], 200),
    ] {
        assert_eq!(guest.request(line, &path, headers, b"").status, status, "{line} {headers:?}");
    }
    assert_eq!(guest.interpreter("GET", "/health", &Value::Null).text(), "OK");
}

#[test]
fn large_output_arrives_complete_and_in_order() {
    let guest = TestGuest::start();
    let ran = guest.python("for i in range(20000): print(i)\ndisplay('middle')\nprint('x' * 1000000)\n'y' * 3000000");
    let expected: String = (0..20000).map(|i| format!("{i}\n")).collect::<String>() + &"x".repeat(1_000_000) + "\n";
    assert!(ran.stdout == expected, "{} bytes instead of {}", ran.stdout.len(), expected.len());
    assert_eq!(ran.main("text").as_str().map(str::len), Some(3_000_002));
}
