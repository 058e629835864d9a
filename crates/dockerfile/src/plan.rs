//! The build plan.

use std::collections::BTreeMap;

/// Inputs of a plan besides the text.
#[derive(Debug, Clone)]
pub struct Options {
    /// File name shown in errors.
    pub file: String,
    /// `--build-arg`. A name that no `ARG` declares is an error.
    pub build_args: BTreeMap<String, String>,
    /// The stage to build; the last one by default.
    pub target: Option<String>,
    /// Platform of the sandboxes, as in `linux/amd64`.
    pub platform: String,
}

impl Default for Options {
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            file: "Dockerfile".to_owned(),
            build_args: BTreeMap::new(),
            target: None,
            platform: format!("linux/{architecture}"),
        }
    }
}

/// A whole build: the target stage and the stages it depends on, in order, the target last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub stages: Vec<Stage>,
    /// `ENTRYPOINT` and `CMD` of the last stage, joined into one shell line.
    pub start_command: Option<String>,
    /// `EXPOSE` of the last stage.
    pub ports: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub name: Option<String>,
    pub origin: Origin,
    pub steps: Vec<Step>,
    /// Line number of its `FROM`, from 1.
    pub line: usize,
}

/// The base of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Image(String),
    /// Index of an earlier stage of the plan.
    Stage(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    /// Line number, from 1.
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A shell command line.
    Run(String),
    Copy(Copy),
    /// Values may still refer to variables of the image, as `$NAME`, `${NAME:-default}` or
    /// `${NAME:+other}`; `\$` is a literal dollar.
    Env(Vec<(String, String)>),
    /// May refer to variables like the values of [`Action::Env`].
    Workdir(String),
    User(String),
}

impl Action {
    /// Bytes of its texts.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Run(text) | Self::Workdir(text) | Self::User(text) => text.len(),
            Self::Copy(copy) => copy.sources.iter().map(String::len).sum::<usize>() + copy.destination.len(),
            // Twice: the stage's scope has them, too.
            Self::Env(pairs) => pairs.iter().map(|(name, value)| 2 * (name.len() + value.len())).sum(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub from: CopyFrom,
    /// Paths or patterns.
    pub sources: Vec<String>,
    pub destination: String,
    /// `user` or `user:group`; root by default.
    pub owner: Option<String>,
    pub mode: Option<u32>,
    /// Whether sources of the context that are tar archives are unpacked, as `ADD` does.
    pub unpack: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyFrom {
    Context,
    /// Index of an earlier stage of the plan.
    Stage(usize),
}
