//! `sandbar usage`: prints what workspaces and the studio's builds used, what it costs, and how
//! much of each limit is left.

use crate::config::{self, Config, Overrides};
use crate::runtime;
use crate::studio;
use clap::Args;
use cli::show::{Colour, Show, printable, size, span};
use jiff::Timestamp;
use sdk::Secret;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use workspace::ledger::{Ledger, Line, Meter, Period, Source, Statement, Sums, Usd, months};
use workspace::records::{DatabaseRecords, Records};

/// Show what workspaces and the studio's builds used and what it costs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar usage                       this month, by project, place and job
  sandbar usage --project shop        a workspace's project, or one of the studio's by its name
  sandbar usage --all                 from the first day on
  sandbar usage --json | jq .total.cost_usd

The studio's projects are listed as studio/NAME, its jobs as the dashboard names them. Prices and budgets come from the
configuration; `sandbar config show` tells which.")]
pub(crate) struct Usage {
    /// Only this project
    #[arg(long, short, value_name = "PROJECT")]
    project: Option<String>,
    /// Everything there ever was, instead of this month
    #[arg(long)]
    all: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// The studio's database, when it is not the data directory's
    #[arg(long, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    database: Option<Secret>,
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
}

impl Usage {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::logging::start_if_wanted()?;
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        let workspaces = config.workspaces()?;
        let location = workspaces.records.location(&config::variable)?;
        runtime::block_on(async {
            let records = DatabaseRecords::open(&location).await?;
            let mut ledger = Ledger::new(Arc::new(records.clone()) as Arc<dyn Records>, &workspaces);
            let builds = match studio::open_usage(&config, self.database.as_ref()).await {
                Ok(builds) => builds,
                Err(error) => {
                    eprintln!("sandbar: without the studio's builds: {error:#}");
                    None
                }
            };
            // If both use one database, the ledger has the builds already.
            if let Some(builds) = &builds
                && builds.location != location
            {
                ledger = ledger.and(Arc::new(builds.records.clone()) as Arc<dyn Records>);
            }
            let now = Timestamp::now();
            let period = if self.all { Period::ALWAYS } else { months::current(now) };
            let mut statement = ledger.statement(period, None, now).await?;
            if let Some(builds) = &builds {
                name_projects(&mut statement, &builds.projects);
            }
            let mut meters = ledger.meters(now).await?;
            if let Some(project) = &self.project {
                statement.lines.retain(|line| belongs_to(line, project));
                meters.retain(|meter| meter.limit.concerns(project));
            }
            let name = if self.all { "all".to_owned() } else { months::name(now) };
            let show = Show::new(self.json);
            if self.json {
                show.object(&to_json(&name, &statement, &meters))?;
            } else {
                print(show, &name, &statement, &meters)?;
            }
            if let Some(builds) = builds {
                builds.records.close().await?;
            }
            records.close().await?;
            Ok(())
        })
    }
}

/// Prefix of the studio's projects, since a project may have the name of a workspace.
const STUDIO: &str = "studio/";

/// Replaces the workspaces of the studio's jobs by the names of their projects.
fn name_projects(statement: &mut Statement, projects: &HashMap<String, String>) {
    for line in &mut statement.lines {
        if let Some(name) = projects.get(&line.project) {
            // Storage of checkpoints has no job in the records; it belongs to the workspace's job.
            line.job.get_or_insert_with(|| line.project.replacen('-', "_", 1));
            line.project = format!("{STUDIO}{name}");
        }
    }
}

fn belongs_to(line: &Line, project: &str) -> bool {
    line.project == project || line.project.strip_prefix(STUDIO) == Some(project)
}

fn to_json(period: &str, statement: &Statement, meters: &[Meter]) -> Value {
    let (mut providers, mut models) = (Map::new(), Map::new());
    let mut objects = Sums::default();
    for (source, sums) in statement.by_source() {
        match source {
            Source::Provider(name) => drop(providers.insert(name.to_string(), json!(sums))),
            Source::Model(name) => drop(models.insert(name, json!(sums))),
            Source::Objects => objects = sums,
        }
    }
    let limits: Vec<Value> = meters
        .iter()
        .map(|meter| json!({ "limit": meter.limit, "used": meter.used(), "used_percent": meter.percent() }))
        .collect();
    json!({
        "period": period,
        "total": statement.total(),
        "projects": statement.by_project(),
        "jobs": statement.by_job(),
        "providers": providers,
        "models": models,
        "objects": objects,
        "lines": statement.lines,
        "limits": limits,
    })
}

