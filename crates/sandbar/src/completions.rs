//! `sandbar completions`: scripts by which a shell completes this program's commands and flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print completions for a shell.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar completions bash > /etc/bash_completion.d/sandbar
  sandbar completions zsh > \"${fpath[1]}/_sandbar\"
  sandbar completions fish > ~/.config/fish/completions/sandbar.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run<P: CommandFactory>(&self) -> anyhow::Result<()> {
        let mut command = P::command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        // Not written by the generator, which panics on a broken pipe.
        std::io::Write::write_all(&mut std::io::stdout(), &script)?;
        Ok(())
    }
}
