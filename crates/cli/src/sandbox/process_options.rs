//! Flags that commands and terminals in a sandbox share: directory, environment and user.

use crate::values::{Pair, Variable};
use clap::Args;
use sdk::{Command, Shell};

#[derive(Args)]
pub(crate) struct ProcessOptions {
    /// The directory it begins in; relative ones begin at the user's home
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<String>,
    /// A variable it sees; NAME alone takes the value of this program's own; may be repeated
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// Who runs it
    #[arg(long, short)]
    pub(super) user: Option<String>,
}

/// A command or shell that takes these options.
pub(super) trait WithOptions: Sized {
    fn with_cwd(self, directory: &str) -> Self;
    fn with_env(self, variable: Pair) -> Self;
    fn with_user(self, user: &str) -> Self;
}

impl ProcessOptions {
    pub(super) fn apply<P: WithOptions>(&self, program: P) -> Result<P, clap::Error> {
        let mut program = program;
        for variable in &self.env {
            program = program.with_env(variable.read()?);
        }
        if let Some(directory) = &self.cwd {
            program = program.with_cwd(directory);
        }
        Ok(match &self.user {
            Some(user) => program.with_user(user),
            None => program,
        })
    }
}

impl WithOptions for Command {
    fn with_cwd(self, directory: &str) -> Self {
        self.cwd(directory)
    }

    fn with_env(self, Pair { key, value }: Pair) -> Self {
        self.env(key, value)
    }

    fn with_user(self, user: &str) -> Self {
        self.user(user)
    }
}

impl WithOptions for Shell {
    fn with_cwd(self, directory: &str) -> Self {
        self.cwd(directory)
    }

    fn with_env(self, Pair { key, value }: Pair) -> Self {
        self.env(key, value)
    }

    fn with_user(self, user: &str) -> Self {
        self.user(user)
    }
}
