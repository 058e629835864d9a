//! Detects the dev server of a project that has a `package.json`.

use serde_json::Value;

use super::DevServer;
use super::detect::ProjectFiles;
use super::ports;

const NEXT: u16 = 3000;
const VITE: u16 = 5173;
const NODE: u16 = 3000;
/// The entry files to try when `package.json` names none.
const ENTRY_FILES: &[&str] =
    &["server.js", "server.mjs", "index.js", "index.mjs", "app.js", "src/index.js", "src/server.js"];

/// The package manager that installs dependencies and runs scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Npm { locked: bool },
    Pnpm,
    Yarn,
    Bun,
}

impl Manager {
    /// The manager that `package.json` names, else the one of the lock file.
    fn from_files(files: &ProjectFiles, package: &Value) -> Self {
        let locked = files.has("package-lock.json") || files.has("npm-shrinkwrap.json");
        let named = package["packageManager"].as_str().and_then(|name| name.split('@').next());
        match named {
            Some("pnpm") => Self::Pnpm,
            Some("yarn") => Self::Yarn,
            Some("bun") => Self::Bun,
            Some("npm") => Self::Npm { locked },
            _ if files.has("pnpm-lock.yaml") => Self::Pnpm,
            _ if files.has("yarn.lock") => Self::Yarn,
            _ if files.has("bun.lock") || files.has("bun.lockb") => Self::Bun,
            _ => Self::Npm { locked },
        }
    }

    /// Installs by the lock file, falling back to `package.json` when the two disagree.
    fn install(self) -> &'static str {
        match self {
            Self::Npm { locked: true } => "npm ci --no-audit --no-fund || npm install --no-audit --no-fund",
            Self::Npm { locked: false } => "npm install --no-audit --no-fund",
            Self::Pnpm => "pnpm install --frozen-lockfile || pnpm install --no-frozen-lockfile",
            Self::Yarn => "yarn install",
            Self::Bun => "bun install",
        }
    }

    /// npm needs `--` before the script's own arguments; pnpm would pass it on to the script.
    fn run(self, script: &str, arguments: &str) -> String {
        let (program, divider) = match self {
            Self::Npm { .. } => ("npm", " --"),
            Self::Pnpm => ("pnpm", ""),
            Self::Yarn => ("yarn", ""),
            Self::Bun => ("bun", ""),
        };
        match arguments {
            "" => format!("{program} run {script}"),
            arguments => format!("{program} run {script}{divider} {arguments}"),
        }
    }
}

/// `at` overrides the port that the server listens on.
pub(super) fn decide(files: &ProjectFiles, at: Option<u16>) -> Option<DevServer> {
    let package: Value = serde_json::from_str(files.text("package.json")?).ok()?;
    let manager = Manager::from_files(files, &package);
    let depends = |on: &str| {
        ["dependencies", "devDependencies"].iter().any(|kind| package[*kind].get(on).is_some_and(|it| !it.is_null()))
    };
    let needs_nothing = ["dependencies", "devDependencies"]
        .iter()
        .all(|kind| package[*kind].as_object().is_none_or(serde_json::Map::is_empty));
    let install = (!needs_nothing).then(|| manager.install().to_owned());
    let script = ["dev", "start"].into_iter().find_map(|name| Some((name, package["scripts"][name].as_str()?)));
    let Some((name, text)) = script else {
        return detect_entry_file(files, &package, install, at);
    };
    let named = at.or_else(|| ports::in_command(text));
    let (command, port) = if depends("next") || text.contains("next dev") {
        // Next listens on all addresses and reads `PORT`.
        (manager.run(name, ""), named.unwrap_or(NEXT))
    } else if last_program(text) == Some("vite") && !text.contains("vite build") {
        let port = named.unwrap_or(VITE);
        // By default, Vite listens on loopback only and moves to the next port when this one is in
        // use.
        (manager.run(name, &format!("--host 0.0.0.0 --port {port} --strictPort")), port)
    } else if depends("vite") || text.contains("vite") {
        // A custom start script, which does not forward arguments to Vite.
        (manager.run(name, ""), named.unwrap_or(VITE))
    } else {
        let served = text.split_whitespace().find_map(|word| files.text(word.trim_start_matches("./")));
        let port = named.or_else(|| served.and_then(ports::in_source)).unwrap_or(NODE);
        (manager.run(name, ""), port)
    };
    Some(DevServer { install_command: install, ..DevServer::new(command, port) })
}

