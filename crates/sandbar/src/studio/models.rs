//! The models that users of the studio may choose. Keys come from the environment; scripts only from a directory that whoever
//! starts the program names, so that nobody reads other files of this machine by a model's name.

use crate::agent::{DEFAULT_MODEL, keys};
use ::studio::Chosen;
use agent::model::scripted::Scripted;
use agent::model::{Choice, ChoiceError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A script that is always there, for a first look without a key.
const DEMO: &str = "scripted:demo";
const DEMO_SCRIPT: &str = include_str!("../../../../examples/scripts/studio-app.yaml");

pub(super) struct Models {
    scripts: Option<PathBuf>,
}

impl Models {
    pub(super) fn new(scripts: Option<&Path>) -> std::io::Result<Self> {
        Ok(Self { scripts: scripts.map(Path::canonicalize).transpose()? })
    }

    /// The default first.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        if keys().anthropic.is_some() {
            names.push(DEFAULT_MODEL.to_owned());
        }
        names.push(DEMO.to_owned());
        let files =
            self.scripts.iter().flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten().flatten());
        let mut scripts: Vec<String> = files
            .filter(|file| file.path().extension().is_some_and(|extension| extension == "yaml" || extension == "json"))
            .filter_map(|file| Some(format!("scripted:{}", file.file_name().to_str()?)))
            .collect();
        scripts.sort();
        names.extend(scripts);
        names
    }

    pub(super) fn choose(&self, wanted: Option<&str>) -> Result<Chosen, ChoiceError> {
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => self.names().swap_remove(0),
        };
        if name == DEMO {
            return Ok(Chosen { model: Arc::new(Scripted::new(DEMO, DEMO_SCRIPT)?), name });
        }
        let choice = match name.parse()? {
            Choice::Scripted { file } => {
                Choice::Scripted { file: self.script(&file).ok_or(ChoiceError::Unknown(name))? }
            }
            // Whoever names the URL would be sent the key.
            Choice::OpenAi { .. } => return Err(ChoiceError::Unknown(name)),
            other @ Choice::Anthropic { .. } => other,
        };
        Ok(Chosen { name: choice.to_string(), model: choice.model(&keys())? })
    }

    /// A script below the directory, by its name there or by its whole path.
    fn script(&self, file: &Path) -> Option<PathBuf> {
        let directory = self.scripts.as_ref()?;
        directory.join(file).canonicalize().ok().filter(|file| file.starts_with(directory) && file.is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_come_from_their_directory_and_from_nowhere_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (directory.path().join("scripts"), directory.path().join("secret.yaml"));
        std::fs::create_dir(&inside).expect("made");
        std::fs::write(inside.join("one.yaml"), "turns: [{ text: Done. }]").expect("written");
        std::fs::write(&outside, "turns: [{ text: Done. }]").expect("written");
        std::os::unix::fs::symlink(&outside, inside.join("link.yaml")).expect("linked");
        let models = Models::new(Some(&inside)).expect("models");
        let whole = format!("scripted:{}", inside.join("one.yaml").display());
        for good in ["scripted:one.yaml", &whole, DEMO] {
            let chosen = models.choose(Some(good)).unwrap_or_else(|error| panic!("{good}: {error}"));
            assert!(models.choose(Some(&chosen.name)).is_ok(), "the name of a choice leads to it again");
        }
        let secret = format!("scripted:{}", outside.display());
        for bad in [
            "openai:any@http://elsewhere.test/",
            "scripted:../secret.yaml",
            &secret,
            "scripted:link.yaml",
            "scripted:none.yaml",
            "scripted:.",
        ] {
            assert!(models.choose(Some(bad)).is_err(), "{bad}");
        }
        let none = Models::new(None).expect("models");
        assert!(none.choose(Some(&whole)).is_err() && none.choose(Some(DEMO)).is_ok());
    }
}
