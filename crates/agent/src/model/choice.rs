//! Parses the choice of a model: `anthropic:NAME`, `openai:NAME@URL` or `scripted:FILE`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use sdk::Secret;
use url::Url;

use super::anthropic::{Anthropic, DEFAULT_URL};
use super::openai::OpenAi;
use super::scripted::{ScriptError, Scripted};
use super::{Model, ModelError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelChoice {
    Anthropic { model: String },
    OpenAi { model: String, url: Url },
    Scripted { file: PathBuf },
}

/// Provider settings from the environment. The program reads them; this crate reads no environment.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// `ANTHROPIC_API_KEY`.
    pub anthropic: Option<Secret>,
    /// `ANTHROPIC_BASE_URL`, without `/v1`.
    pub anthropic_url: Option<String>,
    /// `OPENAI_API_KEY`.
    pub openai: Option<Secret>,
}

#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error("`{0}` names no model; write anthropic:NAME, openai:NAME@URL or scripted:FILE")]
    Unknown(String),
    #[error("`{text}` is no URL")]
    Url { text: String, source: url::ParseError },
    #[error("{0} is not set")]
    Key(&'static str),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl FromStr for ModelChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let unknown = || ChoiceError::Unknown(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        match kind {
            _ if rest.is_empty() => Err(unknown()),
            "anthropic" => Ok(Self::Anthropic { model: rest.to_owned() }),
            "scripted" => Ok(Self::Scripted { file: rest.into() }),
            "openai" => {
                // The name of a model may contain an `@`; these URLs do not.
                let (model, url) = rest.rsplit_once('@').filter(|(model, _)| !model.is_empty()).ok_or_else(unknown)?;
                Ok(Self::OpenAi { model: model.to_owned(), url: parse(url)? })
            }
            _ => Err(unknown()),
        }
    }
}

fn parse(text: &str) -> Result<Url, ChoiceError> {
    let url = Url::parse(text).map_err(|source| ChoiceError::Url { text: text.to_owned(), source })?;
    if ["http", "https"].contains(&url.scheme()) { Ok(url) } else { Err(ChoiceError::Unknown(text.to_owned())) }
}

impl fmt::Display for ModelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anthropic { model } => write!(f, "anthropic:{model}"),
            Self::OpenAi { model, url } => write!(f, "openai:{model}@{url}"),
            Self::Scripted { file } => write!(f, "scripted:{}", file.display()),
        }
    }
}

impl ModelChoice {
    /// # Errors
    /// [`ChoiceError::Key`] if a key is missing, [`ChoiceError::Url`] or [`ChoiceError::Script`] if
    /// the URL or script is invalid, [`ChoiceError::Model`] if the client cannot be created.
    pub fn model(&self, keys: &Keys) -> Result<Arc<dyn Model>, ChoiceError> {
        Ok(match self {
            Self::Anthropic { model } => {
                let key = keys.anthropic.clone().ok_or(ChoiceError::Key("ANTHROPIC_API_KEY"))?;
                let url = parse(keys.anthropic_url.as_deref().unwrap_or(DEFAULT_URL))?;
                Arc::new(Anthropic::new(model, url, key)?)
            }
            Self::OpenAi { model, url } => Arc::new(OpenAi::new(model, url.clone(), keys.openai.clone())?),
            Self::Scripted { file } => Arc::new(Scripted::open(file)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses_and_displays_the_same() {
        for text in [
            "anthropic:claude-opus-5-5",
            "openai:qwen@3@http://127.0.0.1:8000/v1",
            "scripted:examples/scripts/web-app.yaml",
        ] {
            assert_eq!(text.parse::<ModelChoice>().expect("a model").to_string(), text);
        }
        for text in ["claude", "anthropic:", "openai:x", "openai:@http://a", "openai:x@file:///etc", "gemini:x"] {
            assert!(text.parse::<ModelChoice>().is_err(), "{text}");
        }
        let missing =
            "anthropic:x".parse::<ModelChoice>().expect("a model").model(&Keys::default()).err().expect("no key");
        assert_eq!(missing.to_string(), "ANTHROPIC_API_KEY is not set");
    }
}
