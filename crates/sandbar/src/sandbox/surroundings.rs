//! Where a program in a sandbox runs, as whom, and what it sees: the flags that commands and terminals share.

use super::values::{Pair, Variable};
use clap::Args;
use sdk::{Command, Shell};

#[derive(Args)]
pub(crate) struct Surroundings {
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

/// What can be put somewhere.
pub(super) trait Placed: Sized {
    fn in_directory(self, directory: &str) -> Self;
    fn seeing(self, variable: Pair) -> Self;
    fn run_by(self, user: &str) -> Self;
}

impl Surroundings {
    pub(super) fn place<P: Placed>(&self, program: P) -> Result<P, clap::Error> {
        let mut program = program;
        for variable in &self.env {
            program = program.seeing(variable.read()?);
        }
        if let Some(directory) = &self.cwd {
            program = program.in_directory(directory);
        }
        Ok(match &self.user {
            Some(user) => program.run_by(user),
            None => program,
        })
    }
}

impl Placed for Command {
    fn in_directory(self, directory: &str) -> Self {
        self.cwd(directory)
    }

    fn seeing(self, Pair { key, value }: Pair) -> Self {
        self.env(key, value)
    }

    fn run_by(self, user: &str) -> Self {
        self.user(user)
    }
}

impl Placed for Shell {
    fn in_directory(self, directory: &str) -> Self {
        self.cwd(directory)
    }

    fn seeing(self, Pair { key, value }: Pair) -> Self {
        self.env(key, value)
    }

    fn run_by(self, user: &str) -> Self {
        self.user(user)
    }
}
