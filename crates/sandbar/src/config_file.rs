//! `sandbar config`: writes a commented configuration file, shows the values in effect with their
//! sources, and prints the JSON Schema of the file.

use crate::config::{self, Config, Overrides};
use crate::config_schema;
use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use cli::show::{Colour, Show, printable};
use figment::value::{Tag, Value};
use figment::{Figment, Source};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Make a configuration file, or see what is in effect.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar config init                 a commented file at its usual place
  sandbar config show                 every value, and where it comes from
  sandbar config show --json | jq .config.providers
  sandbar config schema               every key, its type and its default, for editors")]
pub(crate) struct ConfigFile {
    /// Configuration file [default: $XDG_CONFIG_HOME/sandbar/config.toml]
    #[arg(long, global = true, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(Init),
    Show(ShowConfig),
    Schema(PrintSchema),
}

/// Write a commented configuration file to begin with.
#[derive(Args)]
#[command(
    after_help = "\
Examples:
  sandbar config init
  sandbar config init --config ./sandbar.toml
  sandbar config init --force         what is there is replaced

`--help` prints the file, which has every key.",
    after_long_help = concat!("\
Examples:
  sandbar config init
  sandbar config init --config ./sandbar.toml
  sandbar config init --force         what is there is replaced

The file has every key:

", include_str!("config_template.toml"))
)]
struct Init {
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

/// Show every value that is in effect, and where it comes from.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar config show
  sandbar config show --json | jq '.sources'      by key: the file, a variable, a preset or the default

Keys and passwords are not shown.")]
struct ShowConfig {
    /// Print JSON for programs: {file, config, sources, keys}
    #[arg(long)]
    json: bool,
}

/// Print the JSON Schema of the configuration file.
#[derive(Args)]
#[command(after_help = "\
Editors with a language server for TOML check and complete the file by it. The file names the schema in its first line:

  #:schema ./sandbar.schema.json

Examples:
  sandbar config schema > ~/.config/sandbar/sandbar.schema.json
  sandbar config schema | jq '.properties.sandboxes.properties | keys'")]
struct PrintSchema {}

impl ConfigFile {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Init(init) => init.run(self.config.as_deref()),
            Command::Show(show) => show.run(self.config.as_deref()),
            Command::Schema(PrintSchema {}) => {
                let schema = serde_json::to_string_pretty(&config_schema::schema()?)?;
                Ok(writeln!(std::io::stdout(), "{schema}")?)
            }
        }
    }
}

/// The file that `init` writes. All keys are commented out, so that it changes no default.
const TEMPLATE: &str = include_str!("config_template.toml");

impl Init {
    fn run(self, file: Option<&Path>) -> anyhow::Result<()> {
        let file = match file {
            Some(file) => file.to_owned(),
            None => {
                config::default_file().context("neither XDG_CONFIG_HOME nor HOME is set; name a file with --config")?
            }
        };
        if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        let opened =
            if self.force { options.create(true).truncate(true) } else { options.create_new(true) }.open(&file);
        let mut place = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                bail!("{} is there already; --force replaces it", file.display())
            }
            opened => opened.with_context(|| format!("cannot write {}", file.display()))?,
        };
        place.write_all(TEMPLATE.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(std::io::stdout(), "{}", file.display())?;
        Ok(())
    }
}

impl ShowConfig {
    fn run(self, file: Option<&Path>) -> anyhow::Result<()> {
        let effective = Effective::load(file)?;
        let show = Show::new(self.json);
        if self.json {
            return Ok(show.object(&effective.to_json())?);
        }
        match &effective.file {
            Some(file) => show.line(format!("file: {}", file.display()))?,
            None => show.line("file: none; `sandbar config init` makes one")?,
        }
        let rows: Vec<Vec<String>> = effective
            .leaves()
            .into_iter()
            .map(|(key, value)| {
                let source = effective.source(&key);
                let source = if source == DEFAULT { show.paint(Colour::Dim, &source) } else { source };
                vec![key, printable(&value), source]
            })
            .collect();
        Ok(show.table(&["KEY", "VALUE", "FROM"], &rows)?)
    }
}

const DEFAULT: &str = "default";
const HIDDEN: &str = "(not shown)";

/// The configuration in effect.
struct Effective {
    file: Option<PathBuf>,
    /// With secrets hidden.
    config: Json,
    /// Sources of the values that are not defaults, by key.
    sources: BTreeMap<String, String>,
    /// Environment variables that the configuration names for keys, and whether they are set.
    keys: BTreeMap<String, bool>,
}

impl Effective {
    fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let (config, figment, file) = Config::load_with_sources(file, &Overrides::default())?;
        let merged = figment.find_value("").map_err(|error| anyhow!("configuration: {error}"))?;
        let mut sources = BTreeMap::new();
        walk(&figment, "", &merged, &mut sources);

        let workspaces = config.workspaces()?;
        let mut shown: Json = serde_json::to_value(&merged)?;
        let resolved = serde_json::to_value(&workspaces)?;
        if let (Json::Object(shown), Json::Object(resolved)) = (&mut shown, resolved) {
            shown.extend(resolved);
        }
        hide(&mut shown);