/// Falls back to an entry file that node runs.
fn detect_entry_file(
    files: &ProjectFiles,
    package: &Value,
    install: Option<String>,
    at: Option<u16>,
) -> Option<DevServer> {
    let main = package["main"].as_str().map(|main| main.trim_start_matches("./")).filter(|main| files.has(main));
    // A file of this name is not necessarily a server.
    let serves = |name: &&str| files.text(name).is_some_and(|text| text.contains("listen("));
    let file = main.filter(serves).or_else(|| ENTRY_FILES.iter().copied().find(serves))?;
    let port = at.or_else(|| files.text(file).and_then(ports::in_source)).unwrap_or(NODE);
    Some(DevServer { install_command: install, ..DevServer::new(format!("node {file}"), port) })
}

/// The program that receives arguments appended to a script.
fn last_program(script: &str) -> Option<&str> {
    let last = script.rsplit(['&', ';', '|']).next()?;
    // Skips variable assignments and wrappers such as `npx`.
    last.split_whitespace().find(|word| !word.contains('=') && !matches!(*word, "npx" | "cross-env" | "exec"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(package: &str, others: &[(&str, &str)], command: &str, port: u16, install: Option<&str>) {
        let files: Vec<(&str, &str)> = [("package.json", package)].into_iter().chain(others.iter().copied()).collect();
        let found = decide(&ProjectFiles::from_texts(&files), None).expect("a server");
        assert_eq!((found.command.as_str(), found.port, found.install_command.as_deref()), (command, port, install));
    }

    #[test]
    fn next_runs_by_the_lock_files_manager() {
        let package = r#"{"scripts":{"dev":"next dev --turbo"},"dependencies":{"next":"15"}}"#;
        let install = "npm ci --no-audit --no-fund || npm install --no-audit --no-fund";
        check(package, &[("package-lock.json", "")], "npm run dev", 3000, Some(install));
        let install = "pnpm install --frozen-lockfile || pnpm install --no-frozen-lockfile";
        check(package, &[("pnpm-lock.yaml", "")], "pnpm run dev", 3000, Some(install));
        let package =
            r#"{"packageManager":"yarn@4","scripts":{"dev":"next dev -p 4000"},"dependencies":{"next":"15"}}"#;
        check(package, &[("package-lock.json", "")], "yarn run dev", 4000, Some("yarn install"));
    }

    #[test]
    fn vite_listens_on_all_addresses_and_a_strict_port() {
        let package = r#"{"scripts":{"dev":"tsc -b && vite"},"devDependencies":{"vite":"7"}}"#;
        let install = Some("npm install --no-audit --no-fund");
        check(package, &[], "npm run dev -- --host 0.0.0.0 --port 5173 --strictPort", 5173, install);
        check(
            package,
            &[("bun.lock", "")],
            "bun run dev --host 0.0.0.0 --port 5173 --strictPort",
            5173,
            Some("bun install"),
        );
        let package =
            r#"{"scripts":{"dev":"concurrently 'node api.js' 'vite --port 8080'"},"devDependencies":{"vite":"7"}}"#;
        check(package, &[], "npm run dev", 8080, install);
    }

    #[test]
    fn plain_node_listens_on_the_port_in_its_source() {
        let server = "const port = process.env.PORT || 8080; http.createServer(f).listen(port)";
        check(r#"{"scripts":{"dev":"node server.js"}}"#, &[("server.js", server)], "npm run dev", 8080, None);
        check(r#"{"main":"./index.js"}"#, &[("index.js", "app.listen(4321)")], "node index.js", 4321, None);
        check(r#"{"scripts":{"start":"PORT=9000 react-scripts start"}}"#, &[], "npm run start", 9000, None);
        check(r#"{"scripts":{"dev":"nodemon"}}"#, &[], "npm run dev", 3000, None);
        assert_eq!(
            decide(&ProjectFiles::from_texts(&[("package.json", "{}"), ("index.js", "module.exports = 1")]), None),
            None
        );
        assert_eq!(decide(&ProjectFiles::from_texts(&[("package.json", "not json")]), None), None);
    }
}
