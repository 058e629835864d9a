//! The definition of a template: a base, steps, and a start command.

use std::fmt;
use std::path::PathBuf;

use protocol::rest::template::ArchiveFormat;
use serde_json::{Value, json};

use secret::Secret;

/// A template to build, from an image, another template or a Dockerfile.
///
/// ```
/// use sandbar_sdk::templates::Template;
///
/// let template = Template::from_image("python:3.12")
///     .context("./app")
///     .copy("requirements.txt", "/home/user/")
///     .run("pip install -r /home/user/requirements.txt")
///     .env("MODE", "production")
///     .start("python -m http.server 8000", "curl -fs localhost:8000");
/// ```
#[derive(Clone)]
pub struct Template {
    pub(super) base: Base,
    /// Earlier stages, in order; they become no templates themselves.
    pub(super) earlier: Vec<Stage>,
    pub(super) registry: Option<Value>,
    pub(super) context: PathBuf,
    pub(super) ignore: Vec<String>,
    pub(super) steps: Vec<Step>,
    pub(super) start: Option<String>,
    pub(super) ready: Option<String>,
    /// Later steps bypass the cache.
    forcing: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Base {
    Image(String),
    Template(String),
    /// Index of an earlier stage.
    Stage(usize),
    Archive(Archive),
}

/// A local archive with the initial files.
#[derive(Debug, Clone)]
pub(super) struct Archive {
    pub(super) path: PathBuf,
    pub(super) format: ArchiveFormat,
}

/// An intermediate stage that others use as a base or copy from.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) base: Base,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone)]
pub(super) struct Step {
    pub(super) instruction: Instruction,
    pub(super) force: bool,
    /// Line in the Dockerfile, from 1.
    pub(super) line: Option<usize>,
}

#[derive(Clone)]
pub(super) enum Instruction {
    Copy(CopyFiles),
    Run { command: String, user: Option<String> },
    Env(Vec<(String, String)>),
    Workdir(String),
    User(String),
}

/// Files to copy into a template.
#[derive(Debug, Clone)]
pub struct CopyFiles {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) owner: Option<String>,
    pub(super) mode: Option<u32>,
    pub(super) follow_links: bool,
    pub(super) gzip: bool,
    pub(super) force_upload: bool,
    /// Copies from an earlier stage instead of the context.
    pub(super) from_stage: Option<usize>,
    /// Unpacks a source that is a tar archive.
    pub(super) unpack: bool,
}

impl CopyFiles {
    /// `source` is a path or pattern inside the context. A `destination` with a trailing slash is a
    /// directory to copy into.
    pub fn new(source: impl Into<String>, destination: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            destination: destination.into(),
            owner: None,
            mode: None,
            follow_links: false,
            gzip: true,
            force_upload: false,
            from_stage: None,
            unpack: false,
        }
    }

    /// `user` or `user:group`; the user of the step by default.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Permission bits of all copied files; those of the context by default.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Copies the targets of symlinks instead of the symlinks.
    #[must_use]
    pub fn follow_links(mut self) -> Self {
        self.follow_links = true;
        self
    }

    /// Uploads the archive uncompressed, for content that does not compress.
    #[must_use]
    pub fn uncompressed(mut self) -> Self {
        self.gzip = false;
        self
    }

    /// Uploads the files even if the server has them.
    #[must_use]
    pub fn force_upload(mut self) -> Self {
        self.force_upload = true;
        self
    }
}

impl Template {
    pub(super) fn new(base: Base) -> Self {
        Self {
            base,
            earlier: Vec::new(),
            registry: None,
            context: PathBuf::from("."),
            ignore: Vec::new(),
            steps: Vec::new(),
            start: None,
            ready: None,
            forcing: false,
        }
    }

    /// Starts from a container image.
    pub fn from_image(image: impl Into<String>) -> Self {
        Self::new(Base::Image(image.into()))
    }

    /// Starts from another template, by name or id.
    pub fn from_template(template: impl Into<String>) -> Self {
        Self::new(Base::Template(template.into()))
    }

    /// Starts from a local archive. Sandbar servers only.
    pub fn from_archive(path: impl Into<PathBuf>, format: ArchiveFormat) -> Self {
        Self::new(Base::Archive(Archive { path: path.into(), format }))
    }

    /// The same steps on the base of `other`.
    #[must_use]
    pub fn on(mut self, other: Self) -> Self {
        (self.base, self.registry) = (other.base, other.registry.or(self.registry));
        self
    }