        if config.providers.is_empty() {
            // The providers come from the environment.
            for (field, name) in
                [("api_url", "E2B_API_URL"), ("domain", "E2B_DOMAIN"), ("sandbox_url", "E2B_SANDBOX_URL")]
            {
                if config::variable(name).is_some() {
                    sources.insert(format!("providers.0.{field}"), name.to_owned());
                }
            }
        }
        for (index, provider) in workspaces.providers.iter().enumerate() {
            let Some(preset) = provider.plan.preset else { continue };
            let name = serde_json::to_value(preset)?;
            for field in ["longest_lifetime_seconds", "concurrent_sandboxes", "creations_per_minute"] {
                let key = format!("providers.{index}.plan.{field}");
                sources.entry(key).or_insert_with(|| format!("preset {}", name.as_str().unwrap_or_default()));
            }
        }
        let named = workspaces.providers.iter().filter_map(|provider| provider.api_key_env.clone());
        let named = named.chain(workspaces.records.url_env.clone());
        let keys = named.map(|name| (name.clone(), config::variable(&name).is_some())).collect();
        Ok(Self { file, config: shown, sources, keys })
    }

    fn source(&self, key: &str) -> String {
        self.sources.get(key).cloned().unwrap_or_else(|| DEFAULT.to_owned())
    }

    fn to_json(&self) -> Json {
        let sources: Map<String, Json> =
            self.leaves().into_iter().map(|(key, _)| (key.clone(), self.source(&key).into())).collect();
        let keys: Map<String, Json> =
            self.keys.iter().map(|(name, set)| (name.clone(), if *set { "set" } else { "not set" }.into())).collect();
        json!({ "file": self.file, "config": self.config, "sources": sources, "keys": keys })
    }

    /// Every value by its key, formatted for people.
    fn leaves(&self) -> Vec<(String, String)> {
        let mut leaves = Vec::new();
        flatten("", &self.config, &mut leaves);
        for (key, value) in &mut leaves {
            if key.ends_with("_env")
                && let Some(set) = self.keys.get(value.as_str())
            {
                value.push_str(if *set { " (set)" } else { " (not set)" });
            }
        }
        leaves
    }
}

fn flatten(key: &str, value: &Json, leaves: &mut Vec<(String, String)>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        Json::Object(fields) => fields.iter().for_each(|(name, value)| flatten(&below(name), value, leaves)),
        Json::Array(items) if items.iter().any(Json::is_object) => {
            items.iter().enumerate().for_each(|(index, value)| flatten(&below(&index.to_string()), value, leaves));
        }
        Json::String(text) => leaves.push((key.to_owned(), text.clone())),
        other => leaves.push((key.to_owned(), other.to_string())),
    }
}

/// Collects the source of each value that is not a default.
fn walk(figment: &Figment, key: &str, value: &Value, sources: &mut BTreeMap<String, String>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        Value::Dict(_, fields) => fields.iter().for_each(|(name, value)| walk(figment, &below(name), value, sources)),
        Value::Array(tag, items) => {
            note(figment, key, *tag, sources);
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| walk(figment, &below(&index.to_string()), value, sources));
        }
        value => note(figment, key, value.tag(), sources),
    }
}

fn note(figment: &Figment, key: &str, tag: Tag, sources: &mut BTreeMap<String, String>) {
    let Some(metadata) = figment.get_metadata(tag) else { return };
    let source = match &metadata.source {
        Some(Source::File(file)) => file.display().to_string(),
        _ if metadata.name.contains("environment") => format!("SANDBAR_{}", key.to_uppercase().replace('.', "__")),
        // A default of the program.
        _ => return,
    };
    sources.insert(key.to_owned(), source);
}