fn print(show: Show, period: &str, statement: &Statement, meters: &[Meter]) -> std::io::Result<()> {
    let total = statement.total();
    let when = if period == "all" { "from the first day on" } else { period };
    show.line(format!("{when}: {}", show.paint(Colour::Green, &total.cost.to_string())))?;
    if statement.lines.is_empty() {
        show.line("nothing was used")?;
    }
    let by_source: BTreeMap<String, Sums> = statement
        .by_source()
        .into_iter()
        .map(|(source, sums)| {
            let name = match source {
                Source::Provider(name) => name.to_string(),
                Source::Objects => "objects".to_owned(),
                Source::Model(name) => format!("model {name}"),
            };
            (name, sums)
        })
        .collect();
    table(show, "PROJECT", &statement.by_project())?;
    table(show, "PLACE", &by_source)?;
    table(show, "JOB", &statement.by_job())?;
    if meters.is_empty() {
        return Ok(());
    }
    show.line("")?;
    let rows: Vec<Vec<String>> = meters
        .iter()
        .map(|meter| {
            let colour = match meter.percent() {
                0..80 => Colour::Green,
                80..100 => Colour::Yellow,
                _ => Colour::Red,
            };
            #[expect(clippy::cast_precision_loss, reason = "a bar of ten characters")]
            let share = meter.percent() as f64 / 100.0;
            let limit = printable(&meter.limit.to_string());
            vec![limit, meter.used(), format!("{} {:>3} %", show.paint(colour, &bar(share)), meter.percent())]
        })
        .collect();
    show.table(&["LIMIT", "USED", ""], &rows)
}

/// Prints groups in descending order of cost.
fn table(show: Show, title: &str, groups: &BTreeMap<String, Sums>) -> std::io::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    show.line("")?;
    let most = groups.values().map(|sums| sums.cost).max().unwrap_or(Usd::ZERO).dollars();
    let mut groups: Vec<(&String, &Sums)> = groups.iter().collect();
    groups.sort_by(|a, b| b.1.cost.cmp(&a.1.cost).then(a.0.cmp(b.0)));
    let some = |count: u64| if count == 0 { "-".to_owned() } else { count.to_string() };
    let rows: Vec<Vec<String>> = groups
        .into_iter()
        .map(|(name, sums)| {
            let share = if most > 0.0 { sums.cost.dollars() / most } else { 0.0 };
            let running = if sums.running.is_zero() { "-".to_owned() } else { span(sums.running) };
            let stored = u64::try_from(sums.stored).unwrap_or(u64::MAX);
            let stored = if stored == 0 { "-".to_owned() } else { format!("{} h", size(stored)) };
            vec![
                printable(name),
                sums.cost.to_string(),
                show.paint(Colour::Blue, &bar(share)),
                some(sums.creations),
                running,
                stored,
                some(sums.input_tokens + sums.output_tokens),
            ]
        })
        .collect();
    show.table(&[title, "COST", "", "CREATED", "RUNNING", "STORED", "TOKENS"], &rows)
}

/// A bar of ten characters, filled by `share` in steps of an eighth of a character.
fn bar(share: f64) -> String {
    const WIDTH: usize = 10;
    const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 80")]
    let eighths = (share.clamp(0.0, 1.0) * 80.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = (eighths % 8).checked_sub(1) {
        bar.push(PARTS[part]);
    }
    let filled = bar.chars().count();
    bar.extend(std::iter::repeat_n('░', WIDTH - filled));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_stand_under_the_names_of_their_projects() {
        let line = |project: &str, job: Option<&str>| Line {
            project: project.into(),
            job: job.map(Into::into),
            from: Source::Objects,
            size: None,
            sums: Sums::default(),
        };
        let mut statement =
            Statement { lines: vec![line("shop", None), line("job-1f", None), line("job-1f", Some("job_1f"))] };
        name_projects(&mut statement, &HashMap::from([("job-1f".to_owned(), "shop".to_owned())]));
        let named: Vec<_> = statement.lines.iter().map(|line| (line.project.as_str(), line.job.as_deref())).collect();
        assert_eq!(named, [("shop", None), ("studio/shop", Some("job_1f")), ("studio/shop", Some("job_1f"))]);
        assert!(statement.lines.iter().all(|line| belongs_to(line, "shop")));
        assert_eq!(statement.lines.iter().filter(|line| belongs_to(line, "studio/shop")).count(), 2);
    }

    #[test]
    fn a_bar_is_ten_wide_and_fills_by_eighths() {
        for (share, expected) in [
            (0.0, "░░░░░░░░░░"),
            (0.5, "█████░░░░░"),
            (0.51, "█████▏░░░░"),
            (1.0, "██████████"),
            (7.0, "██████████"),
            (f64::NAN, "░░░░░░░░░░"),
        ] {
            assert_eq!(bar(share), expected, "{share}");
        }
    }
}
