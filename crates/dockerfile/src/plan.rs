//! What is to be built.

use std::collections::BTreeMap;

/// What the caller knows beside the text.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the file is called in errors.
    pub file: String,
    /// `--build-arg`. One that no `ARG` asks for is an error.
    pub build_args: BTreeMap<String, String>,
    /// The stage to build; the last one unless named.
    pub target: Option<String>,
    /// As in `linux/amd64`: what the sandboxes run on.
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

/// A whole build: the stages that the wanted one needs, in order, that one last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub stages: Vec<Stage>,
    /// `ENTRYPOINT` and `CMD` of the last stage, as one line for a shell.
    pub start_command: Option<String>,
    /// `EXPOSE` of the last stage.
    pub ports: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub name: Option<String>,
    pub origin: Origin,
    pub steps: Vec<Step>,
    /// Where its `FROM` stands, from 1 on.
    pub line: usize,
}

/// What a stage begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Image(String),
    /// An earlier one of the plan.
    Stage(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    /// Where it stands, from 1 on.
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A line for a shell.
    Run(String),
    Copy(Copy),
    /// Values may still refer to variables of the image, as `$NAME`, `${NAME:-default}` or `${NAME:+other}`; `\$` is a dollar.
    Env(Vec<(String, String)>),
    /// May refer to variables as values of [`Action::Env`] do.
    Workdir(String),
    User(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub from: CopyFrom,
    /// Paths or patterns.
    pub sources: Vec<String>,
    pub destination: String,
    /// `user` or `user:group`; root's unless set.
    pub owner: Option<String>,
    pub mode: Option<u32>,
    /// Sources of the context that are tar archives are unpacked, as `ADD` does.
    pub unpack: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyFrom {
    Context,
    /// An earlier one of the plan.
    Stage(usize),
}