/// Replaces secrets by a placeholder.
fn hide(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                let secret = ["key", "secret", "password", "token"].iter().any(|part| name.contains(part));
                if secret && !name.ends_with("_env") && value.is_string() {
                    *value = HIDDEN.into();
                } else {
                    hide(value);
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use figment::providers::{Format as _, Toml};

    /// The configuration in effect with a file of this text.
    fn effective(text: &str) -> anyhow::Result<Effective> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("config.toml");
        fs::write(&file, text).expect("the file is written");
        Effective::load(Some(&file))
    }

    /// The template with every setting in effect.
    fn uncommented() -> String {
        let setting = |rest: &&str| rest.starts_with('[') || rest.contains(" = ");
        let lines = TEMPLATE.lines().map(|line| line.strip_prefix("# ").filter(setting).unwrap_or(""));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_template_is_valid_and_changes_no_default() {
        let begun = effective(TEMPLATE).expect("a good file");
        let without = effective("").expect("a good file");
        assert_eq!((begun.config, begun.sources), (without.config, without.sources));
        let uncommented = uncommented();
        let all = effective(&uncommented).unwrap_or_else(|error| panic!("{error:#}\n{uncommented}"));
        assert_eq!(all.config["providers"][1]["deployment_mode"], "self_hosted");
        assert_eq!(all.config["providers"][2]["kind"], "local");
        assert_eq!(all.config["budgets"][0]["usd"], 20.0);
    }

    /// The settings of a text in TOML.
    fn parse(text: &str) -> Json {
        Figment::from(Toml::string(text)).extract().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn every_key_is_in_the_template_with_its_default() {
        for key in config_schema::tests::keys(&parse(&uncommented())) {
            // A file has one place of screenshots: a directory is the other.
            let other = key.path.starts_with("screenshots.place.disk.");
            let named = key.path.rsplit('.').next().is_some_and(|name| TEMPLATE.contains(&format!("`{name}`")));
            assert!(!key.values.is_empty() || (other && named), "config_template.toml does not have {}", key.path);
            assert!(key.has_default_in_file(), "config_template.toml has another default than {key:?}");
        }
    }

    #[test]
    fn every_key_of_the_server_is_in_the_help_of_up() {
        use clap::CommandFactory as _;
        #[derive(clap::Parser)]
        struct Whole {
            #[command(flatten)]
            up: crate::up::Up,
        }
        let help = Whole::command().render_long_help().to_string();
        let settings = help
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter(|line| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')));
        let settings = parse(&settings.collect::<Vec<_>>().join("\n"));
        for key in config_schema::tests::keys(&settings) {
            let elsewhere = ["providers.", "objects.", "records.", "budgets.", "models.NAME."];
            if elsewhere.iter().any(|part| key.path.starts_with(part)) {
                continue;
            }
            let name = key.path.rsplit('.').next().expect("a path has a last part");
            assert!(help.contains(name), "the help of `sandbar up` does not have {}", key.path);
            let shown = key.values.is_empty() || key.has_default_in_file();
            assert!(shown, "the help of `sandbar up` has another default than {key:?}");
        }
    }

    #[test]
    fn keys_of_a_bucket_in_the_file_are_refused() {
        for key in ["access_key_id", "secret_access_key"] {
            let text = format!("[screenshots.place.s3]\nbucket = \"b\"\n{key} = \"hush\"\n");
            let error = format!("{:#}", effective(&text).err().expect("no file has keys"));
            assert!(error.contains(key) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn every_value_has_its_source_and_secrets_are_hidden() {
        let shown = effective(
            "api_key = \"e2b_hidden\"\n[sandboxes]\ncpu_count = 3\n[[providers]]\nname = \"a\"\nkind = \"e2b\"\n\
             [providers.plan]\npreset = \"pro\"\nconcurrent_sandboxes = 5",
        )
        .expect("a good file");
        let json = shown.to_json();
        assert!(!json.to_string().contains("hidden\""), "{json}");
        assert_eq!(json["config"]["sandboxes"]["cpu_count"], 3);
        let source = |key: &str| json["sources"][key].as_str().unwrap_or_else(|| panic!("{key} in {json}")).to_owned();
        for key in ["api_key", "sandboxes.cpu_count", "providers.0.name", "providers.0.plan.concurrent_sandboxes"] {
            assert!(source(key).ends_with("config.toml"), "{key}: {}", source(key));
        }
        assert_eq!(source("sandboxes.memory_mb"), "default");
        assert_eq!(source("providers.0.plan.longest_lifetime_seconds"), "preset pro");
        assert_eq!(json["config"]["providers"][0]["plan"]["longest_lifetime_seconds"], 86400);
        assert_eq!(json["config"]["providers"][0]["price"]["usd_per_hour"], 0.1);
    }

    #[test]
    fn what_is_wrong_about_providers_is_named_with_file_and_key() {
        for (text, expected) in [
            ("[[providers]]\nname = \"a\"\nkind = \"e2b\"\nurl = \"x\"", "url"),
            ("[[providers]]\nname = \"a\"\nkind = \"docker\"", "kind"),
            ("[[providers]]\nname = \"a b\"\nkind = \"e2b\"", "a b"),
            ("[[providers]]\nname = \"a\"\nkind = \"e2b\"\n[providers.plan]\nhours = 1", "hours"),
            ("[[providers]]\nname = \"a\"\nkind = \"e2b\"\n[providers.plan]\npreset = \"gold\"", "gold"),
            ("[[providers]]\nname = \"a\"\nkind = \"e2b\"\ndeployment_mode = \"self_hosted\"", "`providers.0.api_url`"),
            ("[objects]\nuri = \"file:///x\"", "uri"),
            ("[objects]\nurl = \"ftp://x\"", "ftp://x"),
            ("[records]\nurl = \"mysql://x\"", "mysql"),
            ("[[budgets]]\nusd = 0.0", "`budgets.0.usd`"),
        ] {
            let error = effective(text).err().map(|error| format!("{error:#}")).expect("it is wrong");
            assert!(error.contains(expected) && error.contains("config.toml"), "{error:?} does not name {expected:?}");
        }
    }
}
