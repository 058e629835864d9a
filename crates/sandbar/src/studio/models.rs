//! The models that users of the studio can choose. Keys come from the environment, and a URL is
//! used only if the operator named it, so that no user can have a key sent elsewhere. Scripts come
//! only from a directory that the operator named, so that no user can read other files of this
//! machine by a model's name.

use crate::agent::{DEFAULT_MODEL, Prices, keys};
use ::studio::ChosenModel;
use agent::model::scripted::Scripted;
use agent::model::{ChoiceError, ModelChoice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A script that is always offered, for a first build without a key.
const DEMO: &str = "scripted:demo";
const DEMO_SCRIPT: &str = include_str!("../../../../examples/scripts/studio-app.yaml");

pub(super) struct Models {
    scripts: Option<PathBuf>,
    /// The first one is the default.
    offered: Vec<ModelChoice>,
    prices: Prices,
}

impl Models {
    pub(super) fn new(scripts: Option<&Path>, offered: &[ModelChoice], prices: Prices) -> std::io::Result<Self> {
        Ok(Self { scripts: scripts.map(Path::canonicalize).transpose()?, offered: offered.to_vec(), prices })
    }

    /// Names of the models, the default first.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.offered.iter().map(ToString::to_string).collect();
        if names.is_empty() && keys().anthropic.is_some() {
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

    pub(super) fn choose(&self, wanted: Option<&str>) -> Result<ChosenModel, ChoiceError> {
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => self.names().swap_remove(0),
        };
        if name == DEMO {
            return Ok(ChosenModel { model: Arc::new(Scripted::new(DEMO, DEMO_SCRIPT)?), name });
        }
        match name.parse()? {
            ModelChoice::Scripted { file } => {
                let (name, file) = self.script(&file).ok_or(ChoiceError::Unknown(name))?;
                Ok(ChosenModel { name, model: ModelChoice::Scripted { file }.model(&keys())? })
            }
            // A user who names the URL would receive the key.
            choice @ ModelChoice::OpenAi { .. } if !self.offered.contains(&choice) => Err(ChoiceError::Unknown(name)),
            choice => Ok(ChosenModel { model: self.prices.apply(&choice, choice.model(&keys())?), name }),
        }
    }

    /// Finds a script below the directory by its relative or absolute path. Returns it with the
    /// relative name, which is valid in any process that has such a directory.
    fn script(&self, file: &Path) -> Option<(String, PathBuf)> {
        let directory = self.scripts.as_ref()?;
        let file = directory.join(file).canonicalize().ok().filter(|file| file.is_file())?;
        let name = format!("scripted:{}", file.strip_prefix(directory).ok()?.display());
        Some((name, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_come_only_from_their_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (directory.path().join("scripts"), directory.path().join("secret.yaml"));
        std::fs::create_dir(&inside).expect("made");
        std::fs::write(inside.join("one.yaml"), "turns: [{ text: Done. }]").expect("written");
        std::fs::write(&outside, "turns: [{ text: Done. }]").expect("written");
        std::os::unix::fs::symlink(&outside, inside.join("link.yaml")).expect("linked");
        let own = "openai:own@http://127.0.0.1:8000/v1";
        let offered = [own.parse().expect("a model")];
        let models = Models::new(Some(&inside), &offered, Prices::default()).expect("models");
        let whole = format!("scripted:{}", inside.join("one.yaml").display());
        for good in ["scripted:one.yaml", &whole, DEMO, own] {
            let chosen = models.choose(Some(good)).unwrap_or_else(|error| panic!("{good}: {error}"));
            assert!(models.choose(Some(&chosen.name)).is_ok(), "the name of a choice leads to it again");
            assert!(!chosen.name.contains(directory.path().to_str().expect("a plain path")), "{}", chosen.name);
        }
        assert_eq!(models.names(), [own, DEMO, "scripted:link.yaml", "scripted:one.yaml"]);
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
        let none = Models::new(None, &[], Prices::default()).expect("models");
        assert!(none.choose(Some(&whole)).is_err() && none.choose(Some(DEMO)).is_ok());
    }
}
