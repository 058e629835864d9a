//! The size of a sandbox, and which sizes a provider accepts: Sandbar's servers take sizes with a
//! create, on E2B the template fixes them.

use sdk::{CallError, Create};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::service::SandboxService;
use crate::config::ResourcesConfig;
use crate::name::ProviderName;

/// Wanted sizes; an absent one is the provider's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_count: Option<u32>,
    pub memory_mb: Option<u32>,
    pub disk_mb: Option<u32>,
}

impl Resources {
    /// Fills in absent sizes.
    fn or(self, defaults: Self) -> Self {
        Self {
            cpu_count: self.cpu_count.or(defaults.cpu_count),
            memory_mb: self.memory_mb.or(defaults.memory_mb),
            disk_mb: self.disk_mb.or(defaults.disk_mb),
        }
    }

    fn named(self) -> [(&'static str, Option<u32>); 3] {
        [("cpu_count", self.cpu_count), ("memory_mb", self.memory_mb), ("disk_mb", self.disk_mb)]
    }
}

/// A size that the provider cannot give. Use another size or provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourcesRefused {
    #[error(
        "provider {provider} cannot give {resource} = {wanted}: its sizes come with the template, and {template:?} {has}"
    )]
    WithTemplate { provider: ProviderName, resource: &'static str, wanted: u32, template: String, has: String },
    #[error("provider {provider} cannot give {resource} = {wanted}: at most {most} is configured")]
    OverConfigured { provider: ProviderName, resource: &'static str, wanted: u32, most: u32 },
    #[error("provider {provider} cannot give {resource} = {wanted}: it takes {least} to {most}")]
    OutOfRange { provider: ProviderName, resource: &'static str, wanted: u32, least: u64, most: u64 },
}

/// Which sizes a provider's server accepts with a create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sizing {
    /// Plain E2B: the template fixes the size.
    ByTemplate,
    /// The minimum and maximum of each, in the order of [`Resources::named`].
    Taken([(u64, u64); 3]),
}

impl Sizing {
    /// Asks the server for the sizes it accepts and for its longest lifetime. Any response proves
    /// that the server is reachable; only a missing response is an error.
    pub(super) async fn query(service: &dyn SandboxService) -> Result<(Self, Option<u64>), CallError> {
        let found = match service.capabilities().await {
            Ok(Some(found)) => found,
            Err(
                error @ (CallError::Unreachable { .. }
                | CallError::ConnectionLost { .. }
                | CallError::DeadlineExceeded { .. }),
            ) => return Err(error),
            Ok(None) | Err(_) => return Ok((Self::ByTemplate, None)),
        };
        let longest = found.capabilities.get("limits").and_then(|limits| limits["maxTimeout"].as_u64());
        let Some(sizes) = found.capabilities.get("createResources") else { return Ok((Self::ByTemplate, longest)) };
        let range = |name: &str| {
            let bound = |which: &str, absent: u64| sizes[name].get(which).and_then(Value::as_u64).unwrap_or(absent);
            (bound("min", 0), bound("max", u64::MAX))
        };
        Ok((Self::Taken([range("cpuCount"), range("memoryMB"), range("diskSizeMB")]), longest))
    }

    /// Adds the sizes to the request.
    pub(super) fn apply(
        &self,
        mut create: Create,
        wanted: Resources,
        config: &ResourcesConfig,
        provider: &ProviderName,
        template: &str,
    ) -> Result<Create, ResourcesRefused> {
        let configured =
            Resources { cpu_count: config.cpu_count, memory_mb: config.memory_mb, disk_mb: config.disk_mb };
        let most = [config.max_cpu_count, config.max_memory_mb, config.max_disk_mb];
        for ((resource, wanted), most) in wanted.named().into_iter().zip(most) {
            if let (Some(wanted), Some(most)) = (wanted, most)
                && wanted > most
            {
                return Err(ResourcesRefused::OverConfigured { provider: provider.clone(), resource, wanted, most });
            }
        }
        let ranges = match self {
            Self::Taken(ranges) => ranges,
            Self::ByTemplate => {
                for ((resource, wanted), (_, has)) in wanted.named().into_iter().zip(configured.named()) {
                    if let Some(wanted) = wanted.filter(|wanted| Some(*wanted) != has) {
                        let has = has.map_or_else(|| "has its own".to_owned(), |has| format!("has {has}"));
                        let (provider, template) = (provider.clone(), template.to_owned());
                        return Err(ResourcesRefused::WithTemplate { provider, resource, wanted, template, has });
                    }
                }
                return Ok(create);
            }
        };
        let wanted = wanted.or(configured);
        for ((resource, wanted), &(least, most)) in wanted.named().into_iter().zip(ranges) {
            if let Some(wanted) = wanted.filter(|wanted| !(least..=most).contains(&u64::from(*wanted))) {
                return Err(ResourcesRefused::OutOfRange { provider: provider.clone(), resource, wanted, least, most });
            }
        }
        if let Some(count) = wanted.cpu_count {
            create = create.cpu_count(count);
        }
        if let Some(size) = wanted.memory_mb {
            create = create.memory_mb(size);
        }
        if let Some(size) = wanted.disk_mb {
            create = create.disk_size_mb(size);
        }
        Ok(create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sizing: &Sizing, wanted: Resources, config: ResourcesConfig, expected: Result<(), &str>) {
        let provider = "p".parse().expect("a name");
        let done = sizing.apply(Create::template("base"), wanted, &config, &provider, "base");
        let done = done.map(|_| ()).map_err(|error| error.to_string());
        match (done, expected) {
            (Ok(()), Ok(())) => {}
            (Err(message), Err(part)) if message.contains(part) => {}
            (done, expected) => panic!("{done:?} is not {expected:?}"),
        }
    }

    #[test]
    fn unavailable_sizes_are_rejected_with_the_reason() {
        let big = Resources { cpu_count: Some(8), ..Resources::default() };
        let none = ResourcesConfig::default();
        let taken = Sizing::Taken([(1, 64), (128, 65536), (512, 262_144)]);
        check(&Sizing::ByTemplate, Resources::default(), none, Ok(()));
        check(&Sizing::ByTemplate, big, none, Err("its sizes come with the template, and \"base\" has its own"));
        // The configuration declares the template's size, so a request may ask for exactly that.
        let declared = ResourcesConfig { cpu_count: Some(8), ..none };
        check(&Sizing::ByTemplate, big, declared, Ok(()));
        check(&Sizing::ByTemplate, Resources { cpu_count: Some(4), ..big }, declared, Err("\"base\" has 8"));
        check(&taken, big, none, Ok(()));
        check(&taken, big, ResourcesConfig { max_cpu_count: Some(4), ..none }, Err("at most 4 is configured"));
        let huge = Resources { memory_mb: Some(100_000), ..Resources::default() };
        check(&taken, huge, none, Err("memory_mb = 100000: it takes 128 to 65536"));
    }
}
