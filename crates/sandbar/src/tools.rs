//! `sandbar tools`: prints the definitions of the tools.

use clap::{Args, ValueEnum};
use std::io::{Write as _, stdout};

/// Show the tools, for people or as the definitions that models need.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar tools                       names and what they are for
  sandbar tools --json                what Anthropic's API takes as `tools`
  sandbar tools --json --form mcp     as MCP lists them: with output schemas and hints")]
pub(crate) struct Tools {
    /// Print definitions with JSON schemas
    #[arg(long)]
    json: bool,
    /// Whose form the definitions have
    #[arg(long, value_enum, default_value_t = Form::Anthropic, requires = "json")]
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Anthropic,
    Mcp,
}

impl Tools {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let definitions = tools::definitions();
        if self.json {
            let all: Vec<_> = definitions
                .iter()
                .map(|definition| match self.form {
                    Form::Anthropic => definition.anthropic(),
                    Form::Mcp => definition.mcp(),
                })
                .collect();
            return Ok(writeln!(stdout(), "{}", serde_json::to_string_pretty(&all)?)?);
        }
        for definition in definitions {
            let first = definition.description.split_once(". ").map_or(definition.description, |(first, _)| first);
            writeln!(stdout(), "{:<16} {}", definition.name, first.trim_end_matches('.'))?;
        }
        Ok(())
    }
}
