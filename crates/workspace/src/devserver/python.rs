//! Detects the dev server of a Python project, or of static files.

use super::DevServer;
use super::detect::ProjectFiles;
use super::ports;

const FASTAPI: u16 = 8000;
const FLASK: u16 = 5000;
const HTTP: u16 = 8000;
/// The usual files of the application.
const FILES: &[&str] = &[
    "main.py",
    "app.py",
    "server.py",
    "asgi.py",
    "wsgi.py",
    "api.py",
    "app/main.py",
    "app/__init__.py",
    "src/main.py",
    "src/app.py",
];
/// Prefers the project's own virtual environment. Checkpoints exclude it, so it may be missing.
const OWN_FIRST: &str = "PATH=\"$PWD/.venv/bin:$PATH\" ";

/// How dependencies are installed, and the prefix that makes a command use them.
struct Environment {
    install: Option<&'static str>,
    before: &'static str,
}

impl Environment {
    fn from_files(files: &ProjectFiles) -> Self {
        if files.has("uv.lock") {
            Self { install: Some("uv sync"), before: "uv run " }
        } else if files.has("poetry.lock") {
            Self { install: Some("poetry install"), before: "poetry run " }
        } else if files.has("requirements.txt") {
            let install = "{ test -x .venv/bin/python || python3 -m venv .venv; } && \
                           .venv/bin/python -m pip install -q -r requirements.txt";
            Self { install: Some(install), before: OWN_FIRST }
        } else {
            Self { install: None, before: OWN_FIRST }
        }
    }

    fn server(&self, command: &str, port: u16) -> DevServer {
        let install_command = self.install.map(str::to_owned);
        DevServer { install_command, ..DevServer::new(format!("{}{command}", self.before), port) }
    }
}

/// `at` overrides the port that the server listens on.
pub(super) fn decide(files: &ProjectFiles, at: Option<u16>) -> Option<DevServer> {
    let environment = Environment::from_files(files);
    let made_by = |class: &str| {
        FILES.iter().find_map(|file| {
            let name = assigned(files.text(file)?, class)?;
            Some(format!("{}:{name}", module(file)))
        })
    };
    if let Some(app) = made_by("FastAPI") {
        let port = at.unwrap_or(FASTAPI);
        let command = format!("python3 -m uvicorn {app} --host 0.0.0.0 --port {port} --reload");
        return Some(environment.server(&command, port));
    }
    // flask finds application factories by itself.
    let factory = || FILES.iter().find(|file| files.text(file).is_some_and(|it| it.contains("Flask(")));
    if let Some(app) = made_by("Flask").or_else(|| factory().map(|file| module(file))) {
        let port = at.unwrap_or(FLASK);
        let command = format!("python3 -m flask --app {app} run --host 0.0.0.0 --port {port} --reload");
        return Some(environment.server(&command, port));
    }
    let serving = FILES.iter().find(|file| {
        files.text(file).is_some_and(|text| text.contains("http.server") || text.contains("wsgiref.simple_server"))
    });
    if let Some(file) = serving {
        let port = at.or_else(|| files.text(file).and_then(ports::in_source)).unwrap_or(HTTP);
        return Some(environment.server(&format!("python3 {file}"), port));
    }
    files.has("index.html").then(|| {
        // Static files need no installation.
        let port = at.unwrap_or(HTTP);
        DevServer::new(format!("python3 -m http.server {port} --bind 0.0.0.0"), port)
    })
}

/// The module name of a file: `app/main.py` is `app.main`, `app/__init__.py` is `app`.
fn module(file: &str) -> String {
    let path = file.strip_suffix(".py").unwrap_or(file);
    path.strip_suffix("/__init__").unwrap_or(path).replace('/', ".")
}

/// The name left of `NAME = Class(` at the start of a line.
fn assigned<'t>(text: &'t str, class: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        // `app: Flask = Flask(…)`
        let name = name.split(':').next().unwrap_or(name).trim_end();
        let value = value.trim_start();
        // `flask.Flask(…)`
        let made = value.split('(').next()?.rsplit('.').next()? == class && value.contains('(');
        let plain = !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        (made && plain).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], command: &str, port: u16, installs: bool) {
        let found = decide(&ProjectFiles::from_texts(files), None).expect("a server");
        let command = command.replace("OWN ", OWN_FIRST);
        assert_eq!((found.command, found.port, found.install_command.is_some()), (command, port, installs));
    }

    #[test]
    fn applications_are_detected_in_the_usual_files() {
        let fastapi = "from fastapi import FastAPI\n\napi: FastAPI = FastAPI(title='x')\n";
        let run = "python3 -m uvicorn";
        let rest = "--host 0.0.0.0 --port 8000 --reload";
        check(&[("main.py", fastapi)], &format!("OWN {run} main:api {rest}"), 8000, false);
        check(&[("app/main.py", fastapi), ("uv.lock", "")], &format!("uv run {run} app.main:api {rest}"), 8000, true);

        let rest = "run --host 0.0.0.0 --port 5000 --reload";
        let flask = [("app.py", "import flask\napp = flask.Flask(__name__)\n"), ("requirements.txt", "flask")];
        check(&flask, &format!("OWN python3 -m flask --app app:app {rest}"), 5000, true);
        let factory = [("app/__init__.py", "def create_app():\n    app = Flask(__name__)\n    return app\n")];
        check(&factory, &format!("OWN python3 -m flask --app app {rest}"), 5000, false);
    }

    #[test]
    fn static_files_are_served_by_http_server() {
        check(&[("index.html", "")], "python3 -m http.server 8000 --bind 0.0.0.0", 8000, false);
        let server = "from http.server import HTTPServer\nHTTPServer(('', 8123), H).serve_forever()";
        check(&[("server.py", server)], "OWN python3 server.py", 8123, false);
        assert_eq!(decide(&ProjectFiles::from_texts(&[("main.py", "print('hello')")]), None), None);
    }
}