    /// The start command, if any.
    pub fn start_command(&self) -> Option<&str> {
        self.start.as_deref()
    }

    /// The Dockerfile line of a step, by the number that builds report.
    pub fn line_of_step(&self, number: usize) -> Option<usize> {
        let steps = self.earlier.iter().flat_map(|stage| &stage.steps).chain(&self.steps);
        steps.clone().nth(number.checked_sub(1)?)?.line
    }

    /// Authenticates to a registry by user name and password.
    #[must_use]
    pub fn registry(mut self, username: &str, password: &Secret) -> Self {
        self.registry = Some(json!({ "type": "registry", "username": username, "password": password.expose() }));
        self
    }

    /// Authenticates to an AWS registry.
    #[must_use]
    pub fn aws_registry(mut self, access_key_id: &str, secret_access_key: &Secret, region: &str) -> Self {
        let secret = secret_access_key.expose();
        self.registry = Some(json!({
            "type": "aws", "awsAccessKeyId": access_key_id, "awsSecretAccessKey": secret, "awsRegion": region,
        }));
        self
    }

    /// Authenticates to a Google Cloud registry by the JSON of a service account.
    #[must_use]
    pub fn gcp_registry(mut self, service_account: &Secret) -> Self {
        self.registry = Some(json!({ "type": "gcp", "serviceAccountJson": service_account.expose() }));
        self
    }

    /// The directory that copies are relative to; the current directory by default. Its
    /// `.dockerignore` applies.
    #[must_use]
    pub fn context(mut self, directory: impl Into<PathBuf>) -> Self {
        self.context = directory.into();
        self
    }

    /// Excludes files from copies, in the syntax of a `.dockerignore`.
    #[must_use]
    pub fn ignore(mut self, pattern: impl Into<String>) -> Self {
        self.ignore.push(pattern.into());
        self
    }

    /// Copies files of the context.
    #[must_use]
    pub fn copy(self, source: impl Into<String>, destination: impl Into<String>) -> Self {
        self.copy_files(CopyFiles::new(source, destination))
    }

    /// Copies files of the context, with options.
    #[must_use]
    pub fn copy_files(self, files: CopyFiles) -> Self {
        self.step(Instruction::Copy(files))
    }

    /// Runs a shell command as the current user of the build.
    #[must_use]
    pub fn run(self, command: impl Into<String>) -> Self {
        self.step(Instruction::Run { command: command.into(), user: None })
    }

    /// Runs a shell command as `user`.
    #[must_use]
    pub fn run_as(self, user: impl Into<String>, command: impl Into<String>) -> Self {
        self.step(Instruction::Run { command: command.into(), user: Some(user.into()) })
    }

    /// Sets a variable for the following steps and for sandboxes.
    #[must_use]
    pub fn env(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.step(Instruction::Env(vec![(name.into(), value.into())]))
    }

    /// Sets variables in one step.
    #[must_use]
    pub fn envs(self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.step(Instruction::Env(variables.into_iter().collect()))
    }

    /// Sets the working directory of the following steps and of sandboxes.
    #[must_use]
    pub fn workdir(self, path: impl Into<String>) -> Self {
        self.step(Instruction::Workdir(path.into()))
    }

    /// Sets the user of the following steps and of sandboxes.
    #[must_use]
    pub fn user(self, name: impl Into<String>) -> Self {
        self.step(Instruction::User(name.into()))
    }

    /// Sets the command that runs in every sandbox from its start, and the readiness check.
    #[must_use]
    pub fn start(mut self, command: impl Into<String>, ready: impl Into<String>) -> Self {
        self.start = Some(command.into());
        self.ready(ready)
    }

    /// Sets the readiness check of the template, without a start command.
    #[must_use]
    pub fn ready(mut self, command: impl Into<String>) -> Self {
        self.ready = Some(command.into());
        self
    }

    /// Bypasses the cache for the following steps.
    #[must_use]
    pub fn skip_cache(mut self) -> Self {
        self.forcing = true;
        self
    }

    pub(super) fn step(mut self, instruction: Instruction) -> Self {
        let force = self.forcing || matches!(&instruction, Instruction::Copy(files) if files.force_upload);
        self.steps.push(Step { instruction, force, line: None });
        self
    }
}

/// Redacts commands, variables and registries, which may contain secrets.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template")
            .field("base", &self.base)
            .field("context", &self.context)
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}
